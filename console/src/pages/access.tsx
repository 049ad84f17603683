// Access: tokens for programs and agents, sessions of people. A secret is shown once, here and nowhere else.

import { useState } from "preact/hooks";
import { act } from "../core/actions";
import { call, newKey, session, whyNot } from "../core/api";
import { now } from "../core/clock";
import { useList } from "../core/list";
import type { List } from "../core/list";
import { base } from "../core/router";
import type { NewLogin, NewToken, Session, Token } from "../core/schema";
import { list as wordsOf } from "../core/typed";
import { Action, Confirm, Tabs } from "../parts/controls";
import { Check, FormDialog, Secret, Select, Text } from "../parts/form";
import { Empty, Page,  } from "../parts/page";
import { Instant, NONE, State } from "../parts/show";
import { ListTable,  } from "../parts/table";
import type { Column } from "../parts/table";

const ROLES = { viewer: "sees everything, changes nothing", submitter: "submits tasks, sees and cancels tasks", operator: "acts: retry, cancel, hold, enable, drain", admin: "defines jobs and schedules, grants access", agent: "runs tasks: for agents, not for people", metrics: "reads /metrics and health" } as const;
type Role = keyof typeof ROLES;
const PEOPLE: Role[] = ["viewer", "submitter", "operator", "admin"];

export default function Access() {
  const why = whyNot("admin");
  if (why)
    return (
      <Page title="Access">
        <Empty title="Here are tokens and sessions: who may do what, and until when.">It {why}. You are logged in as {session.value?.name}.</Empty>
      </Page>
    );
  return <Admin />;
}

function Admin() {
  const tokens = useList("GET /tokens", {}, (token) => token.id);
  const sessions = useList("GET /sessions", {}, (one) => one.id);
  const [shows, setShows] = useState<"token" | "login" | null>(null);
  const [asks, setAsks] = useState<{ kind: "token"; of: Token } | { kind: "session"; of: Session } | null>(null);
  const revoke = (given: NonNullable<typeof asks>) =>
    given.kind === "token"
      ? act("DELETE /tokens/{id}", { params: { id: given.of.id }, said: () => `Token ${given.of.name} is revoked, with the sessions that came from it.`, then: () => (tokens.refresh(), sessions.refresh()) })
      : act("DELETE /sessions/{id}", { params: { id: given.of.id }, said: () => `The session of ${given.of.actor} has ended.`, then: sessions.refresh });
  return (
    <Page
      title="Access"
      remark="Tokens are for programs and agents; people log in by a link that works once."
      actions={
        <>
          <Action needs="admin" run={() => setShows("login")}>Login link …</Action>
          <Action kind="main" needs="admin" run={() => setShows("token")}>New token …</Action>
        </>
      }
    >
      <Tabs
        of={[
          { id: "tokens", word: "Tokens", count: tokens.isLoading ? undefined : tokens.rows.length, content: () => <Part list={tokens} label="Tokens" columns={tokenColumns((of) => setAsks({ kind: "token", of }))} /> },
          { id: "sessions", word: "Sessions", count: sessions.isLoading ? undefined : sessions.rows.length, content: () => <Part list={sessions} label="Sessions" columns={sessionColumns((of) => setAsks({ kind: "session", of }))} /> },
        ]}
      />
      {shows === "token" && <MakeToken close={() => setShows(null)} done={tokens.refresh} />}
      {shows === "login" && <MakeLogin close={() => setShows(null)} />}
      {asks && (
        <Confirm title={asks.kind === "token" ? `Revoke ${asks.of.name}` : `End the session of ${asks.of.actor}`} word={asks.kind === "token" ? "Revoke" : "End it"} run={() => revoke(asks)} close={() => setAsks(null)}>
          <p>{asks.kind === "token" ? "It is refused within a second, and sessions that came from it end. There is no undo." : "Its next request is refused."}</p>
        </Confirm>
      )}
    </Page>
  );
}

function Part<T>({ list, label, columns }: { list: List<T>; label: string; columns: Column<T>[] }) {
  return (
    <>
      <ListTable label={label} columns={columns} list={list} empty={<Empty title="There is none." command="mainspring token create ci --role submitter" />} />
      <p class="table-note">
        <button type="button" class="link" onClick={list.refresh}>Look again</button>
        {list.hasMore && "more below"}
      </p>
    </>
  );
}

const dash = NONE;
const some = (words: readonly string[] | null | undefined, all: string) => (words?.length ? <code>{words.join(" ")}</code> : <span class="quiet">{all}</span>);
const stateOf = (token: Token): string => (token.revoked_at ? "revoked" : token.expires_at && Date.parse(token.expires_at) <= now() ? "expired" : token.once && token.used_at ? "used" : "active");

const tokenColumns = (revoke: (token: Token) => void): Column<Token>[] => [
  { name: "Name", cell: (token) => <>{token.name} {token.id === session.value?.token && <span class="chip">yours</span>}</> },
  { name: "Role", cell: (token) => token.role },
  { name: "State", cell: (token) => <State of={stateOf(token)} />, drop: 3 },
  { name: "For", cell: (token) => (token.role === "agent" ? some(token.agents, "any agent") : some(token.jobs, "all jobs")), drop: 2 },
  { name: "Made by", cell: (token) => <span class="quiet">{token.created_by ?? "–"}</span>, drop: 1 },
  { name: "Last used", cell: (token) => (token.last_used_at ? <Instant at={token.last_used_at} relative /> : dash), drop: 1 },
  { name: "Expires", cell: (token) => (token.expires_at ? <Instant at={token.expires_at} relative /> : <span class="quiet">never</span>), drop: 2 },
  { name: "", label: "Actions", align: "right", cell: (token) => !token.revoked_at && <Action kind="link" needs="admin" label={`Revoke ${token.name}`} run={() => revoke(token)}>Revoke</Action> },
];

