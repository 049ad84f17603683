// The armed fleet: a dial for each agent, with what it is about to fire; small squares for many; a table for all.

import { useMemo, useRef, useState } from "preact/hooks";
import { act } from "../core/actions";
import { call } from "../core/api";
import { now, second } from "../core/clock";
import { go, link, query, setQuery, withQuery } from "../core/router";
import type { AgentView, SettingsView } from "../core/schema";
import { count, span } from "../core/time";
import { useGet } from "../core/query";
import { Amounts, Dials, Drain, hasLease, Skew } from "../parts/agents";
import { Action, Choice, Dialog } from "../parts/controls";
import { Empty, Loading, Page, Problem } from "../parts/page";
import { Instant, many, NONE, Span, State, To } from "../parts/show";
import { Table } from "../parts/table";
import type { Column } from "../parts/table";
import { hit, isStill } from "../pictures/dial";
import type { SceneCanvas } from "../pictures/dial";
import { order } from "../pictures/dial_scene";
import type { Sort, Watched } from "../pictures/dial_scene";
import { useFleet } from "../pictures/fleet_data";

const MOST_DIALS = 60; // beyond which squares are drawn, unless dials are asked for: then these are the first
const SORTS = [["name", "Name"], ["load", "Load"], ["skew", "Skew"], ["next", "Next fire"]] as const;
const VIEWS = [["dials", "Dials"], ["squares", "Squares"], ["table", "Table"]] as const;
type View = (typeof VIEWS)[number][0];

const inAddress = <T extends string>(name: string, of: readonly (readonly [T, string])[]): T | null => of.find(([one]) => one === query.value.get(name))?.[0] ?? null;

export default function FleetPage() {
  const [isSmall, setSmall] = useState(false); // squares need the next task only
  const fleet = useFleet(isSmall ? 3 : 20);
  const sort: Sort = inAddress("sort", SORTS) ?? "name";
  const agents = fleet.agents ?? [];
  const view: View = inAddress("view", VIEWS) ?? (agents.length > MOST_DIALS ? "squares" : "dials");
  if (isSmall !== (view === "squares")) setSmall(view === "squares");
  const [sortedAt, setSortedAt] = useState(0);
  const isKnown = agents.length > 0 && (sort !== "next" || fleet.isArmed);

  // the order is taken once: agents that come later stand at the end
  const places = useMemo(() => {
    const seen = agents.map(({ name }) => fleet.watched(name)).filter((one): one is Watched => one !== undefined);
    return new Map(order(seen, sort, now()).map((name, place) => [name, place]));
  }, [sort, sortedAt, isKnown]);
  const rows = [...agents].sort((one, other) => (places.get(one.name) ?? Infinity) - (places.get(other.name) ?? Infinity) || one.name.localeCompare(other.name, "en", { numeric: true }));

  return (
    <Page title="Fleet" remark={fleet.agents && <Summary agents={agents} watched={fleet.watched} />} actions={<Strategy />}>
      {fleet.refusal && <Problem refusal={fleet.refusal} retry={fleet.refresh} />}
      {fleet.agents === null ? (
        !fleet.refusal && <Loading />
      ) : !agents.length ? (
        <Empty title="Agents run tasks; none is connected." command="mainspring agent --server http://127.0.0.1:7070 --token-file token">
          A server that was started with <code>mainspring up</code> or <code>worker</code> has one of its own.
        </Empty>
      ) : (
        <>
          <div class="fleet-bar">
            <Choice label="View" of={VIEWS} value={view} set={(value) => setQuery({ view: value })} />
            <Choice
              label="Sort by"
              of={SORTS}
              value={sort}
              set={(value) => {
                setQuery({ sort: value === "name" ? null : value });
                setSortedAt(now());
              }}
            />
            {sort !== "name" && <span class="quiet">as of when it was pressed: nothing moves by itself</span>}
          </div>
          {view === "table" ? (
            <Table label="Agents" columns={columns(fleet.watched, fleet.refresh)} rows={rows} id={(agent) => agent.name} to={(agent) => link`agents/${agent.name}`} />
          ) : (
            <Picture rows={rows} watched={fleet.watched} isSmall={view === "squares"} refresh={fleet.refresh} />
          )}
        </>
      )}
    </Page>
  );
}

/** The tasks behind a number. */
const held = (state: string, agent?: string): string => withQuery("tasks", { filter: `${agent ? `agent:${agent} ` : ""}state:${state}` });

