// One task: its state and what it waits for, its phases, attempts, output, data, relations, and what can be done to it.

import { useEffect, useState } from "preact/hooks";
import { tellRefusal } from "../core/actions";
import { plain } from "../core/ansi";
import { call } from "../core/api";
import { useLive } from "../core/live";
import { useGet } from "../core/query";
import { link, withQuery } from "../core/router";
import type { Names } from "../core/router";
import type { AttemptView, Related, TaskDetail } from "../core/schema";
import { isEnded, lookOf } from "../core/states";
import { count, percent, span } from "../core/time";
import { Coloured, TaskOutput } from "../parts/output";
import { Empty, Fact, Facts, Page, Section, Show } from "../parts/page";
import { Copy, Duration, Instant, Json, Lateness, many, State, To } from "../parts/show";
import { TaskButtons } from "../parts/task_buttons";
import { Runs, Waterfall } from "../parts/waterfall";
import { Flow } from "../pictures/graph";

const RUNS = 20; // of the same job

export default function Task({ names }: { names: Names }) {
  const id = Number(names.id);
  const [isLive, setLive] = useState(true);
  const loaded = useGet("GET /tasks/{id}", { id }, { every: isLive ? 1 : 0 });
  const task = loaded.data;
  useEffect(() => setLive(task !== null && !isEnded(task.state)), [task?.state]);
  useLive(["tasks"], (event) => {
    const isOurs = event.topic === "resync" || (event.topic === "tasks" && (event.data as { changed: { id: number }[] }).changed.some((one) => one.id === id));
    if (isOurs) loaded.refresh();
  });
  const job = useGet("GET /jobs/{name}", task && { name: task.job });
  const schedule = useGet("GET /schedules/{name}", task?.schedule ? { name: task.schedule } : null);
  const own = schedule.data?.schedule.timezone ?? null;
  if (!task)
    return (
      <Page title={`Task ${names.id}`} trail={[["Tasks", "tasks"]]}>
        {loaded.refusal?.status === 404 || Number.isNaN(id) ? (
          <Empty title={`There is no task ${names.id}, or no longer: tasks that have ended are kept for a while.`} command="mainspring task list --limit 20">
            <a href="tasks">Show the newest tasks</a>
          </Empty>
        ) : (
          <Show of={loaded}>{() => null}</Show>
        )}
      </Page>
    );
  return (
    <Page title={`Task ${id}`} trail={[["Tasks", "tasks"]]} remark={<Head of={task} own={own} />} actions={<TaskButtons task={task} job={job.data} changed={loaded.refresh} />}>
      {loaded.refusal && <Show of={loaded}>{() => null}</Show>}
      {task.agent && !isEnded(task.state) && <Silent name={task.agent} />}
      <Progress of={task} />
      {task.error && <Fault of={task} />}
      <div class="task-columns">
        <div>
          <Section title="Phases" aside={<span class="quiet">bars by their logarithm</span>}>
            <div class="card">
              <Waterfall of={task} own={own} />
            </div>
          </Section>
          <TaskOutput id={id} isEnded={isEnded(task.state)} attempts={task.attempts} />
          <Attempts of={task} />
        </div>
        <div>
          <LastRuns of={task} />
          <Data of={task} />
          <Relations of={task} />
          <Details of={task} own={own} />
        </div>
      </div>
      {task.graph && <Flow of="task" id={id} />}
    </Page>
  );
}

/** State, job, plan time, and what it waits for in words. */
function Head({ of: task, own }: { of: TaskDetail; own: string | null }) {
  return (
    <>
      <p class="task-head">
        <State of={task.paused_at && task.state === "running" ? "paused" : task.state} />
        <To page="jobs" of={task.job} />
        {task.schedule && (
          <span>
            by schedule <To page="schedules" of={task.schedule} />
            {task.plan_time && (
              <>
                {" for "}
                <a href={link`schedules/${task.schedule}/at/${task.plan_time}`}>
                  <Instant at={task.plan_time} own={own} />
                </a>
              </>
            )}
            {task.scope && ` (${task.scope})`}
          </span>
        )}
        {task.agent && (
          <span>
            on <To page="agents" of={task.agent} />
          </span>
        )}
        {task.attempt > 1 && <span>attempt {task.attempt}</span>}
      </p>
      {task.waits && <p class="line">Waits: {task.waits.reason}</p>}
      {task.unreadable.length > 0 && <p class="line warn">Not readable: {task.unreadable.join(", ")}</p>}
    </>
  );
}

/** Says that its agent is not heard, before the task can be known to be lost. */
function Silent({ name }: { name: string }) {
  const found = useGet("GET /agents/{name}", { name }, { topics: ["agents"], every: 5 });
  const agent = found.data?.items[0];
  if (!agent || agent.status === "active" || agent.status === "draining") return null;
  return (
    <p class="line warn" role="status">
      {name} has no connection to a server, so nothing new is heard of this attempt. It may come back; its lease ends <Instant at={agent.lease_until} relative />, then the attempt counts as lost.
    </p>
  );
}

