// A schedule as a form: each member of a spec as text, in plain words, and back; cron and phrases, both ways.

import type { AllPolicies, ScheduleSpec } from "./schema";
import { count, percent, span } from "./time";

export type Spec = Partial<ScheduleSpec> & Record<string, unknown>;
export type Draft = Record<string, string>;

interface FieldOf {
  name: string;
  label: string;
  kind: "text" | "duration" | "number" | "list" | "instant" | "json" | "choice";
  hint?: string;
  /** What each choice means; the first is the default. */
  of?: Record<string, string>;
}

const OVERLAP = {
  allow: "runs may overlap",
  skip: "skip a run while the one before still runs",
  queue: "the latest waits until the one before has ended",
  queue_all: "each waits for its turn",
  cancel_running: "ask the one before to stop",
  terminate_running: "kill the one before",
};
const CATCH_UP = { latest: "only the latest missed run is made up", skip: "missed runs are not made up", all: "every missed run is made up" };
const GAP = { shift: "run at the first instant after it", skip: "do not run that day" };
const FOLD = { first: "run at the first of the two", second: "run at the second", both: "run at both" };
const WHEN_FULL = { plan: "plan the run anyway", skip: "skip the run" };
const FIRST = { next: "the next plan time", latest: "the last plan time before, at once" };

/** The members of a spec that a form has, but for the job, when, and the zone. */
export const GROUPS: readonly (readonly [string, readonly FieldOf[]])[] = [
  [
    "If the run before still runs, or the server was away",
    [
      { name: "overlap", label: "Overlap", kind: "choice", of: OVERLAP },
      { name: "catch_up", label: "Catch up", kind: "choice", of: CATCH_UP },
      { name: "window", label: "Catch up at most", kind: "duration", hint: "such as 1d; how far back “every” goes" },
      { name: "misfire_after", label: "Too late after", kind: "duration", hint: "later than this is skipped, such as 10m" },
      { name: "when_full", label: "While the queue of its job is full", kind: "choice", of: WHEN_FULL },
      { name: "expires", label: "Expires after", kind: "duration", hint: "a run that has not started by then is skipped" },
    ],
  ],
  [
    "When clocks change",
    [
      { name: "gap", label: "A time that does not exist that day", kind: "choice", of: GAP },
      { name: "fold", label: "A time that comes twice", kind: "choice", of: FOLD },
    ],
  ],
  [
    "Bounds, and spreading",
    [
      { name: "calendars", label: "Calendars of days to leave out", kind: "list", hint: "names, with commas" },
      { name: "start", label: "Not before", kind: "instant", hint: "2026-12-01T00:00, in the zone above" },
      { name: "end", label: "Not after", kind: "instant" },
      { name: "max_runs", label: "At most so many runs", kind: "number" },
      { name: "first", label: "Runs first at", kind: "choice", of: FIRST },
      { name: "jitter", label: "Jitter", kind: "duration", hint: "each run up to so much later, always the same for one plan time" },
      { name: "delay", label: "Delay", kind: "duration", hint: "each run is due so long after its plan time" },
      { name: "after", label: "After the schedule", kind: "text", hint: "whose run for the same time must have succeeded" },
    ],
  ],
  [
    "Objective",
    [
      { name: "slo_lateness", label: "Starts within", kind: "duration", hint: "such as 2s; empty: no SLO" },
      { name: "slo_target", label: "For this share of plan times", kind: "number", hint: "0.999" },
      { name: "slo_window", label: "In a window of", kind: "duration", hint: "30d" },
      { name: "ping_url", label: "Ping", kind: "text", hint: "an address that is called when a run starts, succeeds or fails" },
    ],
  ],
  [
    "What it is given",
    [
      { name: "args", label: "Arguments", kind: "json", hint: 'as JSON: {"shop": 7}' },
      { name: "scopes", label: "Scopes", kind: "list", hint: "a run for each of these, with commas" },
      { name: "description", label: "Description", kind: "text" },
    ],
  ],
];
const ALL = GROUPS.flatMap(([, fields]) => fields);
const WHEN = ["cron", "every", "once", "daily", "weekly", "monthly", "daemon"];

// ── spec ↔ text ────────────────────────────────────────────────────────────────────────────────────────

/** 5400 → "1h30m". */
export function short(seconds: number): string {
  if (!Number.isInteger(seconds) || seconds <= 0) return `${seconds}s`;
  let rest = seconds;
  let text = "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]] as const) {
    if (rest >= size) text += `${Math.floor(rest / size)}${unit}`;
    rest %= size;
  }
  return text;
}

const textOf = (value: unknown, kind: FieldOf["kind"]): string => {
  if (value === undefined || value === null) return "";
  if (kind === "duration" && typeof value === "number") return short(value);
  if (kind === "list") return (value as string[]).join(", ");
  if (kind === "json") return JSON.stringify(value, null, 1);
  return String(value);
};

/** When a spec runs, in one text: "daily 09:00", "every 5m", "0 9 * * *". */
export function whenOf(spec: Spec): string {
  const kind = WHEN.find((one) => spec[one] !== undefined && spec[one] !== null);
  if (!kind) return "";
  const value = textOf(spec[kind], kind === "every" ? "duration" : "text");
  return kind === "cron" ? value : `${kind} ${value}`;
}

/** The member of a spec that says when: { daily: "at 09:00" }. */
export function readWhen(text: string): Spec {
  const [head = "", ...rest] = text.trim().split(/\s+/);
  const word = head.toLowerCase();
  const others = rest.join(" ");
  if (word === "daemon") return { daemon: Number(others) };
  if (word === "hourly" && !others) return { cron: "0 * * * *" };
  if (WHEN.includes(word) && word !== "cron") return { [word]: others };
  if (/^\d{4}-\d\d-\d\d/.test(head)) return { once: text.trim() };
  return { cron: text.trim() };
}

