// One job: what it runs under which policies, who can run it, how it does, and what fails alike.

import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { policies, rateOf, runOf } from "../core/policies";
import { FAILURES } from "../core/states";
import { useGet } from "../core/query";
import type { Loaded } from "../core/query";
import { link,  } from "../core/router";
import type { Names } from "../core/router";
import type { JobView, ScheduleView, TaskSummary } from "../core/schema";
import { count, milliseconds, percent, span } from "../core/time";
import { Chart, useFigures, whole } from "../parts/chart";
import { Action,  } from "../parts/controls";
import { Failures } from "../parts/failures";
import { HoldDialog, HoldWords, release } from "../parts/hold";
import { OutcomeWords } from "../parts/outcomes";
import { Empty, Fact, Facts, Page, Problem, Section, Show } from "../parts/page";
import { Copy, Duration, Instant, Json, many, State, To } from "../parts/show";
import { Submit } from "../parts/submit";
import { Table } from "../parts/table";
import { tasksOf } from "./jobs";

const WITH_AGENTS = ["running", "assigned"];
const LAST_FAILED = 50; // failures that are grouped

export default function JobPage({ names: { name = "" } }: { names: Names }) {
  const job = useGet("GET /jobs/{name}", { name }, { topics: ["tasks"], every: 15 });
  const active = useGet("GET /tasks", { job: name, state: WITH_AGENTS, limit: 20 }, { topics: ["tasks"] });
  const [shows, setShows] = useState<"submit" | "hold" | null>(null);
  const found = job.data;
  const isHeld = Boolean(found?.held && !found.held.released_at);
  return (
    <Page
      title={name}
      trail={[["Jobs", "jobs"]]}
      remark={found?.definition.description}
      actions={
        found && (
          <>
            {isHeld ? (
              <Action needs="operator" run={() => release(name, job.refresh, false, found.held)}>Release</Action>
            ) : (
              <Action needs="operator" run={() => setShows("hold")}>Hold …</Action>
            )}
            <Action kind="main" needs="submitter" run={() => setShows("submit")}>Submit …</Action>
          </>
        )
      }
    >
      <Show of={job}>
        {(of) => (
          <>
            {of.held && (
              <p class="line warn">
                <HoldWords of={of.held} what={name} />
              </p>
            )}
            <Numbers of={of} active={active} />
            <Figures name={name} />
            <div class="columns">
              <Runs of={of} />
              <Section title="Policies">
                <Facts>
                  {policies(of.definition).map(([word, text]) => (
                    <Fact key={word} name={word}>{text}</Fact>
                  ))}
                </Facts>
              </Section>
            </div>
            <Active of={active} name={name} />
            <Failing name={name} />
            <Schedules name={name} />
          </>
        )}
      </Show>
      {shows === "submit" && found && <Submit job={found} close={() => setShows(null)} />}
      {shows === "hold" && <HoldDialog job={name} close={() => setShows(null)} done={job.refresh} />}
    </Page>
  );
}

/** A limit and what it holds now, as a bar with its words. */
function Used({ name, now: held, most, more }: { name: string; now: number | null; most: number; more?: ComponentChildren }) {
  return (
    <li>
      <span>{name}</span>
      <span class="used" aria-hidden="true">
        <span class={held !== null && held >= most ? "part-warn" : "part-busy"} style={{ width: `${Math.min(100, (100 * (held ?? 0)) / most)}%` }} />
      </span>
      <span class="number figure">
        {held === null ? "…" : count(held)} of {count(most)}
      </span>
      {more && <span class="quiet">{more}</span>}
    </li>
  );
}

/** What a limit per key holds; counted if the tasks that are listed are not all. */
function UsedKey({ job, value, now: held, most }: { job: string; value: string; now: number | null; most: number }) {
  const counted = useGet("GET /tasks/count", held === null ? { job, concurrency_key: value, state: WITH_AGENTS } : null, { topics: ["tasks"], keep: true });
  return <Used name={`Key ${value}`} now={held ?? counted.data?.count ?? null} most={most} />;
}