function Fault({ of: task }: { of: TaskDetail }) {
  return (
    <div class={lookOf(task.state).tone === "bad" || !isEnded(task.state) ? "task-fault" : "task-fault mild"} role="group" aria-label="Error">
      <p>
        <b>{task.error_code}</b>
        {task.exit_code !== null && <span> · {task.exit_code < 0 ? `ended by signal ${-task.exit_code}` : `exit code ${task.exit_code}`}</span>}
        <Copy text={plain(task.error ?? "")} label="Copy the error" />
      </p>
      <pre tabIndex={0}>
        <Coloured text={task.error ?? ""} />
      </pre>
    </div>
  );
}

/** A share, {done, of}, or whatever else it tells. */
function Progress({ of: task }: { of: TaskDetail }) {
  const told = task.progress;
  if (told === null || told === undefined || (isEnded(task.state) && task.state === "succeeded")) return null;
  const { done, of, ...rest } = (typeof told === "object" ? told : {}) as { done?: unknown; of?: unknown };
  const isCounted = typeof done === "number" && typeof of === "number" && of > 0;
  const share = isCounted ? done / of : typeof told === "number" && told >= 0 && told <= 100 ? (told <= 1 ? told : told / 100) : null;
  return (
    <div class="task-progress" role="group" aria-label="Progress">
      {share === null ? (
        <Json of={told} />
      ) : (
        <>
          <progress aria-label="Progress of the task" max={1} value={Math.min(1, Math.max(0, share))} />
          <span class="number">{isCounted ? `${count(done)} of ${count(of)} · ${percent(share, 0)}` : percent(share, 0)}</span>
          {Object.keys(rest).length > 0 && <Json of={rest} />}
        </>
      )}
    </div>
  );
}