function Summary({ agents, watched }: { agents: AgentView[]; watched: (name: string) => Watched | undefined }) {
  const live = agents.filter(hasLease);
  const loads = live.map(({ name }) => watched(name)).filter((one): one is Watched => one !== undefined);
  const sum = (of: (one: Watched) => number) => loads.reduce((all, one) => all + of(one), 0);
  const nexts = loads.flatMap(({ tasks }) => tasks.filter(({ at }) => at > second.value).slice(0, 1));
  const next = nexts.length ? Math.min(...nexts.map(({ at }) => at)) : null;
  const lost = agents.length - live.length;
  return (
    <p class="figure">
      {many(live.length, "agent")}
      {lost > 0 && `, ${count(lost)} gone`} · <a href={held("running")}>{count(sum((one) => one.running))}</a> of {count(sum((one) => one.slots))} slots in use · <a href={held("assigned")}>{count(sum((one) => one.armed))}</a> armed
      {next !== null && ` · next fire in ${span(Math.max(0, Math.ceil((next - second.value) / 1000)))}`}
    </p>
  );
}

interface PictureProps {
  rows: AgentView[];
  watched: (name: string) => Watched | undefined;
  isSmall: boolean;
  refresh: () => void;
}

function Picture({ rows, watched, isSmall, refresh }: PictureProps) {
  const box = useRef<HTMLDivElement>(null);
  const [tip, setTip] = useState<{ x: number; y: number; text: string; task: number } | null>(null);
  const look = (event: MouseEvent) => {
    const canvas = box.current?.querySelector<SceneCanvas>("canvas");
    const found = canvas && box.current && !isSmall ? hit(canvas, box.current, event.clientX, event.clientY) : null;
    const where = box.current?.getBoundingClientRect();
    setTip(found && where ? { x: event.clientX - where.left, y: event.clientY - where.top, text: `${found.dot.job} in ${span(Math.max(0, found.dot.left))}`, task: found.dot.id } : null);
  };
  return (
    <div class={isSmall ? "squares" : "fleet"} ref={box} onMouseMove={look} onMouseLeave={() => setTip(null)} onClick={() => tip && go(link`tasks/${tip.task}`)} data-points={tip !== null}>
      {rows.slice(0, isSmall ? rows.length : MOST_DIALS).map((agent) => (isSmall ? <Square key={agent.name} agent={agent} load={watched(agent.name)} /> : <Card key={agent.name} agent={agent} load={watched(agent.name)} refresh={refresh} />))}
      <Dials read={watched} />
      {tip && (
        <span class="tip" style={{ left: `${tip.x}px`, top: `${tip.y}px` }}>
          {tip.text} <span class="quiet">task {tip.task}</span>
        </span>
      )}
      <p class="legend">
        {!isSmall && rows.length > MOST_DIALS && `The first ${MOST_DIALS} of ${count(rows.length)} in this order. `}
        {isSmall ? (
          <>A square fills with its load; a dot runs round its edge to the top, where the next task fires. Striped: draining. Cross: gone. Corner: its clock is wrong.</>
        ) : (
          <>Each dot is an armed task of the next 60 s and fires at twelve o'clock; marks inside started in the last minute. Ring: slots. Shade: how far ahead it is armed. Needle: its clock.</>
        )}
      </p>
    </div>
  );
}

/** The tasks that fire next: one while the dial moves, three with numbers where movement is not wanted. */
function Soon({ load }: { load: Watched }) {
  const coming = load.tasks.filter(({ at }) => at > second.value - 1000).slice(0, isStill() ? 3 : 1);
  return (
    <ul class={isStill() ? "soon still" : "soon"}>
      {coming.map(({ id, job, at }) => (
        <li key={id}>
          <a href={link`tasks/${id}`}>{job}</a>
          {isStill() && <span class="number">{Math.max(0, Math.ceil((at - second.value) / 1000))} s</span>}
        </li>
      ))}
      {!coming.length && <li class="none">{load.running ? "nothing armed" : "idle"}</li>}
    </ul>
  );
}

function Card({ agent, load, refresh }: { agent: AgentView; load: Watched | undefined; refresh: () => void }) {
  if (!load) return null;
  const isLive = hasLease(agent);
  const left = (load.leaseUntil - second.value) / 1000;
  return (
    <article class="agent-card" data-status={agent.status} aria-label={agent.name}>
      <header>
        <h2>
          <To page="agents" of={agent.name} />
        </h2>
        <State of={agent.status} />
      </header>
      <div class="dial" data-dial={agent.name} data-shape="dial" />
      {isLive ? <Soon load={load} /> : <p class="soon none">{left > 0 ? `its lease ends in ${span(Math.ceil(left))}` : <>last heard <Instant at={agent.heard_at} relative /></>}</p>}
      <p class="slots figure">
        <span>
          <a href={held("running", agent.name)}>{count(load.running)}</a> of {many(agent.slots, "slot")}
        </span>
        <span>
          <a href={held("assigned", agent.name)}>{count(load.armed)}</a> armed
        </span>
      </p>
      <Amounts agent={agent} />
      <footer>
        <span class="clocks figure" title="How far its clock is ahead of the database's; the round trip of a heartbeat">
          <span class="quiet">clock</span> <Skew seconds={agent.skew} /> <span class="quiet">· trip</span> <Span seconds={agent.round_trip} />
        </span>
        {isLive && <Drain agent={agent} then={refresh} kind="link" />}
      </footer>
    </article>
  );
}

