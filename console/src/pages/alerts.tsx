// Alerts: what fires, what is over, what is muted; the rules that find it, the channels that tell it, and what they told.

import { useEffect, useState } from "preact/hooks";
import { act } from "../core/actions";
import { firing, MOST_COUNTED, mutedBy, subjectLink } from "../core/alerts";
import { call } from "../core/api";
import { second } from "../core/clock";
import { useList } from "../core/list";
import { useLive } from "../core/live";
import { useGet } from "../core/query";
import { link, query, withQuery } from "../core/router";
import type { AlertView, DeliveryView, MuteView } from "../core/schema";
import { relative } from "../core/time";
import { list } from "../core/typed";
import { Action, Choice, Tabs } from "../parts/controls";
import { FormDialog, Text } from "../parts/form";
import { Empty, Page, Show } from "../parts/page";
import { Glyph } from "../parts/icons";
import { Instant, Json, many, Span, State } from "../parts/show";
import { Fresh, ListTable, Table } from "../parts/table";
import type { Column } from "../parts/table";
import { Channels } from "./alert_channels";
import { Rules } from "./alert_rules";

const SEVERITIES = { critical: ["bad", "cross"], warning: ["warn", "triangle"], info: ["busy", "ring"] } as const;

export function Severity({ of }: { of: AlertView["severity"] }) {
  const [tone, glyph] = SEVERITIES[of];
  return (
    <span class={`state tone-${tone}`}>
      <Glyph name={glyph} />
      {of}
    </span>
  );
}

function Subject({ of }: { of: string }) {
  const to = subjectLink(of);
  const [kind, ...name] = of.split(":");
  const words = name.length ? `${kind} ${name.join(":")}` : of;
  return to ? <a href={to}>{words}</a> : <>{words}</>;
}

export default function Alerts() {
  const mutes = useGet("GET /mutes", {}, { topics: ["alerts"], every: 30 });
  const of = mutes.data?.items.filter((mute) => Date.parse(mute.until) > second.value) ?? [];
  return (
    <Page title="Alerts">
      <Tabs
        of={[
          { id: "firing", word: "Firing", count: firing.value && firing.value < MOST_COUNTED ? firing.value : undefined, content: () => <Firing mutes={of} changed={mutes.refresh} /> },
          { id: "resolved", word: "Resolved", content: () => <Resolved /> },
          { id: "muted", word: "Muted", count: mutes.data ? of.length : undefined, content: () => <Show of={mutes}>{() => <Muted mutes={of} changed={mutes.refresh} />}</Show> },
          { id: "rules", word: "Rules", content: () => <Rules /> },
          { id: "channels", word: "Channels", content: () => <Channels /> },
          { id: "messages", word: "Messages", content: () => <Messages /> },
        ]}
      />
    </Page>
  );
}

function Firing({ mutes, changed }: { mutes: MuteView[]; changed: () => void }) {
  const list = useGet("GET /alerts", { state: ["firing", "pending"], limit: 200 }, { topics: ["alerts"], every: 30 });
  const [muting, setMuting] = useState<AlertView | null>(null);
  const [shown, setShown] = useState<AlertView[] | null>(null);
  const pending = list.data?.items.filter((alert) => alert.state === "pending") ?? [];
  const found = list.data?.items.filter((alert) => alert.state === "firing") ?? [];
  const show = () => setShown(ordered(found, mutes));
  useEffect(() => {
    if (list.data && (!shown || !shown.length)) show();
  }, [list.data]);
  // what is shown changes in place: what is over says so, what is new waits
  const now = (shown ?? []).map((alert) => found.find((one) => one.id === alert.id) ?? { ...alert, state: "resolved" as const });
  const fresh = found.filter((alert) => !shown?.some((one) => one.id === alert.id)).length;
  return (
    <Show of={list}>
      {({ next }) => (
        <>
          {now.length === 0 && (
            <Empty title="Nothing fires." command="mainspring alert rules">
              What a rule finds is shown here while it lasts, and told to the channels. The command lists what is looked for; so does the tab Rules.
            </Empty>
          )}
          {fresh > 0 && now.length > 0 && (
            <p class="table-note" role="status">
              <button type="button" class="link" onClick={show}>{many(fresh, "new alert")} · show</button>
            </p>
          )}
          <ul class="alerts" aria-label="Alerts that fire">
            {now.map((alert) => (
              <One key={alert.id} alert={alert} mute={mutedBy(mutes, alert)} acknowledge={() => setMuting(alert)} />
            ))}
          </ul>
          {next && <p class="table-note">More fire than are shown here: these are the newest 200.</p>}
          {pending.length > 0 && <p class="table-note">{many(pending.length, "alert")} pending: {pending.map((alert) => alert.subject).join(", ")}. They fire if they last as long as their rule says.</p>}
          {muting && <MuteForm alert={muting} close={() => setMuting(null)} done={changed} />}
        </>
      )}
    </Show>
  );
}