function Attempts({ of: task }: { of: TaskDetail }) {
  const [earlier, setEarlier] = useState<{ items: AttemptView[]; next: string | null } | null>(null);
  const load = async () => {
    let cursor = earlier?.next ?? null;
    const first = task.attempts[0]?.token ?? 0;
    let found = earlier?.items ?? [];
    do {
      const page = await call("GET /tasks/{id}/attempts", { id: task.id, cursor, limit: 100 });
      found = [...page.items.filter((one) => one.token < first).reverse(), ...found];
      cursor = page.next;
    } while (cursor && found.length === (earlier?.items.length ?? 0));
    setEarlier({ items: found, next: cursor });
  };
  if (!task.attempts.length) return null;
  const hasEarlier = earlier ? earlier.next !== null : task.attempt_count.count > task.attempts.length;
  const total = `${count(task.attempt_count.count)}${task.attempt_count.is_exact ? "" : "+"}`;
  return (
    <Section title="Attempts" aside={hasEarlier ? `the last of ${total}` : total}>
      {hasEarlier && (
        <p class="table-note">
          <button type="button" class="link" onClick={() => void load().catch(tellRefusal)}>
            Load earlier attempts
          </button>
        </p>
      )}
      <div class="table-box">
        <table class="attempts" aria-label="Attempts">
          <thead>
            <tr>
              <th scope="col">No.</th>
              <th scope="col">State</th>
              <th scope="col" class="drop-3">
                Started
              </th>
              <th scope="col" class="right drop-3">
                Late
              </th>
              <th scope="col" class="right">
                Took
              </th>
              <th scope="col">Agent</th>
              <th scope="col" class="drop-2">
                Why
              </th>
            </tr>
          </thead>
          <tbody>
            {[...(earlier?.items ?? []), ...task.attempts].map((attempt) => (
              <AttemptRows key={attempt.token} of={attempt} isLast={attempt === task.attempts.at(-1) && attempt.error === task.error} />
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

/** Its figures, and its error below; the last one's is at the head of the page. */
function AttemptRows({ of: attempt, isLast }: { of: AttemptView; isLast: boolean }) {
  const why = attempt.error_code ? `${attempt.error_code}${attempt.exit_code !== null ? ` (${attempt.exit_code})` : ""}` : "";
  return (
    <>
      <tr>
        <td>{attempt.number}</td>
        <td>
          <State of={attempt.state} />
        </td>
        <td class="drop-3">
          <Instant at={attempt.started_at} ms />
        </td>
        <td class="right drop-3">
          <Lateness ms={attempt.lateness_ms} />
        </td>
        <td class="right">
          <Duration from={attempt.started_at} to={attempt.finished_at} />
        </td>
        <td>{<To page="agents" of={attempt.agent} />}</td>
        <td class="drop-2 quiet">{why}</td>
      </tr>
      {attempt.error && !isLast && (
        <tr class="attempt-error">
          <td colSpan={7}>
            <details open={attempt.error.length < 2000}>
              <summary>{attempt.error_code ?? "error"}</summary>
              <pre tabIndex={0}>
                <Coloured text={attempt.error} />
              </pre>
            </details>
          </td>
        </tr>
      )}
    </>
  );
}

function LastRuns({ of: task }: { of: TaskDetail }) {
  const runs = useGet("GET /tasks", { job: task.job, limit: RUNS }, { with: isEnded(task.state), keep: true });
  if (!runs.data?.items.length) return null;
  return (
    <Section title={`Last runs of ${task.job}`} aside={<a href={withQuery("tasks", { filter: `job:${task.job}` })}>all</a>}>
      <div class="card">
        <Runs of={runs.data.items} current={task.id} />
      </div>
    </Section>
  );
}

function Data({ of: task }: { of: TaskDetail }) {
  const has = (value: unknown) => value !== null && value !== undefined;
  const isEmpty = typeof task.args === "object" && task.args !== null && !Object.keys(task.args).length;
  return (
    <>
      <Section title="Arguments" aside={!isEmpty && <Copy text={JSON.stringify(task.args, null, 2)} label="Copy the arguments" />}>
        <div class="card">{isEmpty ? <span class="quiet">none</span> : <Json of={task.args} />}</div>
      </Section>
      {has(task.result) && (
        <Section title="Result" aside={<Copy text={JSON.stringify(task.result, null, 2)} label="Copy the result" />}>
          <div class="card">
            <Json of={task.result} />
          </div>
        </Section>
      )}
      {task.result_lost && <p class="line warn">Its transaction was committed; the handler never returned, so it has no result.</p>}
      {has(task.checkpoint) && (
        <Section title="Checkpoint">
          <div class="card">
            <Json of={task.checkpoint} />
          </div>
        </Section>
      )}
    </>
  );
}

function Relations({ of: task }: { of: TaskDetail }) {
  const { graph } = task;
  if (!graph && !task.parent && !task.children.length && !task.batch && !task.callback_of) return null;
  return (
    <Section title="Related">
      <div class="card">
        <Facts>
          <Fact name="Batch">{task.batch && <To page="batches" of={task.batch} />}</Fact>
          <Fact name="Callback of">{task.callback_of && <a href={link`batches/${task.callback_of}`}>batch {task.callback_of}</a>}</Fact>
          <Fact name="Run of">{task.parent && <a href={link`tasks/${task.parent}`}>broadcast {task.parent}</a>}</Fact>
          <Fact name="Runs after">{graph && graph.parents.length > 0 && <TaskLinks of={graph.parents} total={graph.parents_count} />}</Fact>
          <Fact name="Before">{graph && graph.children.length > 0 && <TaskLinks of={graph.children} total={graph.children_count} />}</Fact>
          <Fact name={many(task.child_count.count, "run")}>{task.children.length > 0 && <TaskLinks of={task.children} total={task.child_count.count} />}</Fact>
        </Facts>
      </div>
    </Section>
  );
}

const MOST_LINKS = 20;

function TaskLinks({ of, total }: { of: readonly (Pick<Related, "id" | "state"> & { job?: string | null; agent?: string })[]; total: number }) {
  return (
    <ul class="task-links">
      {of.slice(0, MOST_LINKS).map((one) => (
        <li key={one.id}>
          <State of={one.state} /> <To page="tasks" of={one.id} /> <span class="quiet">{one.agent ?? one.job}</span>
        </li>
      ))}
      {total > Math.min(of.length, MOST_LINKS) && <li class="quiet">and {count(total - Math.min(of.length, MOST_LINKS))} more</li>}
    </ul>
  );
}

function Details({ of: task, own }: { of: TaskDetail; own: string | null }) {
  const tagged = (name: string, value: string | number) => <a href={withQuery("tasks", { filter: `${name}:${value}` })}>{value}</a>;
  return (
    <Section title="Details">
      <div class="card">
        <Facts>
          <Fact name="Priority">
            {task.priority}
            {task.counts_as !== null && task.counts_as !== task.priority && ` counts as ${task.counts_as}`}
            {task.rule && ` by rule ${task.rule}`}
          </Fact>
          <Fact name="Key">{task.key && tagged("key", task.key)}</Fact>
          <Fact name="Concurrency key">{task.concurrency_key && tagged("concurrency_key", task.concurrency_key)}</Fact>
          <Fact name="Tags">{task.tags.length > 0 && task.tags.map((tag) => <span key={tag}>{tagged("tag", tag)} </span>)}</Fact>
          <Fact name="Submitted by">{task.submitter}</Fact>
          <Fact name="Only on">{task.only_on && <To page="agents" of={task.only_on} />}</Fact>
          <Fact name="Start deadline">{task.expires_at && <Instant at={task.expires_at} own={own} />}</Fact>
          <Fact name="Timeout">{task.timeout !== null && span(task.timeout)}</Fact>
          <Fact name="Stalls after">{task.stalls_after !== null && span(task.stalls_after)}</Fact>
          <Fact name="Retries">{task.retries !== null && String(task.retries)}</Fact>
          <Fact name="If a parent fails">{task.on_parent_failure}</Fact>
          <Fact name="Namespace">{task.namespace !== "default" && task.namespace}</Fact>
        </Facts>
      </div>
    </Section>
  );
}