/** What it has to do now, its limits with what they hold, and the agents that can run it. */
function Numbers({ of, active }: { of: JobView; active: Loaded<{ items: TaskSummary[]; next: string | null }> }) {
  const { gate, max_queued } = of.definition;
  const held = useGet("GET /tasks/count", { job: of.name, state: WITH_AGENTS }, { topics: ["tasks"] }).data;
  const running = held && held.count;
  const more = held?.is_exact === false ? "+" : "";
  const keys = new Map<string, number>();
  for (const { concurrency_key: key } of active.data?.items ?? []) if (key) keys.set(key, (keys.get(key) ?? 0) + 1);
  const waiting = of.live === null || running === null ? null : Math.max(0, of.live - running);
  const rate = gate && rateOf(gate);
  return (
    <div class="columns">
      <Section title="Now">
        <Facts>
          <Fact name="Live tasks">
            {of.live === null ? "not counted" : <a class="figure" href={tasksOf(of.name, "state:blocked,pending,assigned,running")}>{of.live_is_estimated && "about "}{count(of.live)}</a>}
            {running !== null && <span class="quiet"> · {running}{more} with agents</span>}
          </Fact>
          <Fact name="Last ended">
            {of.last_ended ? (
              <>
                <Instant at={of.last_ended.at} relative /> <span class="quiet">· all that ended in the same {of.last_ended.within === 60 ? "minute" : "hour"}:</span>
                <OutcomeWords counts={of.last_ended.outcomes} to={(state) => tasksOf(of.name, `state:${state}`)} />
              </>
            ) : (
              "nothing has ended yet"
            )}
          </Fact>
          <Fact name="Able agents">
            <span class="stack">
              <span>
                {of.agents?.names.slice(0, 12).map((agent) => (
                  <a key={agent} class="chip" href={link`agents/${agent}`}>{agent}</a>
                ))}
                {(of.agents?.names.length ?? 0) > 12 && <span class="quiet"> and {(of.agents?.names.length ?? 0) - 12} more</span>}
                {of.agents?.names.length === 0 && "none"}
              </span>
              {of.agents?.wait && (
                <span class="tone-warn">
                  {of.agents.wait.what} {of.agents.wait.more && <span class="quiet">{of.agents.wait.more}</span>}
                </span>
              )}
            </span>
          </Fact>
        </Facts>
      </Section>
      <Section title="Limits">
        {gate || max_queued ? (
          <ul class="limits">
            {gate?.max_running && <Used name="Running at once" now={running} most={gate.max_running} />}
            {gate?.key &&
              gate.key_limit !== null &&
              (keys.size ? (
                [...keys].slice(0, 8).map(([key, held]) => <UsedKey key={key} job={of.name} value={key} now={active.data?.next ? null : held} most={gate.key_limit ?? 1} />)
              ) : (
                <li>
                  <span>
                    For each <code>{gate.key}</code>
                  </span>
                  <span class="number">{many(gate.key_limit ?? 1, "task")} at once</span>
                  <span class="quiet">none is held now</span>
                </li>
              ))}
            {rate && (
              <li>
                <span>Rate</span>
                <span>{rate}</span>
              </li>
            )}
            {max_queued && <Used name="Waiting" now={waiting} most={max_queued} more="beyond that submissions are refused" />}
          </ul>
        ) : (
          <p class="quiet">None: as many run at once as agents have slots.</p>
        )}
      </Section>
    </div>
  );
}

function Runs({ of }: { of: JobView }) {
  const { run } = of.definition;
  return (
    <Section title="Runs">
      <p class="what-runs">
        <code>{runOf(of.definition)}</code>
        <Copy text={runOf(of.definition)} />
      </p>
      <Facts>
        <Fact name="Kind">{run.type === "python" ? "a handler of an application" : run.type === "http" ? "an HTTP call" : run.shell ? "a command, in a shell" : "a command"}</Fact>
        {run.type === "command" && (
          <>
            <Fact name="Directory">{run.cwd}</Fact>
            <Fact name="User">{run.user}</Fact>
            <Fact name="Environment">{run.env && Object.keys(run.env).length > 0 && <Json of={run.env} />}</Fact>
          </>
        )}
        {run.type === "http" && (
          <>
            <Fact name="Headers">{run.headers && Object.keys(run.headers).length > 0 && <Json of={run.headers} />}</Fact>
            <Fact name="Expects">{run.expect?.join(", ") ?? "any 2xx"}</Fact>
          </>
        )}
        {run.type === "python" && (
          <Fact name="Arguments">
            {run.arguments?.length ? run.arguments.map(({ name, type, required }) => `${name}${required ? "" : "?"}${type && type !== "any" ? `: ${type}` : ""}`).join(", ") : "none that are known"}
          </Fact>
        )}
        <Fact name="Version">{of.version}</Fact>
      </Facts>
    </Section>
  );
}

