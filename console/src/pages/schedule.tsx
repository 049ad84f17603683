// A schedule: what comes, what came of the past, what it does in words, who changed it.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { act, asRole, send, toast } from "../core/actions";
import { session,  } from "../core/api";
import { now, second } from "../core/clock";
import { useKeys } from "../core/keys";
import { useList } from "../core/list";
import { inWords } from "../core/spec";
import { zone } from "../core/prefs";
import { REASONS } from "../core/reasons";
import { useGet, useQuery } from "../core/query";
import { go, link, withQuery } from "../core/router";
import type { Names } from "../core/router";
import type { BackfillStep, Entry, FireView, PreviewFire, ScheduleDetail, ScheduleView } from "../core/schema";
import { count, percent, relative, span, wall, zoneFor } from "../core/time";
import { Action, Confirm, Dialog, Field, Tabs } from "../parts/controls";
import { Icon } from "../parts/icons";
import { Empty, Fact, Facts, Page, Problem, Section, Show } from "../parts/page";
import { Instant, Json, Lateness, many, State, To } from "../parts/show";
import { Strip } from "../parts/strip";
import { Fresh, ListTable, Table } from "../parts/table";
import { PlannedFired } from "../pictures/planned";
import { RANGES } from "../pictures/planned_scene";
import { switchOne, told } from "./schedules";

export default function Schedule({ names }: { names: Names }) {
  const name = names.name ?? "";
  const found = useGet("GET /schedules/{name}", { name }, { topics: ["schedules"], every: 10 });
  const [asks, setAsks] = useState<"delete" | "backfill" | null>(null);
  const detail = found.data;
  const one = detail?.schedule;
  const beside = (to: string | null | undefined) => to && go(link`schedules/${to}`);
  useKeys([
    { keys: "[", does: "the schedule before", run: () => void beside(detail?.before) },
    { keys: "]", does: "the schedule after", run: () => void beside(detail?.after) },
    { keys: "p", does: "enable or disable the schedule", run: () => one && asRole("operator", () => flip(one, found.refresh)) },
  ]);
  if (!one || !detail) return <Page title={name} trail={TRAIL}>{found.refusal ? <Missing of={found} /> : <Show of={found}>{() => null}</Show>}</Page>;
  return (
    <Page
      title={name}
      trail={TRAIL}
      remark={
        <>
          <State of={one.state} /> · {one.words} · {one.timezone} · runs <To page="jobs" of={one.job} />
          {one.policies.description && <> · {one.policies.description}</>}
        </>
      }
      actions={<Actions one={one} refresh={found.refresh} ask={setAsks} detail={detail} />}
    >
      {found.refusal && <Problem refusal={found.refusal} retry={found.refresh} />}
      {one.problem && <p class="line bad">{one.problem}</p>}
      {one.is_orphan && <p class="line warn">It is no longer in the code of {one.app}, and runs until it is disabled or deleted.</p>}
      {one.kind !== "daemon" && (
        <Section title="Planned versus fired">
          <PlannedFired schedules={[name]} range={rangeFor(detail.next)} />
        </Section>
      )}
      <div class="columns">
        <Next one={one} refresh={found.refresh} />
        <Now detail={detail} />
      </div>
      <Tabs
        of={[
          { id: "ledger", word: "Ledger", content: () => <Ledger one={one} /> },
          { id: "policies", word: "Policies", content: () => <Policies one={one} /> },
          { id: "changes", word: "Changes", content: () => <Changes one={one} /> },
          { id: "code", word: "Drift from code", count: one.drift.length, content: () => <Code one={one} /> },
        ]}
      />
      {asks === "delete" && (
        <Confirm
          title={`Delete ${name}`}
          type={name}
          word="Delete it"
          close={() => setAsks(null)}
          run={async () => {
            const gone = await act("DELETE /schedules/{name}", { params: { name }, how: { ifMatch: one.version }, said: (answer) => `${name} is deleted${told(answer.recalled)}.` });
            if (gone) go("schedules");
          }}
        >
          <p>What was planned and has not started is taken back; what runs goes on. Its ledger is deleted with it. There is no undo.</p>
        </Confirm>
      )}
      {asks === "backfill" && <Backfill one={one} close={() => setAsks(null)} />}
    </Page>
  );
}

const TRAIL: [string, string][] = [["Schedules", "schedules"]];
const flip = (one: ScheduleView, refresh: () => void) => switchOne(one.name, !one.enabled, refresh);

