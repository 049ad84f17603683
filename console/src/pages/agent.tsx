// One agent: its dial, what it runs, how well it is connected, and how its sessions ended.

import { second } from "../core/clock";
import { useList } from "../core/list";
import { useGet } from "../core/query";
import { link, withQuery } from "../core/router";
import type { AgentSession, AgentView, TaskSummary } from "../core/schema";
import { count, percent, span } from "../core/time";
import { Amounts, Bar, Dials, Drain, hasLease, Skew } from "../parts/agents";
import { Fact, Facts, Page, Problem, Section, Show } from "../parts/page";
import { Duration, Instant, Lateness, NONE, Span, State, To } from "../parts/show";
import { ListTable, Table } from "../parts/table";
import type { Column } from "../parts/table";
import { useFleet } from "../pictures/fleet_data";

export default function AgentPage({ names }: { names: { name?: string } }) {
  const name = names.name ?? "";
  const fleet = useFleet(100, name);
  const agent = fleet.agents?.[0];
  const tasks = useGet("GET /tasks", { agent: name, state: ["running", "assigned"], fields: "all", limit: 100 }, { topics: ["tasks"], every: 5 });
  const ran = withQuery("tasks", { filter: `agent:${name}` });
  return (
    <Page
      title={name}
      trail={[["Fleet", "agents"]]}
      remark={
        agent && (
          <>
            <State of={agent.status} />
            {agent.draining_since && (
              <>
                {" "}
                since <Instant at={agent.draining_since} />
              </>
            )}
          </>
        )
      }
      actions={agent && hasLease(agent) && <Drain agent={agent} then={fleet.refresh} />}
    >
      {fleet.refusal && <Problem refusal={fleet.refusal} retry={fleet.refresh} />}
      {agent && (
        <div class="agent-top">
          <div class="card lone-dial">
            <div class="dial" data-dial={name} data-shape="dial" role="img" aria-label={`${agent.running} of ${agent.slots} slots in use`} />
            <Dials read={fleet.watched} />
          </div>
          <About agent={agent} />
        </div>
      )}
      <Section title="Runs and is armed with" aside={<a href={ran}>all tasks that ran here</a>}>
        <Show of={tasks}>
          {(page) => (
            <Table
              label="Tasks that it holds"
              columns={held}
              rows={page.items}
              id={(task) => task.id}
              to={(task) => link`tasks/${task.id}`}
              empty={
                <p class="quiet">
                  It holds no task now. <a href={ran}>What ran here last</a>
                </p>
              }
            />
          )}
        </Show>
      </Section>
      <Sessions name={name} />
    </Page>
  );
}

function About({ agent }: { agent: AgentView }) {
  const left = (Date.parse(agent.lease_until) - second.value) / 1000;
  const labels = Object.entries(agent.labels);
  return (
    <div class="agent-facts">
      <Facts>
        <Fact name="Slots">
          {count(agent.running)} of {count(agent.slots)} run
        </Fact>
        <Fact name="Lead">
          {agent.lead !== null && (
            <span title="How long before its time a task is armed here">
              <Span seconds={agent.lead} /> ahead
            </span>
          )}
        </Fact>
        <Fact name="Clock">
          <Skew seconds={agent.skew} /> <span class="quiet">against the database's</span>
        </Fact>
        <Fact name="Round trip">
          <Span seconds={agent.round_trip} />
        </Fact>
        <Fact name="Acknowledges">
          {agent.ack_time !== null && (
            <>
              within <Span seconds={agent.ack_time} />
            </>
          )}
        </Fact>
        <Fact name="Reliability">{agent.reliability !== null && <span title="Share of frames that arrived at the first try">{percent(agent.reliability)}</span>}</Fact>
        <Fact name="CPU, memory">{agent.cpu !== null && `${percent(agent.cpu, 0)}, ${percent(agent.memory ?? 0, 0)} in use`}</Fact>
      </Facts>
      <div>
        <Facts>
          <Fact name="Connected">
            <Instant at={agent.connected_at} relative />
          </Fact>
          <Fact name="Server">{agent.server && <a href="cluster">{agent.server}</a>}</Fact>
          <Fact name="Last heard">
            <Instant at={agent.heard_at} relative />
          </Fact>
          <Fact name="Lease">{left > 0 ? `ends in ${span(Math.ceil(left))} unless renewed` : "over"}</Fact>
          <Fact name="Host">{agent.host}</Fact>
          <Fact name="Version">{agent.version}</Fact>
          <Fact name="Labels">
            {labels.length > 0 && (
              <span class="chips">
                {labels.map(([label, value]) => (
                  <span key={label} class="chip">
                    {label}={value}
                  </span>
                ))}
              </span>
            )}
          </Fact>
        </Facts>
        <Amounts agent={agent} />
      </div>
    </div>
  );
}