function Figures({ name }: { name: string }) {
  const { found, switches, asTable } = useFigures(name);
  const points = found.data?.points ?? [];
  const failed = points.map(({ ended }) => FAILURES.reduce((sum, state) => sum + (ended[state] ?? 0), 0));
  const well = points.map(({ ended }, place) => Object.values(ended).reduce((sum, one) => sum + one, 0) - (failed[place] ?? 0));
  const total = (of: number[]) => of.reduce((sum, one) => sum + one, 0);
  const ended = total(well) + total(failed);
  const over = found.data && !asTable ? whole(found.data) : points;
  const ms = (of: "p50" | "p99") => over.map(({ duration }) => (duration ? duration[of] * 1000 : null));
  const given = { at: over.map(({ at }) => Date.parse(at) / 1000), asTable };
  const drawn = (values: number[]) => values.slice(0, over.length);
  return (
    <Section title="Figures" aside={switches}>
      <Show of={found}>
        {() =>
          ended ? (
            <>
              <p class="figure">
                <strong>{many(ended, "task")}</strong> ended, {total(failed) ? <a href={tasksOf(name, `state:${FAILURES.join()}`)}>{count(total(failed))} failed</a> : "none failed"} ({percent(total(well) / ended)} well)
              </p>
              <div class="charts">
                <Chart title={`Ended, in ${span(found.data?.step ?? 60)} each`} {...given} lines={[{ name: "well", tone: "good", values: drawn(well), fill: true }, { name: "failed", tone: "bad", values: drawn(failed), fill: true }]} />
                <Chart title="Duration" {...given} format={milliseconds} lines={[{ name: "p50", tone: "busy", values: ms("p50") }, { name: "p99", tone: "warn", values: ms("p99"), dash: true }]} />
              </div>
            </>
          ) : (
            <p class="quiet">Nothing ended in this time.</p>
          )
        }
      </Show>
    </Section>
  );
}

function Active({ of, name }: { of: Loaded<{ items: TaskSummary[]; next: string | null }>; name: string }) {
  return (
    <Section title="Running" aside={of.data?.next && <a href={tasksOf(name, "state:running,assigned")}>all that run</a>}>
      {of.refusal && <Problem refusal={of.refusal} retry={of.refresh} />}
      <Table
        label="Running tasks"
        rows={of.data?.items ?? []}
        id={(task) => task.id}
        to={(task) => link`tasks/${task.id}`}
        columns={[
          { name: "Task", cell: (task) => <To page="tasks" of={task.id} /> },
          { name: "State", cell: (task) => <State of={task.state} /> },
          { name: "Started", cell: (task) => <Instant at={task.started_at} />, drop: 2 },
          { name: "For", align: "right", cell: (task) => <Duration from={task.started_at} to={task.finished_at} /> },
          { name: "Agent", cell: (task) => <To page="agents" of={task.agent} />, drop: 3 },
          { name: "Key", cell: (task) => <span class="quiet">{task.concurrency_key ?? ""}</span>, drop: 1 },
        ]}
        empty={<p class="quiet">{of.data ? "No task of it runs now." : "Loading …"}</p>}
      />
    </Section>
  );
}

function Failing({ name }: { name: string }) {
  const found = useGet("GET /tasks", { job: name, state: FAILURES, fields: "all", limit: LAST_FAILED }, { every: 10 });
  return (
    <Section title="Failing" aside={<a href={tasksOf(name, `state:${FAILURES.join()}`)}>all that failed</a>}>
      <Show of={found}>
        {({ items, next }) =>
          items.length ? (
            <>
              <Failures tasks={items} />
              {next && <p class="table-note">of the last {LAST_FAILED} failures</p>}
            </>
          ) : (
            <p class="quiet">No task of it has failed, as far back as tasks are kept.</p>
          )
        }
      </Show>
    </Section>
  );
}

function Schedules({ name }: { name: string }) {
  const found = useGet("GET /schedules", { job: name, limit: 20 }, { topics: ["schedules"] });
  return (
    <Section title="Schedules" aside={found.data?.next && <a href={`schedules?job=${encodeURIComponent(name)}`}>all of them</a>}>
      <Show of={found}>
        {({ items }) => (
          <Table<ScheduleView>
            label="Schedules of this job"
            rows={items}
            id={(one) => one.name}
            to={(one) => link`schedules/${one.name}`}
            columns={[
              { name: "Schedule", cell: (one) => <To page="schedules" of={one.name} /> },
              { name: "When", cell: (one) => one.words, drop: 2 },
              { name: "Next", cell: (one) => <Instant at={one.next} own={one.timezone} relative /> },
              { name: "State", cell: (one) => <State of={one.state} />, drop: 3 },
            ]}
            empty={
              <Empty title="Nothing plans it: it runs when somebody submits a task." command={`mainspring schedule create ${name}-daily ${name} --daily 09:00 --enable`} />
            }
          />
        )}
      </Show>
    </Section>
  );
}
