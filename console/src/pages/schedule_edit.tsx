// A schedule in a form: what it will do is said while one types, and nothing that was typed is lost.

import { useEffect, useMemo, useState } from "preact/hooks";
import { tellRefusal, toast } from "../core/actions";
import { call, Refusal, whyNot } from "../core/api";
import { now } from "../core/clock";
import { asPhrase, draftOf, Fault, GROUPS, readWhen, specOf } from "../core/spec";
import type { Draft, Spec } from "../core/spec";
import { useGet, useQuery } from "../core/query";
import { go, link, query, setQuery } from "../core/router";
import type { Names } from "../core/router";
import type { Forecast, Preview, ScheduleView } from "../core/schema";
import { count, LOCAL, shown, wall } from "../core/time";
import { Bars } from "../parts/bars";
import { Action, Dialog, Field } from "../parts/controls";
import { Page, Problem, Section, Show } from "../parts/page";
import { Instant, many } from "../parts/show";
import { aDay, Fires } from "./schedule";
import { told } from "./schedules";

const AFTER = 300; // ms without a key before the server is asked
const HERD = 20; // starts within one second that are too many

/** Kept in this tab until it is saved: a reload or a wrong click loses nothing. */
const key = (name: string) => `mainspring.draft.${name}`;
function kept(name: string): Draft | null {
  try {
    return JSON.parse(sessionStorage.getItem(key(name)) ?? "null") as Draft | null;
  } catch {
    return null;
  }
}
function keep(name: string, draft: Draft | null): void {
  try {
    if (draft) sessionStorage.setItem(key(name), JSON.stringify(draft));
    else sessionStorage.removeItem(key(name));
  } catch {
    // no storage: it lasts as long as the page
  }
}

export default function ScheduleEdit({ names }: { names: Names }) {
  const name = names.name ?? null;
  const found = useGet("GET /schedules/{name}", name ? { name } : null);
  const trail: [string, string][] = [["Schedules", "schedules"], ...(name ? [[name, link`schedules/${name}`] as [string, string]] : [])];
  return (
    <Page title={name ? `Edit ${name}` : "New schedule"} trail={trail}>
      {name ? <Show of={found}>{({ schedule }) => <Form key={schedule.name} loaded={schedule} />}</Show> : <Form loaded={null} />}
    </Page>
  );
}

interface Clash {
  theirs: ScheduleView;
  enabled: boolean;
}