function Missing({ of }: { of: ReturnType<typeof useQuery<ScheduleDetail>> }) {
  if (of.refusal?.status !== 404) return of.refusal && <Problem refusal={of.refusal} retry={of.refresh} />;
  return (
    <Empty title="There is no schedule of this name.">
      <a href="schedules">All schedules</a> · <a href="new/schedule">New schedule</a>
    </Empty>
  );
}

function Actions({ one, detail, refresh, ask }: { one: ScheduleView; detail: ScheduleDetail; refresh: () => void; ask: (what: "delete" | "backfill") => void }) {
  const { name } = one;
  const isDaemon = one.kind === "daemon";
  const noPlan = isDaemon ? "a daemon has no plan times" : null;
  const run = () =>
    act("POST /schedules/{name}/run", {
      params: { name },
      said: (answer) => (answer.tasks.length === 1 ? `Task ${answer.tasks[0]} runs now.` : `${many(answer.tasks.length, "task")} run now, one for each scope.`),
      then: refresh,
    });
  const skip = () =>
    act("POST /schedules/{name}/skip", {
      params: { name },
      body: { next: 1 },
      said: (answer) => `The run of ${answer.plan_times[0]?.replace("T", " ") ?? "its next plan time"} is skipped${told(answer.recalled)}.`,
      undo: async (answer) => (await send("POST /schedules/{name}/unskip", { name }, { at: answer.plan_times }), refresh()),
      then: refresh,
    });
  return (
    <>
      <span class="neighbours">
        {detail.before && (
          <a class="icon-button" href={link`schedules/${detail.before}`} aria-label={`Schedule before: ${detail.before}`} title={`${detail.before}  [`}>
            <Icon name="left" />
          </a>
        )}
        {detail.after && (
          <a class="icon-button" href={link`schedules/${detail.after}`} aria-label={`Schedule after: ${detail.after}`} title={`${detail.after}  ]`}>
            <Icon name="right" />
          </a>
        )}
      </span>
      <Action kind="main" needs="admin" refused={isDaemon ? "a daemon is changed with `mainspring daemon`" : null} run={() => go(link`schedules/${name}/edit`)}>
        Edit
      </Action>
      <Action needs="operator" refused={noPlan} run={run}>
        Run now
      </Action>
      <Action needs="operator" refused={noPlan ?? (one.next ? null : "it has no plan time to come")} run={skip}>
        Skip next
      </Action>
      <Action needs="operator" refused={noPlan} run={() => ask("backfill")}>
        Backfill
      </Action>
      <Action needs="operator" run={() => flip(one, refresh)}>
        {one.enabled ? "Disable" : "Enable"}
      </Action>
      <Action kind="danger" needs="admin" run={() => ask("delete")}>
        Delete
      </Action>
    </>
  );
}

// ── what comes, and how it does ────────────────────────────────────────────────────────────────────────

function Next({ one, refresh }: { one: ScheduleView; refresh: () => void }) {
  const passed = one.next !== null && Date.parse(one.next) < second.value;
  const found = useGet("GET /schedules/{name}/next", { name: one.name, n: 10 }, { with: [one.version, one.next], keep: true, topics: ["schedules"] });
  useEffect(() => {
    if (passed) refresh();
  }, [passed]);
  const unskip = (at: string) => act("POST /schedules/{name}/unskip", { params: { name: one.name }, body: { at: [at] }, said: () => "It runs again.", then: refresh });
  return (
    <Section title="Next 10" aside={found.data?.a_day !== undefined && one.enabled && <span class="figure">{aDay(found.data?.a_day ?? null)}</span>}>
      <Show of={found}>
        {(preview) =>
          preview.fires.length ? (
            <Fires
              of={preview.fires}
              own={one.timezone}
              beside={(fire) =>
                fire.skipped_by && (
                  <Action kind="link" needs="operator" label={`Run ${fire.at} after all`} run={() => unskip(fire.utc)}>
                    run after all
                  </Action>
                )
              }
            />
          ) : (
            <p class="card quiet">{one.enabled ? "No plan time is to come." : "Nothing is planned while it is disabled."}</p>
          )
        }
      </Show>
    </Section>
  );
}

export const aDay = (value: number | null): string => (value === null ? "very many a day" : `${many(value, "fire")} in the next 24 h`);

