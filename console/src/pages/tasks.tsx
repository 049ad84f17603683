// Tasks: what matches the filter, the newest first. Rows change in place; new ones wait behind a button.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { act, refuse,  } from "../core/actions";
import { call, whyNot } from "../core/api";
import { now } from "../core/clock";
import { curl, listCommand } from "../core/commands";
import { fits, parse, toggle } from "../core/filter";
import { MOST_FRESH, useList } from "../core/list";
import { useLive } from "../core/live";
import { useCoalesced } from "../core/once";
import { zone } from "../core/prefs";
import { useGet } from "../core/query";
import { go, link, query, search, setQuery } from "../core/router";
import type { TaskSummary } from "../core/schema";
import { isEnded, TASK_STATES } from "../core/states";
import { VERBS } from "../core/task_actions";
import type { VerbName } from "../core/task_actions";
import { count, zoneFor } from "../core/time";
import { ActOnMany } from "../parts/act_on_many";
import { AsCommand } from "../parts/as_command";
import { Action, Chips } from "../parts/controls";
import { FilterBar } from "../parts/filter_bar";
import { Empty, Page,  } from "../parts/page";
import { Duration, Instant, Lateness, many, NONE, State, To } from "../parts/show";
import { ListTable,  } from "../parts/table";
import type { Column } from "../parts/table";

const PART = 100; // rows of one request
const COUNT_EVERY = 5_000; // ms: a count reads more than a list does
const ON_SCREEN = 100; // rows that are loaded again by their numbers

const columns: Column<TaskSummary>[] = [
  { name: "Task", cell: (task) => <To page="tasks" of={task.id} /> },
  {
    name: "Job",
    cell: (task) => (
      <>
        <To page="jobs" of={task.job} />
        <span class="second-line">
          <Instant at={task.run_at} relative />
          {task.started_at && (
            <>
              {" "}
              · <Duration from={task.started_at} to={task.finished_at} />
            </>
          )}
        </span>
      </>
    ),
  },
  { name: "State", cell: (task) => <State of={task.paused_at && task.state === "running" ? "paused" : task.state} title={task.waits?.reason ?? undefined} /> },
  { name: "Due", cell: (task) => <Instant at={task.run_at} />, drop: 3 },
  { name: "Late", cell: (task) => <Lateness ms={task.lateness_ms} />, align: "right", drop: 2 },
  { name: "Took", cell: (task) => <Duration from={task.started_at} to={task.finished_at} />, align: "right", drop: 2 },
  { name: "Attempt", cell: (task) => task.attempt || NONE, align: "right", drop: 1 },
  { name: "Agent", cell: (task) => <To page="agents" of={task.agent} />, drop: 1 },
  { name: "Remark", cell: (task) => <Remark of={task} />, drop: 1 },
];

/** Why it waits, or why it ended as it did. */
function Remark({ of: task }: { of: TaskSummary }) {
  const text = (!isEnded(task.state) && task.waits?.reason) || (task.error_code && task.error_code !== task.state ? `${task.error_code}${task.exit_code ? ` (${task.exit_code})` : ""}` : "");
  return (
    <span class="quiet" title={text}>
      {text}
    </span>
  );
}

