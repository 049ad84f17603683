// Schedules: what matches, by name or by what fires next, each with what came of its last plan times.

import { useEffect, useRef, useState } from "preact/hooks";
import { act, asRole, send, toast } from "../core/actions";
import { call,  } from "../core/api";
import { now, second } from "../core/clock";
import { useList } from "../core/list";
import { useLive } from "../core/live";
import { useGet } from "../core/query";
import { link, query, search, setQuery } from "../core/router";
import type { Params } from "../core/router";
import type { ScheduleView, Strip as StripOf, TaskSummary } from "../core/schema";
import { count } from "../core/time";
import { anywhere } from "../core/typed";
import { Action, Chips, Confirm } from "../parts/controls";
import { Empty, Page,  } from "../parts/page";
import { Search } from "../parts/search";
import { Instant, Lateness, many, State, To } from "../parts/show";
import { Strip } from "../parts/strip";
import { Fresh, ListTable,  } from "../parts/table";
import type { Column } from "../parts/table";

const PART = 200; // rows of one request
const ASK_ABOVE = 100; // things beyond which the number is typed
const AT_ONCE = 50; // schedules whose strips are read in one request
const STATES = ["enabled", "disabled", "problem", "ended"];
const KINDS = ["cron", "every", "once", "daemon"];

const VERBS = { enable: "enabled", disable: "disabled", run: "run" } as const;
export type Verb = keyof typeof VERBS;
const CAPITAL = { enable: "Enable", disable: "Disable", run: "Run" } as const;
const UNDOES = { enable: "disable", disable: "enable", run: null } as const;
const MEANS = {
  enable: "Each runs from its next plan time on; what was missed meanwhile is not run.",
  disable: "What was planned and has not started is taken back; what runs goes on.",
  run: "Each gets a task at once, beside its plan.",
} as const;

function filters(): Params {
  const at = query.value;
  return { name: anywhere(at.get("q")?.trim() ?? ""), state: at.getAll("state"), kind: at.getAll("kind"), job: at.get("job"), app: at.get("app") };
}

/** Switch one on or off, with a way back. */
export function switchOne(name: string, on: boolean, then: (changed: ScheduleView) => void): Promise<unknown> {
  const verb = on ? "enable" : "disable";
  return act(`POST /schedules/{name}/${verb}`, {
    params: { name },
    said: (answer) => `${name} is ${VERBS[verb]}${told(answer.recalled)}.`,
    undo: async () => then((await send(`POST /schedules/{name}/${UNDOES[verb]}`, { name })).schedule),
    then: (answer) => then(answer.schedule),
  });
}

/** "; took back 2 planned runs; 1 runs on". */
export function told(recalled: { taken_back: number; asked_back: number; running: number } | null): string {
  if (!recalled) return "";
  const back = recalled.taken_back + recalled.asked_back;
  return `${back ? `; took back ${many(back, "planned run")}` : ""}${recalled.running ? `; ${count(recalled.running)} ${recalled.running === 1 ? "runs" : "run"} on` : ""}`;
}

