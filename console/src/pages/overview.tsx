// Overview: is it well? What failed, what is late, what waits and why, and what comes next.

import { useMemo, useState } from "preact/hooks";
import { act } from "../core/actions";
import { call, Refusal } from "../core/api";
import { second } from "../core/clock";
import { useLive } from "../core/live";
import { useGet, useQuery } from "../core/query";
import type { Loaded } from "../core/query";
import { FAILURES } from "../core/states";
import { link, query, withQuery } from "../core/router";
import type { ComingFire, FailingJob, Health, Punctuality, Series, Stats } from "../core/schema";
import { count, milliseconds, percent, span } from "../core/time";
import { Chart, useFigures, whole } from "../parts/chart";
import type { Line } from "../parts/chart";
import { Action, Switch } from "../parts/controls";
import { Page, Section, Show } from "../parts/page";
import { Instant, many, State, withCode } from "../parts/show";
import { Runs } from "../parts/strip";

const LASTS = [["1h", "1 h"], ["24h", "24 h"], ["30d", "30 d"]] as const;

/** An unhealthy cluster answers 503, with the same checks. */
async function health(signal: AbortSignal): Promise<Health> {
  try {
    return await call("GET /health", {}, undefined, { signal });
  } catch (error) {
    const found = error instanceof Refusal ? (error.problem as unknown as Health) : null;
    if (found?.checks) return found;
    throw error;
  }
}

export default function Overview() {
  const well = useQuery("health", health, { every: 5 });
  const loaded = useGet("GET /stats");
  const [live, setLive] = useState<Stats | null>(null);
  useLive(["stats"], (event) => (event.topic === "stats" ? setLive(event.data as Stats) : loaded.refresh()));
  const stats = live ?? loaded.data;
  const schedules = useGet("GET /schedule-count", { state: "enabled" }, { topics: ["schedules"] });
  const next = useGet("GET /fires/next", { n: 10 }, { topics: ["schedules"], every: 2 });
  const alerts = useGet("GET /alerts", { state: "firing", limit: 100 }, { topics: ["alerts"] });
  const first = next.data?.items.find((one) => Date.parse(one.due) >= second.value - 500) ?? next.data?.items[0];
  const bad = well.data?.checks.filter((check) => check.status !== "healthy") ?? [];
  const running = stats?.live.running ?? 0;
  const firing = alerts.data?.items.length ?? 0;
  return (
    <Page title="Overview">
      {loaded.refusal && !stats && <Show of={loaded}>{() => null}</Show>}
      <p class="sentence figure" role="status" aria-live="off">
        {well.data ? <State of={well.data.status} /> : <span class="quiet">…</span>}:{" "}
        <a href="schedules?state=enabled">{schedules.data ? many(schedules.data.count, "schedule") : "… schedules"}</a>, <a href="tasks?filter=state:running">{count(running)} running</a>,{" "}
        {first ? (
          <>
            next fire <a href={link`schedules/${first.schedule}`}>{soon(first.due)}</a>
          </>
        ) : (
          "no fire to come"
        )}
        {firing > 0 && (
          <>
            , <a href="alerts?state=firing">{many(firing, "alert")} firing</a>
          </>
        )}
      </p>
      {well.refusal && !well.data && <Show of={well}>{() => null}</Show>}
      {bad.length > 0 && (
        <ul class="checks" aria-label="What is not well">
          {bad.map((check) => (
            <li key={check.code} class={check.status === "unhealthy" ? "line bad" : "line warn"}>
              <State of={check.status} /> {withCode(check.message)}
              {check.since && (
                <span class="since">
                  {" · "}
                  since <Instant at={check.since} />
                </span>
              )}
            </li>
          ))}
        </ul>
      )}
      <Failing />
      <div class="columns">
        <OnTime />
        <Next of={next} />
      </div>
      <div class="columns">
        <Missed />
        <Waiting stats={stats} />
      </div>
      <Charts stats={stats} />
    </Page>
  );
}

/** "in 0.8 s": a tenth of a second where it is near. */
function soon(due: string): string {
  const left = (Date.parse(due) - second.value) / 1000;
  return left < -2 ? `due ${span(-left)} ago` : left <= 0 ? "now" : `in ${left < 10 ? `${left.toFixed(1)} s` : span(left, 2)}`;
}

// ── on time ────────────────────────────────────────────────────────────────────────────────────────────

function OnTime() {
  const [last, words] = LASTS.find(([one]) => one === query.value.get("last")) ?? LASTS[1];
  const found = useGet("GET /punctuality", { last }, { every: last === "1h" ? 5 : 30, keep: true });
  return (
    <Section title="On time" aside={<Switch label="On time over the last" name="last" of={LASTS} first="24h" />}>
      <div class="card on-time">
        <Show of={found}>{(data) => <Punctual of={data} last={words} />}</Show>
      </div>
    </Section>
  );
}