const sessionColumns = (end: (one: Session) => void): Column<Session>[] => [
  { name: "Who", cell: (one) => <>{one.actor} {one.id === session.value?.session && <span class="chip">this one</span>}</> },
  { name: "Role", cell: (one) => one.role },
  { name: "For", cell: (one) => some(one.jobs, "all jobs"), drop: 2 },
  { name: "From", cell: (one) => <span class="quiet">{one.address ?? "–"}{one.token !== null && `, token ${one.token}`}</span>, drop: 1 },
  { name: "Since", cell: (one) => <Instant at={one.created_at} />, drop: 2 },
  { name: "Last seen", cell: (one) => <Instant at={one.last_seen_at} relative />, drop: 3 },
  { name: "Expires", cell: (one) => <Instant at={one.expires_at} relative />, drop: 1 },
  {
    name: "",
    label: "Actions",
    align: "right",
    cell: (one) => (
      <Action kind="link" needs="admin" label={`End session ${one.id}`} refused={one.id === session.value?.session ? "this is yours: log out" : null} run={() => end(one)}>
        End
      </Action>
    ),
  },
];

// ── making them ───────────────────────────────────────────────────────────────────────────────────────

function MakeToken({ close, done }: { close: () => void; done: () => void }) {
  const [given, setGiven] = useState({ name: "", jobs: "", expires: "", agents: "", labels: "", rate: "" });
  const [role, setRole] = useState<Role>("submitter");
  const [once, setOnce] = useState(false);
  const [made, setMade] = useState<NewToken | null>(null);
  if (made) return <Secret title={`Token ${made.name}`} text={made.token ?? ""} note="This is its secret, shown this once: copy it now." close={close} />;
  const isAgent = role === "agent";
  const send = async () => {
    const { name, jobs, expires, agents, labels, rate } = given;
    const body = {
      name: name.trim(),
      role,
      ...(PEOPLE.includes(role) && jobs.trim() && { jobs: wordsOf(jobs) }),
      ...(expires.trim() && { expires: expires.trim() }),
      ...(rate.trim() && { rate: Number(rate) }),
      ...(isAgent && { once, agents: wordsOf(agents), labels: wordsOf(labels) }),
    };
    setMade(await call("POST /tokens", {}, body, { key: newKey() }));
    done();
    return false;
  };
  return (
    <FormDialog title="New token" word="Make it" needs="admin" refused={given.name.trim() ? null : "give it a name"} run={send} close={close}>
      {(fault) => {
        const text = (name: keyof typeof given, label: string, hint: string) => <Text label={label} hint={hint} fault={fault(name)} value={given[name]} set={(value) => setGiven({ ...given, [name]: value })} />;
        return (
          <>
            {text("name", "Name", "What it is for: ci, web-1, grafana.")}
            <Select label="Role" hint={ROLES[role]} value={role} set={(value) => setRole(value as Role)} of={Object.keys(ROLES).map((one) => [one, one] as const)} />
            {PEOPLE.includes(role) && text("jobs", "Only these jobs", "Names or patterns with *; empty: all jobs.")}
            {isAgent && text("agents", "Only agents with these names", "web-* db-1; empty: any.")}
            {isAgent && text("labels", "Only with these labels", "zone=eu gpu=*; empty: any.")}
            {isAgent && (
              <Check is={once} set={setOnce}>one agent only: the first to come takes it</Check>
            )}
            <div class="form-pairs">
              {text("expires", "Expires after", "30d, 12h; empty: when it is revoked.")}
              {text("rate", "Requests a second", "Empty: as many as the server allows.")}
            </div>
          </>
        );
      }}
    </FormDialog>
  );
}

function MakeLogin({ close }: { close: () => void }) {
  const [role, setRole] = useState<Role>("viewer");
  const [jobs, setJobs] = useState("");
  const [made, setMade] = useState<NewLogin | null>(null);
  if (made) return <Secret title="Login link" text={`${location.origin}${base}login#${made.code ?? ""}`} note={`Opens the console once as ${made.role}, within ten minutes.`} close={close} />;
  const send = async () => {
    setMade(await call("POST /logins", {}, { role, ...(jobs.trim() && { jobs: wordsOf(jobs) }) }, { key: newKey() }));
    return false;
  };
  return (
    <FormDialog title="Login link" word="Make the link" needs="admin" run={send} close={close}>
      {(fault) => (
        <>
          <Select label="Role" hint={ROLES[role]} value={role} set={(value) => setRole(value as Role)} of={PEOPLE.map((one) => [one, one] as const)} />
          <Text label="Only these jobs" hint="Names or patterns with *; empty: those you reach." fault={fault("jobs")} value={jobs} set={setJobs} />
        </>
      )}
    </FormDialog>
  );
}
