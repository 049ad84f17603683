// The cluster: servers with their leases, who owns which segment and how that moved, and PostgreSQL under it.

import { useEffect, useRef, useState } from "preact/hooks";
import { now, second } from "../core/clock";
import { useLive } from "../core/live";
import { useGet } from "../core/query";
import { query, setQuery } from "../core/router";
import type { Application, ChoreView, MoveView, OpenTransaction, PostgresqlView, SegmentView, ServerView, Stats, TableView } from "../core/schema";
import { count, percent, span } from "../core/time";
import { Bar } from "../parts/agents";
import { Switch } from "../parts/controls";
import { Fact, Facts, Loading, Page, Section, Show } from "../parts/page";
import { Instant, many, NONE, Span, State } from "../parts/show";
import { Table } from "../parts/table";
import type { Column } from "../parts/table";
import { isStill } from "../pictures/dial";
import { badges, ownersAt, ownersNow, SPAN } from "../pictures/segment_map";
import type { Badge } from "../pictures/segment_map";

const isServing = ({ status }: ServerView) => status === "active" || status === "draining";

export default function Cluster() {
  const servers = useGet("GET /servers", { limit: 200 }, { topics: ["servers"], every: 3 });
  const moves = useGet("GET /segments/moves", { limit: 500 }, { topics: ["servers"], every: 15 });
  const serving = servers.data?.items.filter(isServing) ?? [];
  const leader = serving.find(({ leadership }) => leadership);
  return (
    <Page
      title="Cluster"
      remark={
        servers.data && (
          <span class="figure">
            {many(serving.length, "server")} · {leader ? `${leader.name} leads, term ${leader.leadership?.term}` : "no leader: one is being elected"}
          </span>
        )
      }
    >
      <Section title="Servers">
        <Show of={servers}>
          {({ items }) => (
            <div class="servers">
              {items.map((one) => (
                <Server key={one.id} server={one} />
              ))}
            </div>
          )}
        </Show>
      </Section>
      <Show of={servers}>{({ items }) => <Show of={moves}>{(found) => <Segments servers={items} moves={found.items} />}</Show>}</Show>
      <Postgresql />
      <Upkeep />
    </Page>
  );
}

function Server({ server }: { server: ServerView }) {
  const length = Math.max(1, (Date.parse(server.lease_until) - Date.parse(server.heartbeat_at)) / 1000);
  const left = (Date.parse(server.lease_until) - Math.max(second.value, now())) / 1000;
  const isUp = isServing(server);
  return (
    <article class="card server" aria-label={server.name}>
      <header>
        <h3>{server.name}</h3>
        <State of={server.status} />
      </header>
      {isUp && (
        <p class="lease figure">
          <span>
            <span class="quiet">lease</span>
            <span class="number">{left > 0 ? `${Math.ceil(left)} s left` : "over"}</span>
          </span>
          <Bar share={left / length} tone={left < length / 3 ? "warn" : "busy"} />
        </p>
      )}
      <Facts>
        <Fact name="Leads">
          {server.leadership && (
            <>
              term {server.leadership.term}, since <Instant at={server.leadership.since} />
            </>
          )}
        </Fact>
        <Fact name="Ended">{server.ended_at && <Instant at={server.ended_at} />}</Fact>
        <Fact name="Segments">{isUp && many(server.segments.length, "segment")}</Fact>
        <Fact name="Agents">{isUp && <a href="agents">{many(server.agents, "agent")}</a>}</Fact>
        <Fact name="Planner">
          {server.scan_seconds !== null && (
            <>
              last scan took <Span seconds={server.scan_seconds} />
              {isUp && server.scanned_at && (
                <>
                  , <Instant at={server.scanned_at} relative />
                </>
              )}
            </>
          )}
        </Fact>
        <Fact name="Claim">{server.claim_seconds !== null && <Span seconds={server.claim_seconds} />}</Fact>
        <Fact name="Since start">{`${count(server.planned)} planned, ${count(server.dispatched)} dispatched, ${count(server.recorded)} recorded`}</Fact>
        <Fact name="Up for">
          <Span seconds={server.uptime} />
        </Fact>
        <Fact name="Version">
          {server.version} on {server.host}
        </Fact>
      </Facts>
    </article>
  );
}