const URGENT = { critical: 0, warning: 1, info: 2 };

/** Unacknowledged ones first, then the most severe. */
const ordered = (alerts: AlertView[], mutes: MuteView[]): AlertView[] =>
  [...alerts].sort((one, other) => Number(mutedBy(mutes, one) !== null) - Number(mutedBy(mutes, other) !== null) || URGENT[one.severity] - URGENT[other.severity]);

function One({ alert, mute, acknowledge }: { alert: AlertView; mute: MuteView | null; acknowledge: () => void }) {
  const [isOpen, setOpen] = useState(false);
  const at = alert.subject.startsWith("schedule:") && /--at ([^`\s]+)/.exec(alert.message)?.[1]; // the plan time that it explains
  return (
    <li class={`card alert-card ${alert.severity}`} data-id={alert.id}>
      <div class="alert-head">
        <Severity of={alert.severity} />
        <Subject of={alert.subject} />
        <span class="quiet">
          since <Instant at={alert.since} /> ({relative(Date.parse(alert.since), second.value)})
        </span>
        <span class="grow" />
        {alert.state === "resolved" ? <State of="resolved" /> : mute ? <State of="muted" title={mute.note} /> : <Action needs="operator" run={acknowledge}>Acknowledge …</Action>}
      </div>
      <p class="alert-message">{alert.message.split(/(\btask \d+\b)/).map((part, place) => (place % 2 ? <a href={`tasks/${part.slice(5)}`}>{part}</a> : part))}</p>
      <p class="quiet">
        {at && (
          <>
            <a href={link`schedules/${alert.subject.slice(9)}/at/${at}`}>why?</a> ·{" "}
          </>
        )}
        {alert.job && alert.kind.startsWith("fail") && (
          <>
            <a href={withQuery("tasks", { filter: `job:${alert.job} state:failed` })}>its failed tasks</a> ·{" "}
          </>
        )}
        rule <a href={`alerts?tab=rules&rule=${encodeURIComponent(alert.rule)}`}>{alert.rule}</a>
        {alert.is_event && alert.count > 1 && <> · {many(alert.count, "time")}</>} · {alert.told_at ? <>told <Instant at={alert.told_at} relative /></> : <a href="alerts?tab=channels">no channel was told</a>}
        {mute && (
          <>
            {" "}· acknowledged by {mute.created_by} until <Instant at={mute.until} />: {mute.note}
          </>
        )}
        {!alert.is_event && alert.details && Object.keys(alert.details).length > 0 && (
          <>
            {" "}·{" "}
            <button type="button" class="link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              {isOpen ? "less" : "details"}
            </button>
          </>
        )}
      </p>
      {isOpen && <Json of={alert.details} />}
    </li>
  );
}

const FOR = [
  ["1h", "1 h"],
  ["4h", "4 h"],
  ["24h", "24 h"],
  ["7d", "7 days"],
] as const;

/** Mute: of one alert, which is how it is acknowledged; or of patterns. */
function MuteForm({ alert, close, done }: { alert: AlertView | null; close: () => void; done: () => void }) {
  const [note, setNote] = useState("");
  const [duration, setDuration] = useState<(typeof FOR)[number][0]>("4h");
  const [rules, setRules] = useState(alert?.rule ?? "");
  const [subjects, setSubjects] = useState(alert?.subject ?? "");
  const refused = !note.trim() ? "say why in a note" : !list(rules).length && !list(subjects).length ? "name rules or subjects; * is all of them" : null;
  const save = async () => {
    const made = await act("POST /mutes", {
      body: { note, duration, rules: list(rules), subjects: list(subjects) },
      said: (mute) => `Muted until ${new Date(mute.until).toISOString().slice(0, 16).replace("T", " ")} UTC; what lasts beyond that is told then.`,
      undo: (mute) => call("DELETE /mutes/{id}", { id: mute.id }).then(done),
      then: done,
    });
    return made !== null;
  };
  return (
    <FormDialog title={alert ? `Acknowledge ${alert.subject}` : "Mute"} word={alert ? "Acknowledge" : "Mute"} needs="operator" refused={refused} run={save} close={close}>
      {() => (
        <>
          <p class="quiet">Nothing more is told of {alert ? "it" : "them"} for a while; it stays on this page, with your note.</p>
          {!alert && (
            <>
              <Text label="Rules" hint="Names with *, separated by spaces; empty: all." value={rules} set={setRules} />
              <Text label="Subjects" hint="Such as job:report*; empty: all." value={subjects} set={setSubjects} />
            </>
          )}
          <Choice label="For how long" of={FOR} value={duration} set={setDuration} />
          <Text label="Note" hint="For those who wonder where the alerts are." value={note} set={setNote} />
        </>
      )}
    </FormDialog>
  );
}

function Muted({ mutes, changed }: { mutes: MuteView[]; changed: () => void }) {
  const [isOpen, setOpen] = useState(false);
  const end = (mute: MuteView) =>
    act("DELETE /mutes/{id}", {
      params: { id: mute.id },
      said: () => "Unmuted: what still fires is told now.",
      undo: () => call("POST /mutes", {}, { note: mute.note, rules: mute.rules, subjects: mute.subjects, until: mute.until }).then(changed),
      then: changed,
    });
  return (
    <>
      <div class="table-note">
        <Action needs="operator" run={() => setOpen(true)}>Mute …</Action>
      </div>
      <Table
        label="Mutes"
        rows={mutes}
        id={(mute) => mute.id}
        columns={[
          { name: "Rules", cell: (mute) => mute.rules.join(", ") || "all" },
          { name: "Subjects", cell: (mute) => mute.subjects.join(", ") || "all" },
          { name: "Note", cell: (mute) => mute.note, drop: 3 },
          { name: "By", cell: (mute) => mute.created_by, drop: 2 },
          { name: "Until", cell: (mute) => <Instant at={mute.until} />, drop: 3 },
          { name: "Ends", cell: (mute) => <Instant at={mute.until} relative />, align: "right" },
          { name: "Actions", cell: (mute) => <Action kind="link" needs="operator" run={() => end(mute)}>Unmute</Action>, align: "right" },
        ]}
        empty={
          <Empty title="Nothing is muted." command="mainspring alert mute --rule no-agents --for 2h 'new hosts'">
            A mute keeps quiet what you know of, until it ends.
          </Empty>
        }
      />
      {isOpen && <MuteForm alert={null} close={() => setOpen(false)} done={changed} />}
    </>
  );
}

const resolved: Column<AlertView>[] = [
  { name: "Severity", cell: (alert) => <Severity of={alert.severity} />, drop: 3 },
  { name: "About", cell: (alert) => <Subject of={alert.subject} /> },
  { name: "Message", cell: (alert) => <span title={alert.message}>{alert.message}</span>, drop: 2 },
  { name: "Rule", cell: (alert) => alert.rule, drop: 1 },
  { name: "Fired", cell: (alert) => <Instant at={alert.fired_at} />, drop: 1 },
  { name: "Resolved", cell: (alert) => <Instant at={alert.resolved_at} /> },
  { name: "Lasted", cell: (alert) => <Span seconds={alert.fired_at && alert.resolved_at ? (Date.parse(alert.resolved_at) - Date.parse(alert.fired_at)) / 1000 : null} />, align: "right", drop: 3 },
];

function Resolved() {
  const list = useList("GET /alerts", { state: "resolved" }, (alert) => alert.id);
  const [isStale, setStale] = useState(false);
  useLive(["alerts"], (event) => event.topic === "alerts" && setStale(true));
  return (
    <>
      {isStale && (
        <p class="table-note">
          <button type="button" class="link" onClick={() => (setStale(false), list.refresh())}>Alerts have changed · show</button>
        </p>
      )}
      <ListTable label="Resolved alerts" columns={resolved} list={list} empty={<Empty title="No alert has been resolved yet.">What fired and is over is kept here.</Empty>} />
    </>
  );
}

const DELIVERY = { pending: "pending", delivered: "delivered", given_up: "given up" } as const;
const messages: Column<DeliveryView>[] = [
  { name: "State", cell: (one) => <State of={one.state === "delivered" ? "succeeded" : one.state === "given_up" ? "failed" : "pending"} title={DELIVERY[one.state]} /> },
  { name: "Channel", cell: (one) => one.channel },
  { name: "Message", cell: (one) => one.title ?? one.rule ?? "test message" },
  { name: "Attempts", cell: (one) => one.attempts, align: "right", drop: 3 },
  { name: "Made", cell: (one) => <Instant at={one.created_at} />, drop: 2 },
  { name: "Next try", cell: (one) => <Instant at={one.next_try_at} relative />, drop: 1 },
  { name: "Error", cell: (one) => <span class="quiet" title={one.last_error ?? ""}>{one.last_error ?? ""}</span>, drop: 2 },
];

function Messages() {
  const channel = query.value.get("channel");
  const list = useList("GET /deliveries", { channel }, (one) => one.id);
  useLive(["alerts"], (event) => event.topic === "resync" || void call("GET /deliveries", { channel, limit: 100 }).then(({ items }) => list.patch(items, () => true)));
  return (
    <>
      <p class="table-note">
        {channel && <span>to {channel} · <a href="alerts?tab=messages">all channels</a></span>}
        <Fresh list={list} one="message" />
      </p>
      <ListTable
        label="Messages"
        columns={messages}
        list={list}
        empty={
          <Empty title="Nothing was told yet." command="mainspring channel test ops">
            Each message to a channel is shown here for a week, with its attempts and what the receiver answered.
          </Empty>
        }
      />
    </>
  );
}
