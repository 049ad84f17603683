// Daemons: what is kept running. A lamp for each replica; the open one, which is in the address, tells where and why.

import { useState } from "preact/hooks";
import { act } from "../core/actions";
import type { Act } from "../core/actions";
import { call } from "../core/api";
import type { Name } from "../core/api";
import { useGet } from "../core/query";
import { link, query, setQuery } from "../core/router";
import type { Daemon, Replica } from "../core/schema";
import { lookOf } from "../core/states";
import { count } from "../core/time";
import { Action, Confirm, Switch } from "../parts/controls";
import { Glyph, Icon } from "../parts/icons";
import { Empty, Loading, Page, Problem } from "../parts/page";
import { Instant, many, State, To } from "../parts/show";
import { Table } from "../parts/table";
import type { Column } from "../parts/table";

const MOST = 500; // that are shown
const FLAPS = 3; // restarts from which one that waits counts as flapping

/** In one word: outdated before up, flapping before waiting. */
export function lampOf(replica: Replica): string {
  if (replica.state === "running") return replica.outdated ? "outdated" : replica.healthy === false ? "unhealthy" : "up";
  return replica.state === "waiting" && replica.restarts >= FLAPS ? "flapping" : replica.state;
}

function Lamps({ of }: { of: Daemon }) {
  return (
    <ul class="lamps" aria-label={`Replicas of ${of.name}`}>
      {of.replicas.map((replica) => {
        const look = lookOf(lampOf(replica));
        const words = `${replica.number}: ${look.word}${replica.agent ? ` on ${replica.agent}` : ""}`;
        return (
          <li key={replica.number} class={`lamp tone-${look.tone}`} title={words}>
            <Glyph name={look.glyph} />
            <span class="hidden">{words}</span>
          </li>
        );
      })}
    </ul>
  );
}

/** Those that are not up, in words: "2 flapping". */
function NotUp({ of }: { of: Daemon }) {
  const counts = new Map<string, number>();
  for (const lamp of of.replicas.map(lampOf)) if (lamp !== "up") counts.set(lamp, (counts.get(lamp) ?? 0) + 1);
  return (
    <>
      {[...counts].map(([lamp, number]) => (
        <span key={lamp} class={`figure tone-${lookOf(lamp).tone}`}>
          {count(number)} {lookOf(lamp).word}
        </span>
      ))}
    </>
  );
}

export default function Daemons() {
  const found = useGet("GET /daemons", { limit: MOST }, { topics: ["tasks", "schedules", "agents"], every: 5 });
  const isTable = query.value.get("view") === "table";
  // those that were there stay where they are; new ones wait
  const [known, setKnown] = useState<ReadonlySet<string> | null>(null);
  const items = found.data?.items ?? [];
  if (!known && found.data) setKnown(new Set(items.map(({ name }) => name)));
  const rows = items.filter(({ name }) => known?.has(name));
  const came = known ? items.length - rows.length : 0;
  const up = rows.reduce((all, one) => all + one.up, 0);
  const wanted = rows.reduce((all, one) => all + one.wanted, 0);
  const open = query.value.get("name");
  return (
    <Page
      title="Daemons"
      remark={rows.length > 0 && <span class="figure">{`${many(rows.length, "daemon")} · ${count(up)} of ${many(wanted, "replica")} up`}</span>}
      actions={rows.length > 0 && <Switch label="View" name="view" of={[["lamps", "Lamps"], ["table", "Table"]]} />}
    >
      {found.refusal && <Problem refusal={found.refusal} retry={found.refresh} />}
      {came > 0 && (
        <p class="table-note">
          <button type="button" class="link" onClick={() => setKnown(null)}>
            {many(came, "new daemon")} · show
          </button>
        </p>
      )}
      {!rows.length ? (
        !found.data ? (
          <Loading />
        ) : (
          <Empty title="A daemon keeps a number of replicas of a job running; there is none yet." command="mainspring daemon create gateway --replicas 3 -- ./gateway --port 8080" />
        )
      ) : isTable ? (
        <Table label="Replicas" columns={all} rows={rows.flatMap((daemon) => daemon.replicas.map((replica) => ({ ...replica, daemon: daemon.name })))} id={(one) => one.task} to={(one) => link`tasks/${one.task}`} />
      ) : (
        <div class="daemon-list">
          {rows.map((one) => (
            <Row key={one.name} daemon={one} isOpen={one.name === open} changed={found.refresh} />
          ))}
        </div>
      )}
      {found.data?.next && <p class="table-note">the first {count(MOST)} by name</p>}
    </Page>
  );
}