/** Plan times to come, each with what a clock change does to it. */
export function Fires({ of, own, beside }: { of: readonly PreviewFire[]; own: string; beside?: (fire: PreviewFire) => ComponentChildren }) {
  const at = second.value;
  const left = of.filter(({ utc }) => Date.parse(utc) >= at - 1000); // those of each second pass while one reads
  return (
    <ol class="list fires">
      {(left.length ? left : of).map((fire) => (
        <li key={fire.utc} class={fire.skipped_by ? "skipped" : ""}>
          <Instant at={fire.utc} own={own} date="always" />
          <span class="quiet number">{relative(Date.parse(fire.utc), at, 2)}</span>
          {fire.note && <span class="note">{fire.note}</span>}
          {fire.skipped_by && <span class="note">skipped by {fire.skipped_by}</span>}
          {beside?.(fire)}
        </li>
      ))}
    </ol>
  );
}

function Now({ detail }: { detail: ScheduleDetail }) {
  const { schedule: one, slo } = detail;
  const strip = useGet("GET /strips", { schedule: one.name }, { with: one.next, topics: ["tasks"], keep: true });
  const of = strip.data?.items[0];
  return (
    <Section title="Now and lately">
      <div class="card">
        <Facts>
          <Fact name="Next">
            {one.next && (
              <>
                <Instant at={one.next} own={one.timezone} relative /> · <Instant at={one.next} own={one.timezone} />
              </>
            )}
          </Fact>
          <Fact name="Last plan times">
            {of && !of.starts && !one.runs ? <span class="quiet">none yet</span> : <Strip of={of} own={one.timezone} />}
          </Fact>
          <Fact name="p99 lateness">
            {of && of.starts > 0 && (
              <>
                <Lateness ms={of.p99_ms} /> <span class="quiet">of {many(of.starts, "start")}</span>
              </>
            )}
          </Fact>
          <Fact name="SLO">
            {slo && (
              <>
                {slo.compliance === null ? "nothing counted yet" : `${percent(slo.compliance)} of ${percent(slo.target)}`} within {span(slo.lateness)} over {span(slo.window)}
                {slo.budget_left !== null && <span class={slo.budget_left < 0 ? "late" : "quiet"}> · {slo.budget_left < 0 ? "budget used up" : `${percent(slo.budget_left, 0)} of the budget left`}</span>}
                {slo.burn_rates.some((rate) => rate.is_burning) && <span class="late"> · burning fast</span>}
              </>
            )}
          </Fact>
          <Fact name="Runs so far">
            <a href={withQuery("tasks", { filter: `schedule:${one.name}` })}>{count(one.runs)}</a>
          </Fact>
          <Fact name="Expression">{one.kind === "cron" && <code>{one.expression}</code>}</Fact>
          <Fact name="Version">
            {one.version}, since <Instant at={one.since} own={one.timezone} date="always" />
            {one.app && <> · defined by the code of {one.app}</>}
          </Fact>
          <Fact name="Skips by hand">
            {one.skips.length > 0 &&
              one.skips.map((skip) => (
                <div key={`${skip.start} ${skip.until}`}>
                  <Instant at={skip.start} own={one.timezone} />
                  {skip.until !== skip.start && (
                    <>
                      {" "}
                      to <Instant at={skip.until} own={one.timezone} />
                    </>
                  )}{" "}
                  by {skip.by}
                  {skip.note && `: ${skip.note}`}
                </div>
              ))}
          </Fact>
        </Facts>
      </div>
    </Section>
  );
}

/** How much time the picture has at first: about sixty plan times. */
function rangeFor(next: readonly string[]): string {
  const [first, last] = [next[0], next.at(-1)].map((at) => Date.parse(at ?? ""));
  const sixty = (60 * ((last ?? 0) - (first ?? 0))) / Math.max(1, next.length - 1);
  return RANGES.find(([, span]) => span >= sixty)?.[0] ?? "7d";
}

// ── tabs ───────────────────────────────────────────────────────────────────────────────────────────────

