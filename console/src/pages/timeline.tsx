// Timeline: planned versus fired of many schedules, or the runs of each agent beside each other.

import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { call } from "../core/api";
import { second } from "../core/clock";
import { like } from "../core/filter";
import { useGet, useQuery } from "../core/query";
import { go, link, query, setQuery } from "../core/router";
import type { ScheduleView, TaskSummary } from "../core/schema";
import { anywhere } from "../core/typed";
import { PlannedFired, Switches, useWhere } from "../pictures/planned";
import { Picture, viewOf } from "../pictures/planned_canvas";
import { gantt, spanOf } from "../pictures/planned_scene";
import type { View } from "../pictures/planned_scene";
import { Choice } from "../parts/controls";
import { Icon } from "../parts/icons";
import { Empty, Loading, Page, Problem, Show } from "../parts/page";
import { Duration, Instant, many, State, To } from "../parts/show";
import { Table } from "../parts/table";

const MOST = 50; // schedules of one picture
const LOOKED_AT = 200; // schedules of which those are chosen that fired last
const PART = 500; // runs of one request
const PARTS = 6;

export default function Timeline() {
  const by = query.value.get("by") === "agents" ? "agents" : "schedules";
  return (
    <Page title="Timeline" remark={by === "agents" ? "What ran where, and beside what." : "What was planned, what fired, and how late."}>
      <div class="p-chooser">
        <Choice
          label="Rows"
          of={[
            ["schedules", "By schedule"],
            ["agents", "By agent"],
          ]}
          value={by}
          set={(value) => setQuery({ by: value === "agents" ? value : null, name: null })}
        />
        <Names key={by} what={by} />
      </div>
      {by === "agents" ? <ByAgent /> : <BySchedule />}
    </Page>
  );
}

const AFTER = 250; // ms without a key before it is applied

function Names({ what }: { what: string }) {
  const [typed, setTyped] = useState(query.value.get("name") ?? "");
  const timer = useRef(0);
  const set = (name: string) => {
    setTyped(name);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setQuery({ name: name.trim() }), AFTER);
  };
  return (
    <div class="filter-bar" role="search">
      <Icon name="search" />
      <input data-filter type="text" aria-label={`Names of ${what}`} placeholder={what === "agents" ? "web-*" : "billing-*"} spellcheck={false} autoComplete="off" value={typed} onInput={(event) => set(event.currentTarget.value)} />
    </div>
  );
}

function BySchedule() {
  const typed = query.value.get("name") ?? "";
  const found = useGet("GET /schedules", { name: anywhere(typed), kind: ["cron", "every", "once"], limit: LOOKED_AT }, { keep: true });
  const names = useMemo(() => chosen(found.data?.items ?? [], typed), [found.data]);
  return (
    <Show of={found}>
      {({ items, next }) =>
        names.length ? (
          <>
            {(items.length > names.length || next) && (
              <p class="table-note">
                {names.length} of {items.length}
                {next ? "+" : ""} schedules: those that fired last. Filter by name to see others.
              </p>
            )}
            <PlannedFired schedules={names} />
          </>
        ) : typed ? (
          <Empty title={`No schedule has a name anywhere ${typed}.`} />
        ) : (
          <Empty title="Schedules are drawn here: a tick at each plan time, a bar for each run." command="mainspring schedule create nightly hello --daily 03:00 --enable" />
        )
      }
    </Show>
  );
}

/** Those that fired last, in the order of their names; one that is named exactly is among them. */
function chosen(items: readonly ScheduleView[], typed: string): string[] {
  const when = (one: ScheduleView) => (one.name === typed ? "9999" : (one.last?.plan_time ?? ""));
  const latest = [...items].sort((a, b) => (when(a) > when(b) ? -1 : when(a) < when(b) ? 1 : 0)).slice(0, MOST);
  return latest.map((one) => one.name).sort();
}