export default function Tasks() {
  const text = query.value.get("filter") ?? "";
  const where = zoneFor(zone.value);
  // "created>2h" means two hours before it was typed: the same tasks on every part
  const { params, faults, ids } = useMemo(() => parse(text, now(), where), [text, where]);
  const key = search(params);
  const list = useList("GET /tasks", { ...params, limit: PART }, (task) => task.id);
  const total = useGet("GET /tasks/count", params);
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const [acting, setActing] = useState<{ verb: VerbName; ids: number[] | null } | null>(null);
  useEffect(() => setChosen(new Set()), [key]); // what is not seen is not acted on
  const drawn = useRef<readonly TaskSummary[]>([]);
  const isMore = useRef(false);
  const isCounted = useRef(true);
  useEffect(() => {
    const timer = setInterval(() => {
      if (isCounted.current || document.hidden || !total.data?.is_exact) return;
      isCounted.current = true;
      total.refresh();
    }, COUNT_EVERY);
    return () => clearInterval(timer);
  });

  const isNew = (task: TaskSummary) => fits(task, params) && (!list.hasMore || task.id > (list.rows.at(-1)?.id ?? 0));
  /** What is drawn, by number, and how many are new: after a gap in what was told. */
  const refetch = useCoalesced(async () => {
    const shown = drawn.current.slice(0, ON_SCREEN).map((task) => task.id);
    const [again, first] = await Promise.all([shown.length ? call("GET /tasks", { id: shown, limit: ON_SCREEN }) : null, call("GET /tasks", { ...params, limit: PART })]);
    list.patch([...(again?.items ?? []), ...first.items], isNew);
  });
  useLive(["tasks"], (event) => {
    if (event.topic === "resync") return refetch();
    if (event.topic !== "tasks") return;
    const { changed, more } = event.data as { changed: TaskSummary[]; more: number };
    list.patch(changed, isNew);
    isMore.current ||= more > 0;
    isCounted.current = false;
    if (more > 0) refetch();
  });
  const show = () => {
    isMore.current = false;
    list.refresh();
    total.refresh();
    scrollTo(0, 0);
  };

  const one = (verb: VerbName, id: number) => {
    const why = whyNot(verb === "cancel" || verb === "kill" ? "submitter" : VERBS[verb].needs);
    if (why) return refuse(why);
    if (verb === "priority") return setActing({ verb, ids: [id] });
    const said = (answer: { state: string }) => `Task ${id} is ${answer.state.replace("_", " ")}.`;
    const then = (answer: { state: string }) => list.patch([{ id, state: answer.state } as TaskSummary]);
    if (verb === "now") return act("PATCH /tasks/{id}", { params: { id }, body: { now: true }, said: () => `Task ${id} is due now.`, then });
    if (verb === "retry") return act("POST /tasks/{id}/retry", { params: { id }, said, then });
    return act("POST /tasks/{id}/cancel", { params: { id }, body: { kill: verb === "kill" }, said: (answer) => (answer.state === "cancelled" ? said(answer) : `Task ${id} is asked to stop.`), then });
  };
  const start = (verb: VerbName) => {
    const [first] = chosen;
    if (chosen.size === 1 && first !== undefined) return one(verb, first);
    return setActing({ verb, ids: chosen.size ? [...chosen] : null });
  };
  const matching = total.data ? `${count(total.data.count)}${total.data.is_exact ? "" : "+"}` : "…";
  const selection = {
    has: (id: string | number) => chosen.has(Number(id)),
    toggle: (some: (string | number)[], on: boolean) => {
      const next = new Set(chosen);
      for (const id of some) on ? next.add(Number(id)) : next.delete(Number(id));
      setChosen(next);
    },
  };
  const states = (params.state as string[] | undefined) ?? [];
  return (
    <Page
      title="Tasks"
      remark={<span class="figure">{matching} match</span>}
      actions={
        <AsCommand
          word="Copy as a command"
          of={() => [
            ["mainspring", listCommand(params)],
            ["curl", curl("GET /tasks", params)],
          ]}
        />
      }
    >
      <FilterBar text={text} faults={faults} set={(filter) => setQuery({ filter })} entered={(typed) => /^#?\d+$/.test(typed) && go(link`tasks/${typed.replace("#", "")}`)} />
      <div class="quick" role="group" aria-label="States">
        <Chips of={Object.keys(TASK_STATES)} held={states} set={(_, state) => setQuery({ filter: toggle(text, "state", state) })} show={(state) => <State of={state} />} />
      </div>
      <div class="act-bar" role="group" aria-label="Act on tasks">
        <span class="scope">
          {chosen.size ? (
            <>
              With <b>{many(chosen.size, "selected task")}</b>
              <button type="button" class="link" onClick={() => setChosen(new Set())}>
                or all {matching}
              </button>
            </>
          ) : (
            <>
              With all <b class="figure">{matching}</b> that match
            </>
          )}
        </span>
        {(Object.keys(VERBS) as VerbName[]).map((verb) => (
          <Action key={verb} needs={VERBS[verb].needs} kind={verb === "cancel" || verb === "kill" ? "danger" : "plain"} refused={!chosen.size && total.data?.count === 0 ? "no task matches" : null} run={() => start(verb)}>
            {VERBS[verb].word}
            {verb === "priority" || !chosen.size || chosen.size > 1 ? " …" : ""}
          </Action>
        ))}
        <span class="grow" />
        <span role="status" class="fresh">
          {list.fresh > 0 && (
            <button type="button" class="button" onClick={show}>
              {count(list.fresh)}
              {isMore.current || list.fresh >= MOST_FRESH ? "+" : ""} new · show
            </button>
          )}
        </span>
      </div>
      <div class={list.isOld ? "task-list old" : "task-list"} aria-busy={list.isOld}>
        <ListTable
          label="Tasks"
          columns={columns}
          list={list}
          to={(task) => link`tasks/${task.id}`}
          select={selection}
          seen={(rows) => (drawn.current = rows)}
          keys={[
            { keys: "r", does: "retry the task", run: (task) => one("retry", task.id) },
            { keys: "c", does: "cancel the task", run: (task) => one("cancel", task.id) },
          ]}
          empty={
          list.searchedTo !== null ? (
              <></>
            ) : text ? (
              <Empty title={ids.length === 1 ? `There is no task ${ids[0]}, or no longer.` : "No task matches this filter."}>
                <button type="button" class="link" onClick={() => setQuery({ filter: null })}>
                  Show all tasks
                </button>
              </Empty>
            ) : (
              <Empty title="Tasks are the single runs of jobs; there are none yet." command="mainspring task submit hello --wait" />
            )
          }
        />
      </div>
      <p class="table-note" role="status">
        {list.searchedTo !== null && list.hasMore ? (
          <>
            <span>
              Searched back to <Instant at={list.searchedTo} date="always" />
            </span>
            <button type="button" class="button" onClick={list.more}>
              Go on
            </button>
          </>
        ) : list.hasMore ? (
          "Loading more …"
        ) : (
          list.rows.length > 0 && !list.isOld && `All ${many(list.rows.length, "task")}.`
        )}
      </p>
      {acting && <ActOnMany verb={acting.verb} ids={acting.ids} params={params} close={() => setActing(null)} done={() => (refetch(), total.refresh())} />}
    </Page>
  );
}