function Form({ loaded }: { loaded: ScheduleView | null }) {
  // what was loaded when this form was opened: a change by another person must not move it
  const [base, setBase] = useState(loaded);
  const place = base?.name ?? "";
  const first = useMemo(() => (base ? draftOf(base.spec as Spec) : { ...draftOf({}), name: "", job: query.value.get("job") ?? "", when: "daily at 09:00", tz: LOCAL }), [base]);
  const [draft, setDraft] = useState<Draft>(() => kept(place) ?? first);
  const [wasKept, setWasKept] = useState(() => kept(place) !== null);
  const [refusal, setRefusal] = useState<Refusal | Fault | null>(null);
  const [clash, setClash] = useState<Clash | null>(null);
  const isChanged = JSON.stringify(draft) !== JSON.stringify(first);
  const set = (field: string, value: string) => {
    const next = { ...draft, [field]: value };
    setDraft(next);
    setRefusal(null);
    keep(place, next);
  };
  const name = base?.name ?? draft.name ?? "";
  const seen = usePreview(draft, name, base);

  const save = async (enabled: boolean, given: Draft = draft, version = base?.version) => {
    setRefusal(null);
    try {
      const spec = { ...specOf(given, (base?.spec ?? {}) as Spec), enabled };
      const how = base ? { ifMatch: version ?? 0 } : { ifNew: true };
      if (!name) throw new Fault("name", "name: give the schedule a name");
      const made = await call("PUT /schedules/{name}", { name }, spec, how);
      keep(place, null);
      toast({ kind: "done", text: made.created ? `${name} is made, ${enabled ? "enabled" : "disabled"}.` : made.changed ? `${name} is saved${told(made.recalled)}.` : `${name} was so already.` });
      go(link`schedules/${name}`);
    } catch (error) {
      if (error instanceof Refusal && error.status === 412 && base) {
        const { schedule } = await call("GET /schedules/{name}", { name });
        setClash({ theirs: schedule, enabled });
      } else if (error instanceof Refusal || error instanceof Fault) setRefusal(error);
      else tellRefusal(error);
    }
  };
  const faultOf = (field: string): string | null => {
    const at = refusal ?? seen.refusal;
    if (!at) return null;
    const of = at instanceof Fault ? at.field : String(at.problem.field ?? "");
    const fits = of === field || (field === "when" && of in readWhen(draft.when ?? "")) || (field.startsWith("slo_") && of === "slo" && field === "slo_lateness");
    return fits ? at.message : null;
  };
  const known = ["name", "job", "when", "tz", ...GROUPS.flatMap(([, fields]) => fields.map((field) => field.name))];
  const isBeside = known.some((field) => faultOf(field));
  const refused = whyNot("admin");
  const input = (field: string, more: object = {}) => (id: string, described: string | undefined) => (
    <input id={id} aria-describedby={described} aria-invalid={faultOf(field) !== null} autoComplete="off" spellcheck={false} value={draft[field] ?? ""} onInput={(event) => set(field, event.currentTarget.value)} {...more} />
  );
  return (
    <div class="edit">
      <form class="form" onSubmit={(event) => (event.preventDefault(), void save(base?.enabled ?? true))}>
        {refused && <p class="line warn">You can look at what a change would do; to save it {refused}.</p>}
        {wasKept && (
          <p class="line">
            What you had typed before is here again.{" "}
            <button type="button" class="link" onClick={() => (keep(place, null), setDraft(first), setWasKept(false))}>
              Discard it
            </button>
          </p>
        )}
        {!base && (
          <Field label="Name" hint="such as report-daily" fault={faultOf("name")}>
            {input("name")}
          </Field>
        )}
        <Field label="Job" hint={base ? null : <JobHint />} fault={faultOf("job")}>
          {(id, described) => <JobInput id={id} described={described} value={draft.job ?? ""} set={(value) => set("job", value)} />}
        </Field>
        <Field label="When, in cron or in words" hint="0 9 * * MON-FRI · daily at 09:00 · weekly on mon, thu at 09:00 · monthly on the last day at 18:00 · every 5m · hourly · once 2026-12-24T18:00" fault={faultOf("when")}>
          {input("when", { class: "mono" })}
        </Field>
        <BothWays when={draft.when ?? ""} preview={seen.preview} set={(value) => set("when", value)} />
        <Field label="Zone" hint="whose clocks it follows; empty: UTC" fault={faultOf("tz")}>
          {(id, described) => (
            <>
              {input("tz", { list: "zones" })(id, described)}
              <datalist id="zones">
                {Intl.supportedValuesOf("timeZone").map((one) => (
                  <option key={one} value={one} />
                ))}
              </datalist>
            </>
          )}
        </Field>
        {GROUPS.map(([title, fields]) => (
          <Group key={title} title={title} fields={fields} draft={draft} faultOf={faultOf} set={set} />
        ))}
        {refusal && !isBeside && (refusal instanceof Refusal ? <Problem refusal={refusal} /> : <p class="fault">{refusal.message}</p>)}
        {base && <TakesBack name={name} isChanged={isChanged} />}
        <button type="submit" hidden />
        <footer class="actions">
          <Action kind="main" needs="admin" run={() => save(true)}>
            {base?.enabled ? "Save" : "Save enabled"}
          </Action>
          <Action needs="admin" run={() => save(false)}>
            Save disabled
          </Action>
          <a class="button plain" href={base ? link`schedules/${name}` : "schedules"} onClick={() => keep(place, null)}>
            Discard
          </a>
        </footer>
      </form>
      <Seen of={seen} draft={draft} base={base} />
      {clash && base && (
        <TwoVersions
          base={base}
          clash={clash}
          mine={draft}
          close={() => setClash(null)}
          choose={async (merged) => {
            setClash(null);
            setBase(clash.theirs);
            setDraft(merged);
            keep(place, merged);
            await save(clash.enabled, merged, clash.theirs.version);
          }}
        />
      )}
    </div>
  );
}

type Fields = (typeof GROUPS)[number][1];