function Punctual({ of, last }: { of: Punctuality; last: string }) {
  const late = of.starts - of.on_time;
  const objectives = of.slo && of.slo.good + of.slo.bad > 0 ? of.slo : null;
  if (!of.starts) return <p class="quiet">No schedule fired in the last {last}: here is then how late they were.</p>;
  return (
    <>
      <p class="big figure">
        {percent(of.on_time / of.starts)} <span class="quiet">of <a href="timeline">{many(of.starts, "fire")}</a> within 1 s</span>
      </p>
      <p class="figure">
        {late ? <a href={withQuery("tasks", { filter: "late>1s" })}>{count(late)} later</a> : "none later"}
        {objectives && (
          <>
            {" · "}
            {percent(objectives.good / (objectives.good + objectives.bad))} within the SLO of {many(objectives.schedules, "schedule")}
            {objectives.missed > 0 && `, ${count(objectives.missed)} missed`}
          </>
        )}
      </p>
      <Histogram of={of} />
    </>
  );
}

const TICKS: Record<number, string> = { 0.1: "0.1 ms", 1: "1 ms", 10: "10 ms", 100: "0.1 s", 1000: "1 s", 10000: "10 s" };

/** Fires by how late they were; each bar is one bucket of a log scale. */
function Histogram({ of }: { of: Punctuality }) {
  const most = Math.max(1, ...of.buckets.map((bucket) => bucket.starts));
  return (
    <table class="histogram" aria-label="Fires by lateness">
      <tbody>
        {of.buckets.map((bucket) => {
          const words = bucket.up_to_ms === null ? `more than ${milliseconds(bucket.above_ms)}` : `up to ${milliseconds(bucket.up_to_ms)}`;
          const tick = bucket.up_to_ms === null ? "later" : TICKS[bucket.up_to_ms];
          return (
            <tr key={bucket.above_ms} title={`${words}: ${many(bucket.starts, "fire")}`} class={bucket.above_ms >= 1000 ? "tone-warn" : "tone-busy"}>
              <th scope="row">
                <span class="hidden">{words}</span>
                {tick && <span aria-hidden="true">{tick}</span>}
              </th>
              <td>
                <span class="hidden">{count(bucket.starts)}</span>
                <i style={{ height: bucket.starts ? `${Math.max(1, (bucket.starts / most) * 100)}%` : "0" }} />
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

// ── lists ──────────────────────────────────────────────────────────────────────────────────────────────

function Next({ of }: { of: Loaded<{ items: ComingFire[] }> }) {
  return (
    <Section title="Next to fire" aside={<a href="schedules?sort=next">all by time</a>}>
      <Show of={of}>
        {({ items: fires }) =>
          fires.length ? (
            <ol class="list figure">
              {fires.map((one) => (
                <li key={`${one.schedule} ${one.plan_time}`}>
                  <a class="grow" href={link`schedules/${one.schedule}`}>
                    {one.schedule}
                  </a>
                  <span class="number countdown">{soon(one.due)}</span>
                  <span class="drop-3">
                    <Instant at={one.due} own={one.timezone} />
                  </span>
                </li>
              ))}
            </ol>
          ) : (
            <p class="card quiet">
              No schedule has a plan time to come. <a href="new/schedule">Make a schedule</a>
            </p>
          )
        }
      </Show>
    </Section>
  );
}

function Failing() {
  const found = useGet("GET /failing", {}, { every: 10 });
  const acknowledge = (job: string) =>
    act("POST /mutes", {
      body: { subjects: [`job:${job}`], duration: "4h", note: "acknowledged in the console" },
      said: (mute) => `Alerts about ${job} are muted for 4 hours, until ${mute.until.slice(11, 16)} ${mute.until.slice(-6)}.`,
      undo: (mute) => call("DELETE /mutes/{id}", { id: mute.id }),
    });
  return (
    <Section title="Failing now" aside={<a href="tasks?filter=state:failed">all failed tasks</a>}>
      <Show of={found}>
        {({ items: jobs }) =>
          jobs.length ? (
            <ul class="list figure">
              {jobs.map((one) => (
                <li key={one.job} class="failing">
                  <a class="name" href={link`jobs/${one.job}`}>
                    {one.job}
                  </a>
                  <Runs of={one.last} />
                  <span class="quiet">
                    <a href={withQuery("tasks", { filter: `job:${one.job} state:failed` })}>{many(one.failures, "failure")}</a> since <Instant at={one.since} />
                  </span>
                  <span class="error grow" title={one.error ?? undefined}>
                    <Fault of={one} />
                  </span>
                  <Action kind="link" needs="operator" label={`Acknowledge ${one.job}: mute its alerts for 4 hours`} run={() => acknowledge(one.job)}>
                    Acknowledge
                  </Action>
                </li>
              ))}
            </ul>
          ) : (
            <p class="card quiet">No job fails: the last task of each that ran within a day succeeded.</p>
          )
        }
      </Show>
    </Section>
  );
}

function Fault({ of }: { of: FailingJob }) {
  const words = of.error ?? of.error_code ?? "";
  return of.task_id === null ? <>{words}</> : <a href={link`tasks/${of.task_id}`}>{words || `task ${of.task_id}`}</a>;
}

const WHY: Record<string, string> = {
  misfire: "too late to run",
  coalesced: "a later one ran in its place",
  overdue: "no server has decided it yet",
  passed_over: "it is not in the ledger",
};

function Missed() {
  const found = useGet("GET /fires/missed", { limit: 10 }, { every: 10 });
  return (
    <Section title="Late or missed" aside={<a href={withQuery("tasks", { filter: "late>1s" })}>late starts</a>}>
      <Show of={found}>
        {({ items: fires }) =>
          fires.length ? (
            <ul class="list roomy figure">
              {fires.map((one) => (
                <li key={`${one.schedule} ${one.plan_time} ${one.scope}`}>
                  <a class="grow" href={link`schedules/${one.schedule}`}>
                    {one.schedule}
                  </a>
                  <span class="quiet">{WHY[one.why]}</span>
                  <a href={link`schedules/${one.schedule}/at/${one.plan_time}`}>
                    <Instant at={one.plan_time} own={one.timezone} />
                  </a>
                </li>
              ))}
            </ul>
          ) : (
            <p class="card quiet">No plan time was missed in the last 24 hours.</p>
          )
        }
      </Show>
    </Section>
  );
}

function Waiting({ stats }: { stats: Stats | null }) {
  const due = stats?.due ?? 0;
  return (
    <Section title="Waiting, and why" aside={<a href="tasks?filter=state:pending">{many(due, "due task")}</a>}>
      {stats?.waiting.length ? (
        <ul class="list roomy figure">
          {stats.waiting.slice(0, 10).map((one) => (
            <li key={one.jobs.join()}>
              <a href={withQuery("tasks", { filter: `state:pending job:${one.jobs.join()}` })}>{many(one.tasks, "task")}</a>
              <span class="grow wrap">{one.reason}</span>
              <span class="quiet">{one.jobs.slice(0, 3).join(", ")}</span>
            </li>
          ))}
        </ul>
      ) : (
        <p class="card quiet">{due ? "They wait for free slots only." : "No due task waits."}</p>
      )}
    </Section>
  );
}

// ── charts ─────────────────────────────────────────────────────────────────────────────────────────────

function Charts({ stats }: { stats: Stats | null }) {
  const { found, switches, asTable } = useFigures();
  const slots = stats?.agents.reduce((sum, agent) => sum + agent.slots, 0) ?? 0;
  return (
    <Section title="Over time" aside={switches}>
      <Show of={found}>{(series) => <Drawn series={series} slots={slots} asTable={asTable} />}</Show>
    </Section>
  );
}

function Drawn({ series, slots, asTable }: { series: Series; slots: number; asTable: boolean }) {
  const data = useMemo(() => {
    const points = whole(series);
    const minutes = series.step / 60;
    const ended = (states: string[]) => points.map((point) => states.reduce((sum, state) => sum + (point.ended[state] ?? 0), 0) / minutes);
    const others = [...new Set(points.flatMap((point) => Object.keys(point.ended)))].filter((state) => state !== "succeeded" && !FAILURES.includes(state));
    const depth = (read: (queue: NonNullable<Series["points"][number]["queue"]>) => number | null) => points.map((point) => (point.queue ? read(point.queue) : null));
    const fires: Line[] = [{ name: "fired", tone: "busy", fill: true, values: points.map((point) => point.fired / minutes) }];
    const outcomes: Line[] = [
      { name: "succeeded", tone: "good", values: ended(["succeeded"]) },
      { name: "failed", tone: "bad", values: ended(FAILURES) },
      { name: "other ends", tone: "quiet", values: ended(others) },
    ];
    const queue: Line[] = [
      { name: "due", tone: "warn", fill: true, values: depth((one) => one.due) },
      { name: "waiting", tone: "idle", values: depth((one) => one.waiting) },
      { name: "oldest", tone: "bad", right: true, dash: true, values: depth((one) => one.oldest ?? 0) },
    ];
    const used: Line[] = [
      { name: "in use", tone: "busy", fill: true, values: depth((one) => one.active) },
      { name: "slots now", tone: "quiet", dash: true, values: points.map(() => slots) },
    ];
    return { at: points.map((point) => Date.parse(point.at) / 1000), fires, outcomes, queue, used };
  }, [series, slots]);
  const kept = series.points.some((point) => point.queue) ? "" : " (kept for 2 days)";
  const age = (seconds: number) => span(seconds, 1);
  return (
    <div class="charts">
      <Chart title="Fires per minute" at={data.at} lines={data.fires} asTable={asTable} />
      <Chart title="Finished per minute" at={data.at} lines={data.outcomes} asTable={asTable} />
      <Chart title={`Queue: tasks, and how long the oldest is due${kept}`} at={data.at} lines={data.queue} formatRight={age} asTable={asTable} />
      <Chart title={`Slots${kept}`} at={data.at} lines={data.used} asTable={asTable} />
    </div>
  );
}