export default function Schedules() {
  const params = filters();
  const order = query.value.get("sort") === "next" ? "next" : "name";
  const key = search({ ...params, order });
  const list = useList("GET /schedules", { ...params, order, limit: PART }, (one) => one.name);
  const total = useGet("GET /schedule-count", params, { topics: ["schedules"], keep: true });
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [all, setAll] = useState<{ verb: Verb; names: string[] | null } | null>(null);
  const { strips, look } = useStrips(list.rows, list.patch, params);

  const columns: Column<ScheduleView>[] = [
    { name: "Name", cell: (one) => <To page="schedules" of={one.name} />, sort: { is: order === "name" ? "up" : null, by: () => setQuery({ sort: null }) } },
    { name: "When", cell: (one) => <span title={`${one.words}\n${one.expression}`}>{one.words}</span>, drop: 2 },
    { name: "Zone", cell: (one) => <span class="quiet">{one.timezone}</span>, drop: 1 },
    { name: "Next", cell: (one) => <Instant at={one.next} own={one.timezone} relative />, align: "right", sort: { is: order === "next" ? "up" : null, by: () => setQuery({ sort: "next" }) } },
    { name: "Last 30 plan times", cell: (one) => <Strip of={strips.get(one.name)} own={one.timezone} />, drop: 2 },
    { name: "p99 late", cell: (one) => <P99 of={strips.get(one.name)} />, align: "right", drop: 1 },
    {
      name: "State",
      cell: (one) => (
        <>
          <State of={one.state} title={one.problem ?? undefined} /> <span class="quiet">{remark(one)}</span>
        </>
      ),
    },
  ];
  const patched = (one: ScheduleView) => list.patch([one]);
  const matching = total.data?.count ?? 0;
  const names = [...chosen];
  const acting = names.length ? names : null;
  const hasFilter = key !== search({ order });
  return (
    <Page
      title="Schedules"
      remark={<span class="figure">{total.data ? `${count(matching)}${total.data.is_exact ? "" : "+"} match` : "…"}</span>}
      actions={
        <a class="button main" href="new/schedule">
          New schedule
        </a>
      }
    >
      <Filters />
      <div class="table-note" role="group" aria-label="On schedules">
        {acting && <span>{many(names.length, "schedule")} selected</span>}
        {acting && (
          <button type="button" class="link" onClick={() => setChosen(new Set())}>
            clear
          </button>
        )}
        {matching > 0 &&
          (["enable", "disable", "run"] as const).map((verb) => (
            <Action key={verb} kind={acting ? "plain" : "link"} needs="operator" run={() => setAll({ verb, names: acting })}>
              {CAPITAL[verb]}
              {acting ? "" : ` all ${count(matching)}`}
            </Action>
          ))}
        <Fresh list={list} one="schedule" />
      </div>
      <div class="schedules">
      <ListTable
        label="Schedules"
        columns={columns}
        list={list}
        to={(one) => link`schedules/${one.name}`}
        select={{
          has: (id) => chosen.has(String(id)),
          toggle: (ids, on) => {
            const next = new Set(chosen);
            for (const id of ids) on ? next.add(String(id)) : next.delete(String(id));
            setChosen(next);
          },
        }}
        seen={look}
        keys={[{ keys: "p", does: "enable or disable the schedule", run: (one) => asRole("operator", () => switchOne(one.name, !one.enabled, patched)) }]}
        empty={
          hasFilter ? (
            <Empty title="No schedule matches this filter.">
              <button type="button" class="link" onClick={() => setQuery({ q: null, state: null, kind: null, job: null, app: null })}>
                Show all schedules
              </button>
            </Empty>
          ) : (
            <Empty title="A schedule says when a job runs; there are none yet." command="mainspring schedule create hello-daily hello --daily 09:00 --enable">
              <a href="new/schedule">Make one here</a>, in the code of an application, or by this command:
            </Empty>
          )
        }
      />
      </div>
      <p class="table-note" role="status">
        {list.hasMore ? "more below" : list.rows.length > 0 && `all ${many(list.rows.length, "schedule")}${order === "next" ? " with a plan time to come" : ""}`}
      </p>
      {all && (
        <All
          verb={all.verb}
          filter={all.names ? { name: all.names } : given(params)}
          matching={all.names?.length ?? matching}
          close={() => setAll(null)}
          done={() => {
            setChosen(new Set());
            list.refresh();
            total.refresh();
          }}
        />
      )}
    </Page>
  );
}

function P99({ of }: { of: StripOf | undefined }) {
  return <span title={of?.starts ? `of its last ${of.starts} starts; late from ${of.late_after} s on` : "it has not started yet"}>{<Lateness ms={of?.p99_ms} />}</span>;
}