// ── segments ──────────────────────────────────────────────────────────────────────────────────────────

function Segments({ servers, moves }: { servers: ServerView[]; moves: MoveView[] }) {
  const isTable = query.value.get("segments") === "table";
  const chosen = query.value.get("owner");
  const given = Date.parse(query.value.get("at") ?? "");
  const at = Number.isFinite(given) ? given : null;
  const known = new Map<string, string>();
  for (const { id, name } of servers) known.set(id, name);
  for (const move of moves) for (const [id, name] of [[move.old_owner, move.old_name], [move.new_owner, move.new_name]] as const) if (id && !known.has(id)) known.set(id, name ?? id.slice(0, 8));
  const letters = useRef(new Set<string>()); // one that comes or goes changes no letter of another
  for (const id of known.keys()) letters.current.add(id);
  const marks = badges([...letters.current]);
  const present = ownersNow(servers);
  const { owners, moved } = at === null ? { owners: present, moved: new Set<number>() } : ownersAt(present, moves, at);
  const counts = new Map<string | null, number>();
  for (const owner of owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
  const aside = (
    <Switch label="Segments as" name="segments" of={[["map", "Map"], ["table", "Table"]]} />
  );
  return (
    <Section title="Segments" aside={aside}>
      {isTable ? (
        <SegmentTable />
      ) : (
        <div class="segment-map">
          <div>
            <ol class="segments figure" aria-label="Owners of the segments">
              {owners.map((owner, segment) => (
                <Cell key={segment} segment={segment} badge={owner ? marks.get(owner) : undefined} name={owner ? known.get(owner) : undefined} isDim={chosen !== null && owner !== chosen} hasMoved={moved.has(segment)} />
              ))}
            </ol>
            <Replay moves={moves} at={at} />
          </div>
          <div>
            <ul class="owners" aria-label="Servers and how many segments they own">
              {[...counts].sort(([, one], [, other]) => other - one).map(([owner, segments]) => (
                <li key={owner ?? "none"}>
                  <button type="button" aria-pressed={chosen === owner && owner !== null} onClick={() => setQuery({ owner: chosen === owner ? null : owner })}>
                    <span class={`segment ${owner ? marks.get(owner)?.style : "owner-none"}`} aria-hidden="true">
                      {owner ? marks.get(owner)?.letter : "–"}
                    </span>
                    <span>{owner ? known.get(owner) : "no owner"}</span>
                    <span class="number">{many(segments, "segment")}</span>
                  </button>
                </li>
              ))}
            </ul>
            <Moves moves={moves} />
          </div>
        </div>
      )}
    </Section>
  );
}

function Cell({ segment, badge, name, isDim, hasMoved }: { segment: number; badge: Badge | undefined; name: string | undefined; isDim: boolean; hasMoved: boolean }) {
  const words = `segment ${segment}: ${name ?? "no owner"}${hasMoved ? ", has just moved" : ""}`;
  return (
    <li class={["segment", badge?.style ?? "owner-none", isDim && "dim", hasMoved && "moved"].filter(Boolean).join(" ")} title={words}>
      <span aria-hidden="true">{badge?.letter ?? "–"}</span>
      <span class="hidden">{words}</span>
    </li>
  );
}

const STEP = 10_000; // ms of the slider
const PLAYED_IN = 12_000; // ms that the whole hour takes

/** The last hour by slider or played; without movement it steps from move to move. */
function Replay({ moves, at }: { moves: MoveView[]; at: number | null }) {
  const [isPlaying, setPlaying] = useState(false);
  const end = Math.floor(second.value / STEP) * STEP;
  const start = end - SPAN;
  const set = (value: number) => setQuery({ at: value >= end ? null : new Date(value).toISOString() });
  useEffect(() => {
    if (!isPlaying) return undefined;
    let place = at !== null && at < end - STEP ? at : start;
    const times = moves.map((move) => Date.parse(move.at)).filter((time) => time > place).reverse();
    const timer = setInterval(() => {
      place = isStill() ? (times.shift() ?? end) : place + SPAN / (PLAYED_IN / 100);
      set(place);
      if (place >= end) setPlaying(false);
    }, isStill() ? 1000 : 100);
    return () => clearInterval(timer);
  }, [isPlaying]);
  const hour = moves.filter((move) => Date.parse(move.at) >= start).length;
  return (
    <div class="replay">
      <button type="button" class="button" aria-pressed={isPlaying} onClick={() => setPlaying(!isPlaying)}>
        {isPlaying ? "Pause" : "Play"}
      </button>
      <input type="range" aria-label="Moves of the last hour, replayed" aria-valuetext={at === null ? "now" : `${span((end - at) / 1000)} ago`} min={start} max={end} step={STEP} value={at ?? end} onInput={(event) => (setPlaying(false), set(Number(event.currentTarget.value)))} />
      <span class="number">{at === null ? "now" : <Instant at={at} />}</span>
      <span class="hidden" role="status">
        {many(hour, "move")} in the last hour
      </span>
    </div>
  );
}

const REASONS: Record<string, string> = { free: "it had no owner", dead: "its owner died", stopped: "its owner stopped", balance: "to share them evenly", released: "its owner gave it back" };

function Moves({ moves }: { moves: MoveView[] }) {
  if (!moves.length) return <p class="quiet">No segment has moved yet.</p>;
  const columns: Column<MoveView>[] = [
    { name: "Moved", cell: (move) => <button type="button" class="link" title="Show the map as it was then" onClick={() => setQuery({ at: move.at })}><Instant at={move.at} /></button> },
    { name: "Segments", cell: (move) => many(move.segments.length, "segment") },
    { name: "From", cell: (move) => (move.old_owner ? (move.old_name ?? move.old_owner.slice(0, 8)) : <span class="none">none</span>), drop: 3 },
    { name: "To", cell: (move) => (move.new_owner ? (move.new_name ?? move.new_owner.slice(0, 8)) : <span class="none">none</span>) },
    { name: "Why", cell: (move) => <span class="quiet">{REASONS[move.reason] ?? move.reason}</span>, drop: 2 },
  ];
  return <Table label="The last moves" columns={columns} rows={moves.slice(0, 10)} id={(move) => `${move.at} ${move.segments[0]} ${move.reason}`} />;
}

/** With their loads, which are counted when it is opened. */
function SegmentTable() {
  const found = useGet("GET /segments");
  const columns: Column<SegmentView>[] = [
    { name: "Segment", cell: (one) => one.id, align: "right" },
    { name: "Owner", cell: (one) => one.owner_name ?? <span class="late">{one.problem ?? "none"}</span> },
    { name: "Since", cell: (one) => <Instant at={one.since} />, drop: 2 },
    { name: "Schedules", cell: (one) => count(one.schedules), align: "right" },
    { name: "Due", cell: (one) => count(one.due), align: "right", drop: 3 },
    { name: "Waiting", cell: (one) => count(one.waiting), align: "right", drop: 2 },
    { name: "Armed", cell: (one) => count(one.armed), align: "right", drop: 2 },
    { name: "Running", cell: (one) => count(one.running), align: "right", drop: 3 },
  ];
  return (
    <Show of={found}>
      {(page) => (
        <>
          <Table label="Segments" columns={columns} rows={page.items} id={(one) => one.id} />
          <p class="table-note">
            {page.items.some((one) => one.is_estimated) ? "estimated" : "counted"} when this table was opened
            <button type="button" class="link" onClick={found.refresh}>
              count again
            </button>
          </p>
        </>
      )}
    </Show>
  );
}

// ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────────

function Postgresql() {
  const found = useGet("GET /postgresql", {}, { every: 5 });
  return (
    <Section title="PostgreSQL" aside={found.data && <span>version {found.data.version}, up since <Instant at={found.data.started_at} date="always" /></span>}>
      <Show of={found}>
        {(postgresql) => (
          <>
            <Connections of={postgresql} />
            <div class="columns">
              <Section title="Oldest transactions">
                <Table label="Oldest transactions" columns={transactions} rows={postgresql.transactions.filter(({ age }) => age >= 1)} id={(one) => `${one.process} ${one.name}`} empty={<p class="quiet">None has been open for a second.</p>} />
                {!postgresql.sees_all && <p class="hint">The server's role sees its own; the rest needs pg_read_all_stats.</p>}
              </Section>
              <Section title="Connections by application">
                <Table label="Connections by application" columns={applications} rows={postgresql.applications} id={(one) => one.name} />
              </Section>
            </div>
          </>
        )}
      </Show>
    </Section>
  );
}

function Connections({ of }: { of: PostgresqlView }) {
  const share = of.connections / of.max_connections;
  return (
    <div class="connections figure">
      <span>
        <b>{count(of.connections)}</b> of {count(of.max_connections)} connections, {count(of.here)} of them to this database
      </span>
      <Bar share={share} tone={share > 0.8 ? "bad" : "busy"} />
    </div>
  );
}

const transactions: Column<OpenTransaction>[] = [
  { name: "Application", cell: (one) => one.name || <span class="none">no name</span> },
  { name: "Open for", cell: (one) => <span class={one.age > 300 ? "number late" : "number"}>{span(one.age)}</span>, align: "right" },
  { name: "State", cell: (one) => `${one.state}${one.waits_for ? `, waits for ${one.waits_for}` : ""}` },
  { name: "User", cell: (one) => one.user, drop: 2 },
  { name: "Process", cell: (one) => one.process ?? NONE, align: "right", drop: 3 },
];
const applications: Column<Application>[] = [
  { name: "Application", cell: (one) => one.name || <span class="none">no name</span> },
  { name: "Connections", cell: (one) => count(one.connections), align: "right" },
  { name: "Active", cell: (one) => count(one.active), align: "right", drop: 3 },
  { name: "Idle in transaction", cell: (one) => count(one.idle_in_transaction), align: "right", drop: 3 },
];

/** Dead rows and chores: they come with the stream. */
function Upkeep() {
  const [heard, setHeard] = useState<Stats | null>(null);
  useLive(["stats"], (event) => event.topic === "stats" && setHeard(event.data as Stats));
  const first = useGet("GET /stats");
  const stats = heard ?? first.data;
  return (
    <div class="columns">
      <Section title="Dead rows">{stats ? <Table label="Dead rows of the busy tables" columns={tables} rows={stats.tables} id={(one) => one.table} /> : <Loading />}</Section>
      {stats && <Chores of={stats.maintenance} />}
    </div>
  );
}

/** Those that fail; all on demand. */
function Chores({ of }: { of: ChoreView[] }) {
  const isAll = query.value.get("chores") === "all";
  const failing = of.filter(({ last_error }) => last_error !== null);
  const aside = (
    <button type="button" class="link" onClick={() => setQuery({ chores: isAll ? null : "all" })}>
      {isAll ? "only those that fail" : `show all ${count(of.length)}`}
    </button>
  );
  const quiet = of.length ? `${many(of.length, "chore")} run by themselves, and none fails.` : "No chore has run yet.";
  return (
    <Section title="Chores" aside={of.length > 0 && aside}>
      <Table label="Chores" columns={chores} rows={isAll ? of : failing} id={(one) => one.name} empty={<p class="quiet">{quiet}</p>} />
    </Section>
  );
}

const tables: Column<TableView>[] = [
  { name: "Table", cell: (one) => one.table },
  { name: "Dead", cell: (one) => count(one.dead), align: "right" },
  { name: "Live", cell: (one) => count(one.live), align: "right" },
  { name: "Updates in page", cell: (one) => (one.in_page === null ? NONE : percent(one.in_page, 0)), align: "right", drop: 3 },
  { name: "Vacuumed", cell: (one) => <Instant at={one.vacuumed_at} relative />, align: "right", drop: 2 },
];
const chores: Column<ChoreView>[] = [
  { name: "Chore", cell: (one) => one.name },
  { name: "Last", cell: (one) => <Instant at={one.last_at} relative />, align: "right" },
  { name: "Took", cell: (one) => <Span seconds={one.last_seconds} />, align: "right", drop: 3 },
  { name: "Rows", cell: (one) => count(one.rows), align: "right", drop: 2 },
  { name: "Failures", cell: (one) => (one.failures ? <span class="late" title={one.last_error ?? undefined}>{count(one.failures)}</span> : "0"), align: "right" },
];
