// The filter bar's words: `state:failed job:report late>1s args.shop=7` → the parameters of GET /tasks, and whether a task fits.

import type { Params } from "./router";
import type { TaskSummary } from "./schema";
import { TASK_STATES } from "./states";
import { offsetAt, wall } from "./time";

/** Words that take values, several with commas; the last part of an address such as args.shop is free. */
export const TASK_FILTERS = ["state", "job", "schedule", "agent", "priority", "tag", "batch", "parent", "key", "concurrency_key", "scope", "error_code"] as const;
const TIMES = { created: ["created_after", "created_before"], due: ["run_after", "run_before"], finished: ["finished_after", "finished_before"] } as const;
export const FILTER_WORDS = [...TASK_FILTERS.map((name) => `${name}:`), "late>", "created>", "due<", "finished>", "args."];
const LEVELS: Record<string, number> = { low: 2, normal: 5, high: 7, critical: 9 };

export interface Parsed {
  params: Params;
  /** What could not be read, in words. */
  faults: string[];
  /** The numbers of tasks that were typed. */
  ids: number[];
}

/** Split at spaces, but not within quotes: job:"my report" → one word. */
export function words(text: string): string[] {
  return (text.match(/(?:[^\s"]+|"[^"]*"?)+/g) ?? []).map((word) => word.replaceAll('"', ""));
}

/** `at` is now, for times such as created>2h; `zone` that of a time without an offset, such as created>09:00. */
export function parse(text: string, at: number, zone = "UTC"): Parsed {
  const params: Record<string, string[]> = {};
  const args: Record<string, unknown> = {};
  const faults: string[] = [];
  for (const word of words(text)) {
    const found = /^([\w.]+?)(:|=|>|<)(.+)$/.exec(word);
    if (!found) {
      if (/^#?\d{1,15}$/.test(word)) (params.id ??= []).push(word.replace("#", ""));
      else if (!/^[\w.]+[:=<>]$/.test(word)) faults.push(`“${word}” is no filter; write job:${word} or state:failed`);
      continue; // else it is being typed
    }
    const [, name = "", sign = ":", value = ""] = found;
    if (name.startsWith("args.")) args[name.slice(5)] = literal(value);
    else if (name === "late") {
      if (sign === "<") faults.push("late< is not possible; late>1s finds what started more than a second late");
      else params.late_over = [value];
    } else if (name in TIMES) {
      const [after, before] = TIMES[name as keyof typeof TIMES];
      const instant = instantOf(value, at, zone);
      if (instant === null) faults.push(`“${value}” is no time; write ${name}>2h, ${name}>09:00 or ${name}>2026-11-17`);
      else params[sign === "<" ? before : after] = [new Date(instant).toISOString()];
    } else if (!(TASK_FILTERS as readonly string[]).includes(name)) faults.push(`there is no filter “${name}”; there are ${TASK_FILTERS.join(", ")}, late, created, due, finished, args.NAME`);
    else if (sign === "<" || sign === ">") faults.push(`${name} has no order; write ${name}:${value}`);
    else
      for (const one of value.split(",")) {
        // Half a word is being typed; the API would refuse it.
        if (name !== "state" || one in TASK_STATES) one && (params[name] ??= []).push(one);
        else if (!Object.keys(TASK_STATES).some((state) => state.startsWith(one))) faults.push(`“${one}” is no state`);
      }
  }
  if (Object.keys(args).length) params.args = [JSON.stringify(args)];
  return { params, faults, ids: (params.id ?? []).map(Number) };
}

const SECONDS: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, d: 86400, w: 604800 };

/** "2h" ago, "+30m" from now, "09:00" today, "2026-11-17", "2026-11-17T09:00", with or without an offset. */
export function instantOf(text: string, at: number, zone: string): number | null {
  const span = /^(\+?)(\d+(?:\.\d+)?)(s|m|min|h|d|w)$/.exec(text);
  if (span) return at + (span[1] ? 1 : -1) * Number(span[2]) * (SECONDS[span[3] ?? "s"] ?? 1) * 1000;
  const clock = /^(?:(\d{4}-\d\d-\d\d)(?:[T ](?=\d)|$))?(?:(\d\d:\d\d)(:\d\d(?:\.\d+)?)?)?(Z|[+-]\d\d:\d\d)?$/.exec(text);
  if (!clock || (!clock[1] && !clock[2])) return null;
  const [, date = wall(at, zone).date, time = "00:00", seconds = ":00", offset] = clock;
  const asUtc = Date.parse(`${date}T${time}${seconds}${offset ?? "Z"}`);
  if (Number.isNaN(asUtc) || offset) return Number.isNaN(asUtc) ? null : asUtc;
  const first = asUtc - offsetAt(asUtc, zone); // its own offset may differ near a change of clocks
  return asUtc - offsetAt(first, zone);
}

function literal(text: string): unknown {
  try {
    const value = JSON.parse(text) as unknown;
    return value === null || typeof value === "object" ? text : value;
  } catch {
    return text;
  }
}

/** Add, change or take out one word: toggle("state:failed", "state", "lost") → "state:failed,lost". */
export function toggle(text: string, name: string, value: string): string {
  const others: string[] = [];
  let values: string[] = [];
  for (const word of words(text)) {
    if (word.startsWith(`${name}:`)) values.push(...word.slice(name.length + 1).split(",").filter(Boolean));
    else others.push(quoted(word));
  }
  values = values.includes(value) ? values.filter((one) => one !== value) : [...values, value];
  return [...(values.length ? [quoted(`${name}:${values.join()}`)] : []), ...others].join(" ");
}

export const quoted = (word: string): string => (/\s/.test(word) ? word.replace(/^([\w.]+[:=<>])?(.*)$/s, '$1"$2"') : word);

/** The last word, and what is before it: what is completed. Spaces within open quotes belong to it. */
export function lastWord(text: string): [string, string] {
  const [, last = ""] = /((?:[^\s"]|"[^"]*"?)*)$/.exec(text) ?? [];
  return [text.slice(0, text.length - last.length), last];
}

/** The parameters as TaskFilter, the filter of an action: arguments as an object, numbers as numbers. */
export function asFilter(params: Params): Record<string, unknown> {
  const filter: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(params)) {
    const values = value as string[];
    if (name === "args") filter.args = JSON.parse(values[0] ?? "{}") as unknown;
    else if (["id", "batch", "parent"].includes(name)) filter[name] = values.map(Number);
    else filter[name] = /_(after|before|over)$/.test(name) ? values[0] : values;
  }
  return filter;
}

/** Whether a task belongs to what is shown. Arguments are not in the stream: those may fit. */
export function fits(task: TaskSummary, params: Params): boolean {
  const given = (name: string) => params[name] as string[] | undefined;
  const one = (name: string, value: string | number | null, matches = (wanted: string) => wanted === String(value)) => {
    const wanted = given(name);
    return !wanted || (value !== null && wanted.some(matches));
  };
  const named = (name: string, value: string | null) => one(name, value, (pattern) => like(pattern, value ?? ""));
  const within = (name: string, value: string | null) => {
    const [after, before] = [given(`${name}_after`)?.[0], given(`${name}_before`)?.[0]];
    if (!after && !before) return true;
    const at = value === null ? NaN : Date.parse(value);
    return (!after || at >= Date.parse(after)) && (!before || at < Date.parse(before));
  };
  if (task.parent !== null && !given("parent") && !given("agent") && !given("id")) return false; // runs of a broadcast
  return (
    one("id", task.id) &&
    one("state", task.state) &&
    named("job", task.job) &&
    named("schedule", task.schedule) &&
    named("agent", task.agent ?? task.only_on) &&
    one("priority", task.priority, (wanted) => (LEVELS[wanted] ?? Number(wanted)) === task.priority) &&
    one("batch", task.batch) &&
    one("parent", task.parent) &&
    one("key", task.key) &&
    one("concurrency_key", task.concurrency_key) &&
    one("scope", task.scope) &&
    one("error_code", task.error_code) &&
    (!given("tag") || task.tags.some((tag) => given("tag")?.includes(tag))) &&
    (!given("late_over") || (task.lateness_ms ?? 0) > duration(given("late_over")?.[0] ?? "0") * 1000) &&
    within("created", task.created_at) &&
    within("run", task.run_at) &&
    within("finished", task.finished_at)
  );
}

/** A name against a pattern with *. */
export function like(pattern: string, name: string): boolean {
  if (!pattern.includes("*")) return pattern === name;
  return new RegExp(`^${pattern.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".*")}$`, "s").test(name);
}

/** "1s", "250ms", "10m", "2" → seconds; 0 for what the server will refuse. */
export function duration(text: string): number {
  const found = /^(\d+(?:\.\d+)?)(ms|s|m|min|h|d|w)?$/.exec(text);
  if (!found) return 0;
  return Number(found[1]) * (found[2] === "ms" ? 0.001 : (SECONDS[found[2] ?? "s"] ?? 1));
}