function remark(one: ScheduleView): string {
  if (one.problem) return one.problem;
  const said = [];
  if (one.is_orphan) said.push("no longer in the code");
  if (one.drift.length) said.push("differs from the code");
  if (one.skips.length) said.push("has skips");
  return said.join(", ");
}

// ── filters ────────────────────────────────────────────────────────────────────────────────────────────

function Filters() {
  const at = query.value;
  return (
    <>
      <Search label="Find schedules by name" placeholder="part of a name, or report-*" value={at.get("q") ?? ""} set={(q) => setQuery({ q })} />
      <div class="quick" role="group" aria-label="Filters">
        <Chips of={STATES} held={at.getAll("state")} set={(state) => setQuery({ state })} show={(state) => <State of={state} />} />
        <Chips of={KINDS} held={at.getAll("kind")} set={(kind) => setQuery({ kind })} />
        {(["job", "app"] as const).map((name) => (
          <Named key={name} name={name} />
        ))}
      </div>
    </>
  );
}

/** One job or application, typed and applied on Enter. */
function Named({ name }: { name: "job" | "app" }) {
  const value = query.value.get(name) ?? "";
  const [offers, setOffers] = useState<string[]>([]);
  const offer = async () => name === "job" && setOffers((await call("GET /jobs", { limit: 100 }).catch(() => ({ items: [] }))).items.map((job) => job.name));
  return (
    <>
      <input class="named" type="text" list={`of-${name}`} aria-label={name === "job" ? "Of a job" : "Of an application"} placeholder={name} key={value} defaultValue={value} onFocus={offer} onChange={(event) => setQuery({ [name]: event.currentTarget.value.trim() })} />
      <datalist id={`of-${name}`}>
        {offers.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
    </>
  );
}

// ── what is on screen ──────────────────────────────────────────────────────────────────────────────────

/** Strips of the rows on screen, and rows that have changed or fired: at most one request of each kind a second. */
function useStrips(rows: readonly ScheduleView[], patch: (rows: readonly ScheduleView[], isNew?: (row: ScheduleView) => boolean) => void, params: Params) {
  const [strips, setStrips] = useState<ReadonlyMap<string, StripOf>>(new Map());
  const seen = useRef<readonly ScheduleView[]>([]);
  const stale = useRef(new Set<string>()); // strips to be read again
  const changed = useRef(new Set<string>()); // rows to be read again
  const busy = useRef(false);
  const held = useRef({ strips, rows });
  held.current = { strips, rows };

  const read = async () => {
    if (busy.current || document.hidden) return;
    busy.current = true;
    try {
      const names = seen.current.map((one) => one.name);
      const wanted = names.filter((name) => !held.current.strips.has(name) || stale.current.has(name)).slice(0, AT_ONCE);
      const passed = seen.current.filter((one) => one.next && Date.parse(one.next) < now() - 500).map((one) => one.name);
      const again = [...new Set([...changed.current, ...passed])].slice(0, AT_ONCE);
      for (const name of again) changed.current.delete(name);
      const [found, fresh] = await Promise.all([
        wanted.length ? call("GET /strips", { schedule: wanted }) : null,
        again.length ? call("GET /schedules", { name: again, limit: AT_ONCE }) : null,
      ]);
      if (fresh) patch(fresh.items, (one) => fits(one, params));
      if (found) {
        for (const name of wanted) stale.current.delete(name);
        for (const name of passed) stale.current.add(name);
        setStrips((old) => new Map([...old, ...found.items.map((one) => [one.schedule, one] as const)]));
      } else for (const name of passed) stale.current.add(name);
    } catch {
      // one of them was deleted meanwhile, or the server is away: the list itself tells
    } finally {
      busy.current = false;
    }
  };
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => second.subscribe(() => void latest.current()), []);
  useLive(["schedules", "tasks"], (event) => {
    if (event.topic === "schedules") for (const name of (event.data as { changed: string[] }).changed) changed.current.add(name);
    else if (event.topic === "resync") for (const { name } of seen.current) changed.current.add(name) && stale.current.add(name);
    else for (const task of (event.data as { changed: TaskSummary[] }).changed) task.schedule && stale.current.add(task.schedule);
  });
  const look = (shown: readonly ScheduleView[]) => {
    const isOther = shown.some((one) => !held.current.strips.has(one.name));
    seen.current = shown;
    if (isOther) void latest.current();
  };
  return { strips, look };
}