function ByAgent() {
  const [where, move] = useWhere();
  const typed = query.value.get("name") ?? "";
  const span = spanOf(where.range);
  const [from] = viewOf(where, second.value);
  const start = Math.floor(from / (span / 2)) * (span / 2);
  const loaded = useQuery(`${typed} ${start} ${span}`, (signal) => runs(typed, start, start + 1.5 * span, signal), { topics: ["tasks"], every: 15, keep: true });
  const { tasks = NONE, agents = [] } = loaded.data ?? {};
  const drawn = useCallback((view: View) => gantt(agents, tasks, view), [loaded.data]);
  if (!loaded.data) return loaded.refusal ? <Problem refusal={loaded.refusal} retry={loaded.refresh} /> : <Loading />;
  const [, to] = viewOf(where, second.value);
  const inView = tasks.filter((task) => Date.parse(task.started_at ?? "") <= to && (!task.finished_at || Date.parse(task.finished_at) >= from));
  return (
    <div class="p-planned">
      <Switches where={where} move={move} />
      {loaded.refusal && <Problem refusal={loaded.refusal} retry={loaded.refresh} />}
      {loaded.data.back !== null && (
        <p class="table-note">
          The last {many(tasks.length, "run")}, back to <Instant at={loaded.data.back} />: there are more in this range.
        </p>
      )}
      {!agents.length ? (
        <Empty title="Agents run tasks; none is there, and none ran anything in this range." command="mainspring up" />
      ) : query.value.get("view") === "table" ? (
        <Table
          label="Runs by agent"
          rows={inView}
          id={(task) => task.id}
          to={(task) => link`tasks/${task.id}`}
          columns={[
            { name: "Agent", cell: (task) => <a href={link`agents/${task.agent ?? ""}`}>{task.agent}</a> },
            { name: "Task", cell: (task) => <To page="tasks" of={task.id} /> },
            { name: "Job", cell: (task) => task.job, drop: 3 },
            { name: "State", cell: (task) => <State of={task.state} /> },
            { name: "Started", cell: (task) => <Instant at={task.started_at} ms />, drop: 3 },
            { name: "Took", cell: (task) => <Duration from={task.started_at} to={task.finished_at} />, align: "right" },
          ]}
          empty={<Empty title="No run lies in this range." />}
        />
      ) : (
        <>
        <p class="table-note">Each bar is a run, from its start to its end; those that failed are hatched. Point at one, or click it.</p>
        <Picture
          label={`Runs of ${many(agents.length, "agent")}`}
          build={drawn}
          where={where}
          move={move}
          own={null}
          to={(name) => link`agents/${name}`}
          open={(item) => go(link`tasks/${(item.of[0] as TaskSummary).id}`)}
          card={(item) => {
            const task = item.of[0] as TaskSummary;
            return (
              <>
                <p class="p-when">
                  {task.job} <span class="quiet">task {task.id}</span>
                </p>
                <p>
                  <State of={task.state} /> since <Instant at={task.started_at} ms />, <Duration from={task.started_at} to={task.finished_at} />
                </p>
              </>
            );
          }}
        />
        </>
      )}
    </div>
  );
}
const NONE: TaskSummary[] = [];

interface Runs {
  tasks: TaskSummary[];
  agents: string[];
  /** There are more, due before this one; null: these are all. */
  back: string | null;
}

/** What agents ran between two instants, and what runs now; the latest first, up to a bound. */
async function runs(typed: string, from: number, to: number, signal: AbortSignal): Promise<Runs> {
  const agent = anywhere(typed);
  const known = await call("GET /agents", { limit: PART }, undefined, { signal });
  const found = new Map<number, TaskSummary>();
  let back: string | null = null;
  for (const filter of [{ state: "running" }, { finished_after: new Date(from).toISOString(), run_before: new Date(to).toISOString() }]) {
    let cursor: string | null = null;
    for (let part = 0; part < PARTS; part += 1) {
      const page: { items: TaskSummary[]; next: string | null } = await call("GET /tasks", { ...filter, agent, limit: PART, cursor }, undefined, { signal });
      for (const task of page.items) if (task.started_at && task.agent) found.set(task.id, task);
      cursor = page.next;
      back = cursor && part === PARTS - 1 ? (page.items.at(-1)?.run_at ?? null) : back;
      if (!cursor) break;
    }
  }
  const tasks = [...found.values()];
  const names = new Set([...known.items.map((one) => one.name).filter((name) => !typed || like(anywhere(typed), name)), ...tasks.map((task) => task.agent ?? "")]);
  return { tasks, agents: [...names].sort(), back };
}