function Ledger({ one }: { one: ScheduleView }) {
  const list = useList("GET /schedules/{name}/fires", { name: one.name }, (fire) => `${fire.plan_time} ${fire.scope}`);
  const newest = useGet("GET /schedules/{name}/fires", { name: one.name, limit: 20 }, { with: one.next, topics: ["tasks"] });
  useEffect(() => {
    if (newest.data && list.rows.length) list.patch(newest.data.items, (fire) => Date.parse(fire.plan_time) > Date.parse(list.rows[0]?.plan_time ?? ""));
  }, [newest.data]);
  const explain = (fire: FireView) => link`schedules/${one.name}/at/${fire.plan_time}`;
  return (
    <>
      {list.fresh > 0 && (
        <p class="table-note">
          <Fresh list={list} one="plan time" />
        </p>
      )}
      <ListTable
        label="Ledger"
        list={list}
        to={explain}
        columns={[
          {
            name: "Plan time",
            cell: (fire) => (
              <a href={explain(fire)}>
                <Instant at={fire.plan_time} own={one.timezone} />
              </a>
            ),
          },
          ...(list.rows.some((fire) => fire.scope) ? [{ name: "Scope", cell: (fire: FireView) => fire.scope }] : []),
          { name: "Came to", cell: (fire) => (fire.reason ? <State of={fire.reason === "misfire" || fire.reason === "coalesced" ? "missed" : "skipped"} /> : fire.state ? <State of={fire.state} /> : <span class="quiet">no longer kept</span>) },
          { name: "Why, or task", cell: (fire) => (fire.task_id ? <To page="tasks" of={fire.task_id} /> : fire.skipped_by ? `skipped by ${fire.skipped_by}` : <Why of={fire.reason} />) },
          { name: "Finished", cell: (fire) => <Instant at={fire.finished_at} own={one.timezone} />, drop: 2 },
          { name: "Origin", cell: (fire) => <span class="quiet">{fire.origin}</span>, drop: 2 },
        ]}
        empty={<Empty title="Each plan time is noted here with its decision; none has come yet." />}
      />
      <p class="table-note">{list.hasMore ? "more below" : list.rows.length > 0 && `all ${many(list.rows.length, "plan time")} that are kept`}</p>
    </>
  );
}

/** "overlap: the run before it had not ended"; the word is what is left of it on a phone. */
function Why({ of }: { of: string | null }) {
  const [, word, why] = REASONS[of ?? ""] ?? [];
  return word ? <span title={why}>{`${word}: ${why}`}</span> : null;
}

function Policies({ one }: { one: ScheduleView }) {
  return (
    <div class="card">
      <Facts>
        {inWords(one.policies, one.kind).map(([about, words]) => (
          <Fact key={about} name={about}>
            {words}
          </Fact>
        ))}
        <Fact name="Not before">{one.policies.start && <Instant at={one.policies.start} own={one.timezone} date="always" />}</Fact>
        <Fact name="Not after">{one.policies.end && <Instant at={one.policies.end} own={one.timezone} date="always" />}</Fact>
        <Fact name="Arguments">{Object.keys(one.policies.args).length > 0 && <Json of={one.policies.args} />}</Fact>
      </Facts>
    </div>
  );
}

function Changes({ one }: { one: ScheduleView }) {
  const isAdmin = session.value?.role === "admin";
  const found = useGet("GET /audit", isAdmin ? { subject: `schedule:${one.name}`, limit: 50 } : null, { with: one.version });
  if (!isAdmin)
    return (
      <p class="card quiet">
        This is version {one.version}, in force since <Instant at={one.since} own={one.timezone} date="always" />. Who changed what is in the audit, which needs the role admin; yours is {session.value?.role}.
      </p>
    );
  return (
    <Show of={found}>
      {({ items }) =>
        items.length ? (
          <ol class="list">
            {items.map((entry) => (
              <Change key={entry.id} of={entry} own={one.timezone} />
            ))}
          </ol>
        ) : (
          <p class="card quiet">Nobody has changed it by hand.</p>
        )
      }
    </Show>
  );
}

function Change({ of, own }: { of: Entry; own: string }) {
  const flat = Object.entries(of.changes ?? {}).flatMap(([name, { old, new: fresh }]) => differences(name, old, fresh));
  return (
    <li class="change">
      <Instant at={of.at} own={own} date="always" />
      <span>
        <strong>{of.actor}</strong> {of.action.replace("schedule.", "")}
        {of.refused && <span class="late"> refused: {of.refused}</span>}
      </span>
      {flat.slice(0, 12).map(([name, old, fresh]) => (
        <span key={name} class="difference">
          {name}: <del>{old}</del> → <ins>{fresh}</ins>
        </span>
      ))}
      {of.detail && <Json of={of.detail} open={false} />}
    </li>
  );
}

/** Members that differ, by their paths. */
function differences(name: string, old: unknown, fresh: unknown): [string, string, string][] {
  const isPlain = (value: unknown): value is Record<string, unknown> => value !== null && typeof value === "object" && !Array.isArray(value);
  if (isPlain(old) && isPlain(fresh))
    return [...new Set([...Object.keys(old), ...Object.keys(fresh)])].flatMap((key) => (JSON.stringify(old[key]) === JSON.stringify(fresh[key]) ? [] : differences(key, old[key], fresh[key])));
  const text = (value: unknown) => (value === undefined || value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));
  return [[name, text(old), text(fresh)]];
}