/** Members that few need: closed, with what is set beside the title; open where something is wrong. */
function Group({ title, fields, draft, faultOf, set }: { title: string; fields: Fields; draft: Draft; faultOf: (field: string) => string | null; set: (field: string, value: string) => void }) {
  const [isOpen, setOpen] = useState(false);
  const given = fields.filter((field) => draft[field.name]).map((field) => (field.of ? field.of[draft[field.name] ?? ""] : `${field.label.toLowerCase()} ${draft[field.name]}`));
  return (
    <details open={isOpen || fields.some((field) => faultOf(field.name))} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {title} {given.length > 0 && <span class="quiet">· {given.join(" · ")}</span>}
      </summary>
      <div class="form pairs">
        {fields.map((field) => (
          <Field key={field.name} label={field.label} hint={field.hint} fault={faultOf(field.name)}>
            {(id, described) => {
              const common = { id, "aria-describedby": described, value: draft[field.name] ?? "" };
              const change = (event: { currentTarget: { value: string } }) => set(field.name, event.currentTarget.value);
              if (field.kind === "json") return <textarea {...common} class="mono" rows={4} spellcheck={false} onInput={change} />;
              if (!field.of) return <input {...common} autoComplete="off" spellcheck={false} onInput={change} />;
              return (
                <select {...common} onChange={change}>
                  {Object.entries(field.of).map(([value, words], number) => (
                    <option key={value} value={number ? value : ""}>
                      {words}
                    </option>
                  ))}
                </select>
              );
            }}
          </Field>
        ))}
      </div>
    </details>
  );
}

function JobHint() {
  return (
    <>
      what it runs; <a href="jobs">all jobs</a>
    </>
  );
}

function JobInput({ id, described, value, set }: { id: string; described: string | undefined; value: string; set: (value: string) => void }) {
  const found = useGet("GET /jobs", { limit: 200 });
  return (
    <>
      <input id={id} list="jobs" aria-describedby={described} autoComplete="off" spellcheck={false} value={value} onInput={(event) => set(event.currentTarget.value)} />
      <datalist id="jobs">{found.data?.items.map((job) => <option key={job.name} value={job.name} />)}</datalist>
    </>
  );
}

/** The same in the other language. */
function BothWays({ when, preview, set }: { when: string; preview: Preview | null; set: (value: string) => void }) {
  const isCron = readWhen(when).cron !== undefined;
  const other = !preview || preview.kind === "once" ? null : isCron ? asPhrase(preview.expression) : preview.kind === "cron" ? preview.expression : null;
  if (!other || other === when.trim()) return null;
  return (
    <p class="hint">
      The same {isCron ? "in words" : "as cron"}: <code>{other}</code>{" "}
      <button type="button" class="link" onClick={() => set(other)}>
        {isCron ? "write it in words" : "write it as cron"}
      </button>
    </p>
  );
}

// ── what it will do ────────────────────────────────────────────────────────────────────────────────────

interface Seen {
  preview: Preview | null;
  /** What the schedule does as it is now. */
  before: Preview | null;
  refusal: Refusal | Fault | null;
  from: string;
}

/** The answer for what was typed, a moment after the last key; what was last understood stays until then. */
function usePreview(draft: Draft, name: string, base: ScheduleView | null): Seen {
  const [typed, setTyped] = useState(draft);
  const from = query.value.get("from") ?? "";
  useEffect(() => {
    const timer = setTimeout(() => setTyped(draft), AFTER);
    return () => clearTimeout(timer);
  }, [draft]);
  const calendars = useGet("GET /calendars", { limit: 200 });
  let spec: Spec | null = null;
  let fault: Fault | null = null;
  try {
    spec = specOf(typed, (base?.spec ?? {}) as Spec);
  } catch (error) {
    fault = error as Fault;
  }
  const daysOf = (given: Spec) => (given.calendars ?? []).flatMap((one) => calendars.data?.items.find((calendar) => calendar.name === one)?.days ?? []);
  const ask = (given: Spec, signal: AbortSignal, after: string | null) => {
    const { calendars: _, enabled: __, ...rest } = given;
    return call("POST /preview", { name: name || "preview", n: 10, exclude: daysOf(given), after }, rest, { signal });
  };
  const days = spec ? daysOf(spec).join() : "";
  const after = from ? `${from}T00:00:00Z` : null;
  const found = useQuery(spec && JSON.stringify([spec, name, after, days]), (signal) => ask(spec ?? {}, signal, after), { keep: true });
  const old = useQuery(base ? `${base.name} ${base.version} ${days}` : null, (signal) => ask((base?.spec ?? {}) as Spec, signal, null));
  return { preview: found.data, before: old.data, refusal: fault ?? found.refusal, from };
}