function Square({ agent, load }: { agent: AgentView; load: Watched | undefined }) {
  const words = load ? `${agent.name}: ${agent.status}, ${load.running} of ${agent.slots} slots, ${load.armed} armed` : agent.name;
  return <a class="square" href={link`agents/${agent.name}`} data-dial={agent.name} data-shape="square" aria-label={words} title={words} />;
}

function columns(watched: (name: string) => Watched | undefined, refresh: () => void): Column<AgentView>[] {
  const load = (agent: AgentView) => watched(agent.name);
  return [
    { name: "Agent", cell: (agent) => <To page="agents" of={agent.name} /> },
    { name: "State", cell: (agent) => <State of={agent.status} /> },
    { name: "Runs", cell: (agent) => <><a href={held("running", agent.name)}>{count(load(agent)?.running ?? 0)}</a> of {count(agent.slots)}</>, align: "right" },
    { name: "Armed", cell: (agent) => <a href={held("assigned", agent.name)}>{count(load(agent)?.armed ?? 0)}</a>, align: "right", drop: 3 },
    {
      name: "Next fire",
      cell: (agent) => {
        const next = load(agent)?.tasks.find(({ at }) => at > second.value - 1000);
        return next ? (
          <>
            <a href={link`tasks/${next.id}`}>{next.job}</a> in {span(Math.max(0, Math.ceil((next.at - second.value) / 1000)))}
          </>
        ) : !hasLease(agent) && Date.parse(agent.lease_until) > second.value ? (
          <>
            its lease ends <Instant at={agent.lease_until} relative />
          </>
        ) : (
          NONE
        );
      },
      drop: 2,
    },
    { name: "Skew", cell: (agent) => <Skew seconds={agent.skew} />, align: "right", drop: 2 },
    { name: "Round trip", cell: (agent) => <Span seconds={agent.round_trip} />, align: "right", drop: 1 },
    { name: "Lead", cell: (agent) => <Span seconds={agent.lead} />, align: "right", drop: 1 },
    { name: "Amounts", cell: (agent) => <span class="quiet">{Object.entries(agent.offers).map(([name, offered]) => `${name} ${agent.used[name] ?? 0}/${offered}`).join(", ")}</span>, drop: 1 },
    { name: "Server", cell: (agent) => (agent.server ? <a href="cluster">{agent.server}</a> : NONE), drop: 1 },
    { name: "", label: "Actions", cell: (agent) => hasLease(agent) && <Drain agent={agent} then={refresh} kind="link" />, align: "right" },
  ];
}

const STRATEGIES = [
  ["round_robin", "One after another", "each agent that fits takes the next task in turn"],
  ["least_tasks", "Fewest tasks", "the agent that holds the fewest takes it"],
  ["resources", "Most room", "the agent whose scarcest resource, of CPU, memory and slots, is freest"],
  ["capability", "Best fit", "the agent that fits most tightly: special ones stay free for special jobs"],
] as const;

/** Which agent takes the next task: a setting of the whole cluster. */
function Strategy() {
  const settings = useGet("GET /settings");
  const [isOpen, setOpen] = useState(false);
  const detail = settings.data?.details.find(({ name }) => name === "placement");
  const value = settings.data?.placement ?? "default";
  const put = async (placement: string) => {
    const before = detail?.is_set ? value : null;
    await act("PATCH /settings", {
      body: { placement },
      said: () => `Tasks are placed by “${wordOf(placement)}” from now on; servers follow within seconds.`,
      undo: async () => {
        await call("PATCH /settings", {}, { placement: before } satisfies Partial<Record<keyof SettingsView, unknown>>);
        settings.refresh();
      },
      then: settings.refresh,
    });
    setOpen(false);
  };
  return (
    <>
      <Action needs="admin" run={() => setOpen(true)} refused={settings.data ? null : "the settings are not known yet"}>
        Placement: {wordOf(value)}
      </Action>
      {isOpen && (
        <Dialog title="Which agent takes the next task" close={() => setOpen(false)}>
          <ul class="strategies">
            {STRATEGIES.map(([name, word, what]) => (
              <li key={name}>
                <button type="button" class="strategy" aria-pressed={name === value} onClick={() => void put(name)}>
                  <b>{word}</b>
                  <span class="quiet">{what}</span>
                </button>
              </li>
            ))}
          </ul>
          <p class="hint">For jobs that choose no strategy of their own, among the agents that fit and have a free slot.</p>
        </Dialog>
      )}
    </>
  );
}

const wordOf = (strategy: string): string => (STRATEGIES.find(([name]) => name === strategy)?.[1] ?? strategy).toLowerCase();