function Row({ daemon, isOpen, changed }: { daemon: Daemon; isOpen: boolean; changed: () => void }) {
  const [asks, setAsks] = useState(false);
  const { name } = daemon;
  const restarts = daemon.replicas.reduce((sum, replica) => sum + replica.restarts, 0);
  const run = <N extends Name>(operation: N, said: Act<N>["said"], undo?: () => Promise<unknown>) =>
    act(operation, { params: { name }, said, then: changed, ...(undo ? { undo: () => undo().then(changed) } : {}) });
  const start = () => run("POST /daemons/{name}/start", ({ daemon, changed }) => (changed ? `${name} starts: ${many(daemon.wanted, "replica")} wanted.` : `${name} runs already.`), () => call("POST /daemons/{name}/stop", { name }));
  const stop = () => run("POST /daemons/{name}/stop", ({ changed }) => (changed ? `${name} stops: each replica has its grace.` : `${name} is stopped already.`), () => call("POST /daemons/{name}/start", { name }));
  const restart = () => run("POST /daemons/{name}/restart", ({ daemon }) => `${name}: ${many(daemon.replicas.length, "replica")} restart one after another.`);
  return (
    <section class="daemon" data-open={isOpen} aria-label={name}>
      <header>
        <h2>
          <button type="button" class="name-button" aria-expanded={isOpen} onClick={() => setQuery({ name: isOpen ? null : name })}>
            <Icon name={isOpen ? "down" : "right"} /> {name}
          </button>
        </h2>
        <span class="daemon-up figure">{daemon.enabled ? `${count(daemon.up)} of ${count(daemon.wanted)} up` : <State of="stopped" />}</span>
        <Lamps of={daemon} />
        <NotUp of={daemon} />
        <span class="grow" />
        {restarts > 0 && <span class="quiet figure">{many(restarts, "restart")}</span>}
        <div class="actions">
          {daemon.enabled ? (
            <>
              <Action needs="operator" label={`Restart ${name}`} run={() => setAsks(true)}>
                Restart
              </Action>
              <Action needs="operator" label={`Stop ${name}`} run={stop}>
                Stop
              </Action>
            </>
          ) : (
            <Action needs="operator" label={`Start ${name}`} run={start}>
              Start
            </Action>
          )}
        </div>
      </header>
      {isOpen && <Opened daemon={daemon} changed={changed} />}
      {asks && (
        <Confirm title={`Restart ${name}`} word="Restart them" run={restart} close={() => setAsks(false)}>
          <p>{many(daemon.replicas.length, "replica")} are renewed one after another; the next only when the one before it is up.</p>
        </Confirm>
      )}
    </section>
  );
}

function Opened({ daemon, changed }: { daemon: Daemon; changed: () => void }) {
  const { name } = daemon;
  const detail = useGet("GET /daemons/{name}", { name }, { with: daemon.replicas.map(({ state, restarts }) => state + restarts), keep: true, every: 5 }); // with why
  const unwell = detail.data?.name === name ? detail.data.replicas.filter(({ why }) => why) : [];
  const [typed, setTyped] = useState<string | null>(null);
  const wanted = Number(typed);
  const fault = typed === null ? "type another number first" : !Number.isInteger(wanted) || wanted < 1 || wanted > 1000 ? "1 to 1,000 replicas" : wanted === daemon.wanted ? `it has ${wanted} already` : null;
  const scale = async () => {
    const before = daemon.wanted;
    const done = await act("POST /daemons/{name}/scale", {
      params: { name },
      body: { replicas: wanted },
      said: ({ changed }) => (changed ? `${name} is scaled from ${before} to ${many(wanted, "replica")}; those that stay are not touched.` : `${name} has ${many(wanted, "replica")} already.`),
      undo: () => call("POST /daemons/{name}/scale", { name }, { replicas: before }).then(changed),
      then: changed,
    });
    if (done) setTyped(null);
  };
  return (
    <div class="daemon-body">
      <form
        class="scale"
        onSubmit={(event) => {
          event.preventDefault();
          event.currentTarget.querySelector<HTMLElement>("button")?.click();
        }}
      >
        <label for={`scale-${name}`}>Replicas</label>
        <input id={`scale-${name}`} type="number" min="1" max="1000" value={typed ?? daemon.wanted} disabled={!daemon.enabled} onInput={(event) => setTyped(event.currentTarget.value)} />
        <Action needs="operator" refused={daemon.enabled ? fault : "it is stopped"} label={`Scale ${name}`} run={scale}>
          Scale
        </Action>
        <p class="quiet">
          of the job <To page="jobs" of={daemon.job} />
        </p>
      </form>
      {detail.refusal && <Problem refusal={detail.refusal} retry={detail.refresh} />}
      <Table label={`Replicas of ${name}`} columns={columns} rows={daemon.replicas} id={(one) => one.task} to={(one) => link`tasks/${one.task}`} empty={<p class="quiet">{daemon.enabled ? "Its replicas are about to be made." : "It is stopped, and has no replica."}</p>} />
      {unwell.length > 0 && (
        <ul class="unwell">
          {unwell.map((one) => (
            <li key={one.task}>
              replica {one.number} {one.why}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

const columns: Column<Replica>[] = [
  { name: "#", cell: (one) => one.number },
  { name: "State", cell: (one) => <State of={lampOf(one)} /> },
  { name: "Healthy", cell: (one) => (one.healthy === null ? <span class="none">not checked</span> : one.healthy ? "yes" : "no"), drop: 3 },
  { name: "Agent", cell: (one) => <To page="agents" of={one.agent} /> },
  { name: "Since", cell: (one) => <Instant at={one.since} />, drop: 2 },
  { name: "Restarts", cell: (one) => count(one.restarts), align: "right", drop: 3 },
  { name: "", label: "Output", cell: (one) => <a href={link`tasks/${one.task}`} aria-label={`Output of replica ${one.number}`}>output</a>, align: "right" },
];
const all: Column<Replica & { daemon: string }>[] = [{ name: "Daemon", cell: (one) => <a href={`daemons?name=${encodeURIComponent(one.daemon)}`}>{one.daemon}</a> }, ...(columns as Column<Replica & { daemon: string }>[])];