function Seen({ of, draft, base }: { of: Seen; draft: Draft; base: ScheduleView | null }) {
  const { preview, before, from } = of;
  const own = draft.tz || "UTC";
  const change = useMemo(() => clockChange(own, now()), [own]);
  return (
    <aside class="preview" aria-label="What it will do">
      <Section title="What it will do">
        {preview && (
          <p class={of.refusal ? "sentence quiet" : "sentence"} role="status">
            {preview.words}
          </p>
        )}
        {of.refusal && !preview && <p class="quiet">Nothing yet: what is written cannot be read.</p>}
        {preview && !from && (
          <p>
            {before && before.a_day !== preview.a_day ? (
              <>
                now {perDay(before.a_day)} → then <strong>{perDay(preview.a_day)}</strong> fires in 24 h
              </>
            ) : (
              aDay(preview.a_day ?? null)
            )}
          </p>
        )}
      </Section>
      <Section
        title={from ? "The 10 fires from that day on" : "The next 10 fires"}
        aside={
          from ? (
            <button type="button" class="link" onClick={() => setQuery({ from: null })}>
              from now
            </button>
          ) : (
            change && (
              <button type="button" class="link" onClick={() => setQuery({ from: wall(change.at - 86_400_000, "UTC").date })}>
                see the clock change of {wall(change.at, own).date}
              </button>
            )
          )
        }
      >
        {preview?.fires.length ? <Fires of={preview.fires} own={own} /> : <p class="card quiet">No fire is to come.</p>}
      </Section>
      {preview?.fires[0] && !from && <Density fires={preview.fires.map((fire) => Date.parse(fire.utc))} draft={draft} base={base} before={before} />}
    </aside>
  );
}

const perDay = (value: number | null | undefined): string => (value === null || value === undefined ? "very many" : count(value));

/** The next instant at which the clocks of a zone change, within 400 days. */
function clockChange(zone: string, from: number): { at: number } | null {
  try {
    let offset = wall(from, zone).offset;
    for (let day = 1; day <= 400; day += 1) {
      const at = from + day * 86_400_000;
      const next = wall(at, zone).offset;
      if (next !== offset) return { at };
      offset = next;
    }
  } catch {
    // no zone that this browser knows
  }
  return null;
}

/** How many others start around its next fire, by the second, and over the next day by the quarter of an hour. */
function Density({ fires, draft, base, before }: { fires: number[]; draft: Draft; base: ScheduleView | null; before: Preview | null }) {
  const at = fires[0] ?? 0;
  const minute = Math.floor(at / 60_000) * 60_000;
  const found = useGet("GET /forecast", { from: new Date(minute).toISOString(), to: new Date(minute + 60_000).toISOString(), cell: 1 }, { keep: true });
  const day = useGet("GET /forecast");
  const place = Math.floor((at - minute) / 1000);
  const isCounted = base?.enabled === true && (before?.fires.some((fire) => Math.floor(Date.parse(fire.utc) / 1000) === Math.floor(at / 1000)) ?? false);
  const others = Math.max(0, (found.data?.cells[place]?.starts ?? 0) - (isCounted ? 1 : 0));
  const spread = /^\d+\s/.test(draft.when ?? "") ? (draft.when ?? "").replace(/^\d+/, "H") : null;
  return (
    <Section title="Others at its times">
      {found.data && (
        <p role="status">
          {others === 0 ? "No other fires in the second of its next fire." : `${many(others, "other")} ${others === 1 ? "fires" : "fire"} in the second of its next fire.`}
          {others >= HERD && (
            <>
              {" "}
              <code>H</code> spreads them{spread && <>: {spread}</>}; so does jitter.
            </>
          )}
        </p>
      )}
      {found.data && <Counted of={found.data} marks={[at]} label="the minute of its next fire, by the second" />}
      {day.data && <Counted of={day.data} marks={fires} label="the next 24 hours, by 15 minutes" />}
    </Section>
  );
}