/** Whether a schedule that came belongs to what is shown; in doubt it does, and the next load decides. */
function fits(one: ScheduleView, params: Params): boolean {
  const among = (values: unknown, value: string) => !(values as string[]).length || (values as string[]).includes(value);
  return among(params.state, one.state) && among(params.kind, one.kind) && (!params.job || params.job === one.job) && (!params.app || params.app === one.app) && !params.name;
}

// ── all that match ─────────────────────────────────────────────────────────────────────────────────────

type Given = Record<string, string[]>;

function given(params: Params): Given {
  const found: Given = {};
  for (const [name, value] of Object.entries(params)) {
    const values = (Array.isArray(value) ? value : [value]).filter(Boolean).map(String);
    if (values.length) found[name] = values;
  }
  return found;
}

interface Step {
  done: number;
  changed: string[];
  skipped: { name: string; message: string }[];
  next: string | null;
}

async function steps(action: Verb, filter: Given, each: (step: Step) => boolean): Promise<void> {
  let cursor: string | null = null;
  do {
    const step: Step = await send("POST /actions/schedules", {}, { action, filter, ...(cursor ? { cursor } : {}) });
    cursor = each(step) ? step.next : null;
  } while (cursor);
}

/** Act on all of them, part by part, with progress, a way to stop, and a way back for those that it changed. */
function All({ verb, filter, matching, close, done }: { verb: Verb; filter: Given; matching: number; close: () => void; done: () => void }) {
  const [acted, setActed] = useState<number | null>(null);
  const [stop] = useState({ is: false });
  const run = async () => {
    let total = 0;
    const changed: string[] = [];
    const left: Step["skipped"] = [];
    await steps(verb, filter, (step) => {
      total += step.done;
      changed.push(...step.changed);
      left.push(...step.skipped);
      setActed(total);
      return !stop.is;
    });
    const back = UNDOES[verb];
    const same = total - changed.length;
    toast({
      kind: "done",
      text: `${many(changed.length, "schedule")} ${VERBS[verb]}${same ? `; ${count(same)} ${same === 1 ? "was" : "were"} so already` : ""}${left.length ? `; ${count(left.length)} could not be` : ""}${stop.is ? "; stopped" : ""}.`,
      detail: left[0] && `${left[0].name}: ${left[0].message}`,
      undo: back && changed.length ? () => undo(back, changed, done) : undefined,
    });
    done();
  };
  return (
    <Confirm title={`${CAPITAL[verb]} ${many(matching, "schedule")}`} word={`${CAPITAL[verb]} them`} {...(matching > ASK_ABOVE ? { type: String(matching) } : {})} run={run} close={() => ((stop.is = true), close())}>
      {acted === null ? (
        <p>{MEANS[verb]}</p>
      ) : (
        <p role="status">
          <progress max={matching} value={acted} aria-label="Progress" /> {count(acted)} of {count(matching)} …{" "}
          <button type="button" class="button plain" onClick={() => (stop.is = true)}>
            Stop
          </button>
        </p>
      )}
    </Confirm>
  );
}

async function undo(verb: Verb, names: string[], done: () => void): Promise<void> {
  let changed = 0;
  for (let at = 0; at < names.length; at += AT_ONCE) await steps(verb, { name: names.slice(at, at + AT_ONCE) }, (step) => ((changed += step.changed.length), true));
  toast({ kind: "done", text: `Undone: ${many(changed, "schedule")} ${VERBS[verb]}.` });
  done();
}