function Code({ one }: { one: ScheduleView }) {
  if (!one.app) return <p class="card quiet">It was made by hand: no code defines it.</p>;
  if (!one.drift.length) return <p class="card quiet">It is as the code of {one.app} defines it.</p>;
  return (
    <Table
      label="Drift from code"
      rows={one.drift}
      id={(drift) => drift.field}
      columns={[
        { name: "Member", cell: (drift) => drift.field },
        { name: `In the code of ${one.app}`, cell: (drift) => <code>{JSON.stringify(drift.code)}</code> },
        { name: "In force, edited by hand", cell: (drift) => <code>{JSON.stringify(drift.in_force)}</code> },
      ]}
    />
  );
}

// ── backfill ───────────────────────────────────────────────────────────────────────────────────────────

const POLL = 1000;

/** Runs for plan times of the past that have none: counted first, then so many at a time. */
function Backfill({ one, close }: { one: ScheduleView; close: () => void }) {
  const inZone = zoneFor(zone.value, one.timezone);
  const at = (ms: number) => {
    const { date, time } = wall(ms, inZone);
    return `${date}T${time.slice(0, 5)}`;
  };
  const [from, setFrom] = useState(at(now() - 86_400_000));
  const [to, setTo] = useState(at(now()));
  const [parallel, setParallel] = useState("1");
  const [counted, setCounted] = useState<BackfillStep | null>(null);
  const [progress, setProgress] = useState<{ submitted: number; live: number } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const [stop] = useState({ is: false });
  const offset = (ms: number) => wall(ms, inZone).offset;
  const instant = (text: string) => new Date(text + offset(Date.parse(text + offset(Date.parse(`${text}Z`))))).toISOString();
  const step = (more: object) =>
    send("POST /schedules/{name}/backfill", { name: one.name }, { from: instant(from), to: instant(to), max_parallel: Number(parallel), ...more });
  const tell = async (work: () => Promise<void>) => {
    setFault(null);
    try {
      await work();
    } catch (error) {
      setFault((error as Error).message);
    }
  };
  const run = async () => {
    let submitted = 0;
    let cursor: string | null = null;
    let part: BackfillStep;
    do {
      part = await step(cursor ? { cursor } : {});
      submitted += part.submitted.length;
      cursor = part.next;
      setProgress({ submitted, live: part.live });
      if (part.next && !stop.is) await new Promise((done) => setTimeout(done, POLL));
    } while (cursor && !stop.is);
    toast({ kind: "done", text: `${many(submitted, "run")} of the past submitted${stop.is && cursor ? "; stopped, the others have no task" : ""}.` });
    close();
  };
  return (
    <Dialog title={`Backfill ${one.name}`} close={() => ((stop.is = true), close())}>
      <form class="form" onSubmit={(event) => event.preventDefault()}>
        <p class="quiet">Runs for plan times of the past that have no task; nothing runs twice. Times are by the clocks of {inZone}.</p>
        <Field label="From">{(id) => <input id={id} type="datetime-local" value={from} onInput={(event) => (setFrom(event.currentTarget.value), setCounted(null))} />}</Field>
        <Field label="To">{(id) => <input id={id} type="datetime-local" value={to} onInput={(event) => (setTo(event.currentTarget.value), setCounted(null))} />}</Field>
        <Field label="At most so many at a time" fault={fault}>
          {(id, described) => <input id={id} aria-describedby={described} inputMode="numeric" value={parallel} onInput={(event) => setParallel(event.currentTarget.value)} />}
        </Field>
        {counted && (
          <p role="status">
            {many(counted.total ?? 0, "plan time")}: {count(counted.already ?? 0)} have a task, <strong>{count(counted.to_run ?? 0)} to run</strong>
            {counted.skipped ? `, ${count(counted.skipped)} of them were skipped by hand` : ""}.
          </p>
        )}
        {progress && (
          <p role="status">
            <progress max={counted?.to_run ?? 1} value={progress.submitted} aria-label="Progress" /> {count(progress.submitted)} of {count(counted?.to_run ?? 0)} submitted, {count(progress.live)} not ended
          </p>
        )}
        <footer class="dialog-foot">
          {progress ? (
            <button type="button" class="button danger" onClick={() => (stop.is = true)}>
              Stop
            </button>
          ) : (
            <Action run={() => tell(async () => setCounted(await step({ dry_run: true })))}>Count them</Action>
          )}
          <Action kind="main" refused={!counted ? "count them first" : counted.to_run ? null : "there is nothing to run"} run={() => tell(run)}>
            Run {counted?.to_run ? count(counted.to_run) : "them"}
          </Action>
        </footer>
      </form>
    </Dialog>
  );
}