function Counted({ of, marks, label }: { of: Forecast; marks: number[]; label: string }) {
  const start = Date.parse(of.start);
  const own = new Set(marks.map((at) => Math.floor((at - start) / 1000 / of.cell)));
  const busiest = of.cells.reduce((best, cell) => (cell.starts > best.starts ? cell : best), of.cells[0] ?? { at: of.start, starts: 0 });
  return (
    <figure class="density">
      <Bars label={`${label}: ${many(of.starts, "start")}, at most ${busiest.starts} in one`} starts={of.cells.map((cell) => cell.starts)} own={own} />
      <figcaption class="hint">
        {label}: {many(of.starts, "start")}
        {busiest.starts > 0 && (
          <>
            , at most {count(busiest.starts)} at <Instant at={busiest.at} />
          </>
        )}
        {!of.complete && ", not all counted"}
      </figcaption>
    </figure>
  );
}

function TakesBack({ name, isChanged }: { name: string; isChanged: boolean }) {
  const planned = useGet("GET /tasks/count", { schedule: name, state: ["blocked", "pending", "assigned"] }, { topics: ["tasks"] });
  const running = useGet("GET /tasks/count", { schedule: name, state: "running" }, { topics: ["tasks"] });
  if (!planned.data || !running.data) return null;
  const back = planned.data.count;
  const goes = running.data.count;
  return (
    <p class="hint">
      {isChanged ? "Saving" : "A change"} takes back {back ? many(back, "planned run") : "nothing: no run is planned ahead"}
      {goes ? `; ${count(goes)} ${goes === 1 ? "runs" : "run"} on` : ""}.
    </p>
  );
}

// ── two people at once ─────────────────────────────────────────────────────────────────────────────────

const LABELS: Record<string, string> = { job: "Job", when: "When", tz: "Zone", ...Object.fromEntries(GROUPS.flatMap(([, fields]) => fields.map((field) => [field.name, field.label]))) };

/** Both versions side by side: of each member that differs, one is chosen. Mine where I changed it. */
function TwoVersions({ base, clash, mine, choose, close }: { base: ScheduleView; clash: Clash; mine: Draft; choose: (merged: Draft) => unknown; close: () => void }) {
  const old = useMemo(() => draftOf(base.spec as Spec), [base]);
  const theirs = useMemo(() => draftOf(clash.theirs.spec as Spec), [clash]);
  const fields = Object.keys(LABELS).filter((field) => (theirs[field] ?? "") !== (mine[field] ?? ""));
  const [taken, setTaken] = useState<Record<string, "theirs" | "mine">>(() => Object.fromEntries(fields.map((field) => [field, (mine[field] ?? "") === (old[field] ?? "") ? "theirs" : "mine"])));
  const merged = () => ({ ...mine, ...Object.fromEntries(fields.filter((field) => taken[field] === "theirs").map((field) => [field, theirs[field] ?? ""])) });
  return (
    <Dialog title="Changed meanwhile" close={close} wide>
      <form class="form" onSubmit={(event) => event.preventDefault()}>
        <p>
          While you edited version {base.version}, another person saved version {clash.theirs.version} at {shown(Date.parse(clash.theirs.updated_at), LOCAL, now())}. Choose for each that differs; nothing is saved before.
        </p>
        {fields.length === 0 && <p>Both say the same.</p>}
        {fields.length > 0 && (
          <div class="table-box">
            <table aria-label="Both versions">
              <thead>
                <tr>
                  <th scope="col">Member</th>
                  <th scope="col">Theirs, version {clash.theirs.version}</th>
                  <th scope="col">Mine</th>
                </tr>
              </thead>
              <tbody>
                {fields.map((field) => (
                  <tr key={field}>
                    <th scope="row">{LABELS[field]}</th>
                    {(["theirs", "mine"] as const).map((whose) => (
                      <td key={whose}>
                        <label class="side">
                          <input type="radio" name={field} checked={taken[field] === whose} onChange={() => setTaken({ ...taken, [field]: whose })} /> <code>{(whose === "mine" ? mine : theirs)[field] || "default"}</code>
                        </label>
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <footer class="dialog-foot">
          <button type="button" class="button plain" onClick={close}>
            Back to my form
          </button>
          <Action kind="main" needs="admin" run={() => choose(merged())}>
            Save what is chosen
          </Action>
        </footer>
      </form>
    </Dialog>
  );
}