export function draftOf(spec: Spec): Draft {
  const slo = (spec.slo ?? {}) as Record<string, unknown>;
  const draft: Draft = { job: spec.job ?? "", when: whenOf(spec), tz: spec.tz ?? "" };
  for (const { name, kind } of ALL) draft[name] = textOf(name.startsWith("slo_") ? slo[name.slice(4)] : spec[name], kind);
  return draft;
}

/** The spec of a draft; what the form has not is kept. Throws what is wrong with JSON, as { field, message }. */
export function specOf(draft: Draft, base: Spec): Spec {
  const spec: Spec = { ...base };
  for (const name of [...WHEN, "slo", "tz", "job"]) delete spec[name];
  Object.assign(spec, readWhen(draft.when ?? ""));
  if (!spec.every) delete spec.anchor;
  if (draft.job) spec.job = draft.job;
  if (draft.tz) spec.tz = draft.tz;
  const slo: Record<string, unknown> = {};
  for (const { name, kind } of ALL) {
    const text = (draft[name] ?? "").trim();
    const [into, member] = name.startsWith("slo_") ? [slo, name.slice(4)] : [spec as Record<string, unknown>, name];
    if (!text) delete into[member];
    else if (kind === "number") into[member] = Number(text);
    else if (kind === "list") into[member] = text.split(",").map((one) => one.trim()).filter(Boolean);
    else if (kind === "json") into[member] = json(text, name);
    else into[member] = text;
  }
  if (slo.lateness) spec.slo = slo as NonNullable<Spec["slo"]>;
  return spec;
}

export class Fault extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(message);
  }
}

function json(text: string, field: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Fault(field, `${field}: ${(error as Error).message}`);
  }
}

// ── cron → phrase ──────────────────────────────────────────────────────────────────────────────────────

/** The phrase that means the same as a cron expression, where there is one: "0 9 * * MON" → "weekly on mon at 09:00". */
export function asPhrase(cron: string): string | null {
  const [minute = "", hour = "", date = "", month = "", day = "", ...more] = cron.trim().toLowerCase().split(/\s+/);
  if (more.length || month !== "*") return null;
  const every = /^\*\/(\d+)$/.exec(minute);
  // by any zone's clocks: some are a quarter of an hour beside the others
  if (every && 15 % Number(every[1]) === 0 && [hour, date, day].every((one) => one === "*")) return `every ${every[1]}m`;
  if (minute === "0" && [hour, date, day].every((one) => one === "*")) return "hourly";
  if (!/^\d+$/.test(minute) || !/^\d+(,\d+)*$/.test(hour)) return null;
  const at = hour.split(",").map((one) => `${one.padStart(2, "0")}:${minute.padStart(2, "0")}`).join(", ");
  if (date === "*" && day === "*") return `daily at ${at}`;
  if (date === "*") {
    const days = day.split(",").map((part) => part.split("-").map(weekday).join("-")).join(", ");
    return /^[a-z, -]+$/.test(days) ? `weekly on ${days} at ${at}` : null;
  }
  if (day !== "*") return null;
  if (date === "l") return `monthly on the last day at ${at}`;
  return date.split(",").every((one) => /^\d+$/.test(one) && Number(one) <= 28) ? `monthly on the ${date.split(",").join(", ")} at ${at}` : null;
}

const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const weekday = (part: string): string => (/^[0-7]$/.test(part) ? (DAYS[Number(part) % 7] ?? "") : part);

// ── in words ───────────────────────────────────────────────────────────────────────────────────────────

/** What a schedule does beside its plan: [about, in words], without defaults that need no mention. */
export function inWords(of: AllPolicies, kind: string): [string, string][] {
  const said: [string, string | false | null | undefined][] = [
    ["If the one before still runs", OVERLAP[of.overlap]],
    ["After an outage", `${CATCH_UP[of.catch_up]}${of.catch_up === "all" ? `, up to ${span(of.window)} back and ${count(of.max_per_tick)} a second` : ""}`],
    ["Too late", of.misfire_after !== null && `more than ${span(of.misfire_after)} after its time a run is skipped`],
    ["Clocks go forward over it", kind === "cron" && GAP[of.gap]],
    ["Clocks go back over it", kind === "cron" && FOLD[of.fold]],
    ["Days left out", of.calendars.length > 0 && `those of ${of.calendars.join(", ")}`],
    ["Jitter", of.jitter > 0 && `each run up to ${span(of.jitter)} later, the same for one plan time`],
    ["Delay", of.delay > 0 && `each run is due ${span(of.delay)} after its plan time`],
    ["Runs at most", of.max_runs !== null && `${count(of.max_runs)} times`],
    ["Waits for", of.after && `the run of ${of.after} for the same time, which must succeed`],
    ["Expires", of.expires !== null && `a run that has not started ${span(of.expires)} after its time is skipped`],
    ["While the queue is full", of.when_full === "skip" && WHEN_FULL.skip],
    ["Scopes", of.provider ? `told by its code: ${of.provider}` : of.scopes.length > 0 && `one run for each of ${of.scopes.join(", ")}`],
    ["Objective", of.slo && `${percent(of.slo.target ?? 0.999)} of plan times start within ${span(of.slo.lateness)}, over ${span(of.slo.window ?? 2592000)}`],
    ["Pings", of.ping_url],
  ];
  if (kind === "daemon") return [["Restarts", `after ${span(of.restart_delay)}, up to ${span(of.max_restart_delay)}; up after ${span(of.ready)}`]];
  return said.filter((one): one is [string, string] => Boolean(one[1]));
}