const held: Column<TaskSummary>[] = [
  { name: "Task", cell: (task) => <To page="tasks" of={task.id} /> },
  { name: "Job", cell: (task) => <To page="jobs" of={task.job} /> },
  { name: "State", cell: (task) => <State of={task.state} />, drop: 3 },
  { name: "Due", cell: (task) => <Instant at={task.run_at} />, drop: 2 },
  { name: "Late", cell: (task) => <Lateness ms={task.lateness_ms} />, align: "right", drop: 2 },
  { name: "Runs for", cell: (task) => <Duration from={task.started_at} to={null} />, align: "right" },
  { name: "Progress", cell: (task) => <Progress of={task.progress} />, drop: 3 },
];

/** A share, or done of so many, as a bar; anything else in its own words. */
function Progress({ of }: { of: unknown }) {
  if (of === null || of === undefined) return NONE;
  const told = of as { done?: unknown; of?: unknown; total?: unknown };
  const all = Number(told.of ?? told.total);
  const share = typeof of === "number" && of <= 1 ? of : Number(told.done) / all;
  if (!Number.isFinite(share)) return <span class="quiet">{typeof of === "string" ? of : JSON.stringify(of)}</span>;
  return (
    <span class="progress">
      <Bar share={share} />
      <span class="number">{typeof of === "number" ? percent(share, 0) : `${count(Number(told.done))} of ${count(all)}`}</span>
    </span>
  );
}

const ENDS: Record<string, string> = {
  resumed: "it connected again, and went on",
  stopped: "it left, and held nothing",
  lost: "its lease expired",
  disconnected: "its connection is gone, its lease runs",
};

const sessionColumns: Column<AgentSession>[] = [
  { name: "Session", cell: (one) => one.session },
  { name: "State", cell: (one) => <State of={one.status} /> },
  { name: "Why it ended", cell: (one) => <span class="quiet">{ENDS[one.status] ?? ""}{one.successor ? ` in session ${one.successor}` : ""}</span>, drop: 3 },
  { name: "Connected", cell: (one) => <Instant at={one.connected_at} />, drop: 2 },
  { name: "Lasted", cell: (one) => <Duration from={one.connected_at} to={one.ended_at} />, align: "right" },
  { name: "Reliability", cell: (one) => (one.reliability === null ? NONE : percent(one.reliability)), align: "right", drop: 2 },
  { name: "Round trip", cell: (one) => <Span seconds={one.round_trip} />, align: "right", drop: 1 },
  { name: "Skew", cell: (one) => <Skew seconds={one.skew} />, align: "right", drop: 1 },
  { name: "Blocked", cell: (one) => (one.blocked ? `${count(one.blocked)} times` : NONE), align: "right", drop: 1 },
  { name: "Server", cell: (one) => one.server ?? NONE, drop: 1 },
];

function Sessions({ name }: { name: string }) {
  const list = useList("GET /agents/{name}/sessions", { name, limit: 50 }, (one) => one.session);
  const known = list.rows.filter((one) => one.reliability !== null).reverse();
  return (
    <Section title="Sessions" aside="each connection is one; with the figures of its last heartbeat">
      {known.length > 1 && (
        <>
        <p class="hint">Reliability of the last {known.length} sessions, the newest at the right: how much arrived at the first try.</p>
        <div class="reliability" role="img" aria-label="Reliability of each session">
          {known.map((one) => (
            <span key={one.session} class={(one.reliability ?? 1) < 0.9 ? "tone-warn" : ""} style={{ height: `${100 * (one.reliability ?? 0)}%` }} title={`session ${one.session}: ${percent(one.reliability ?? 0)} arrived at the first try`} />
          ))}
        </div>
        </>
      )}
      <ListTable label="Sessions" columns={sessionColumns} list={list} empty={<p class="quiet">None is kept.</p>} />
    </Section>
  );
}
