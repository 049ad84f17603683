// The audit: who did what, before and after, the newest first. For admins of all jobs.

import { useState } from "preact/hooks";
import { session, whyNot } from "../core/api";
import { now } from "../core/clock";
import { useList } from "../core/list";
import { link, query, setQuery } from "../core/router";
import type { Entry } from "../core/schema";
import { Field, Switch } from "../parts/controls";
import { Empty, Loading, Page, Problem } from "../parts/page";
import { Instant, Json, many, NONE } from "../parts/show";

const PART = 50;
const SINCE = [["", "all"], ["1h", "1 h"], ["24h", "24 h"], ["7d", "7 d"], ["30d", "30 d"]] as const;
const SECONDS: Record<string, number> = { "1h": 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400 };
const FILTERS = [
  ["actor", "Who", "token:ci, local:*"],
  ["action", "Did", "task.cancel, job.*"],
  ["subject", "To", "job:report, schedule:*"],
] as const;

export default function Activity() {
  const why = whyNot("admin");
  const given = Object.fromEntries(FILTERS.map(([name]) => [name, query.value.get(name) ?? ""]));
  const since = query.value.get("since") ?? "";
  if (why)
    return (
      <Page title="Activity">
        <Empty title="Here is who changed what, with what it was before.">It {why}.</Empty>
      </Page>
    );
  return (
    <Page title="Activity" remark="Who changed what, with what it was before.">
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        {FILTERS.map(([name, label, placeholder]) => (
          <Field key={name} label={label}>
            {(id) => <input id={id} data-filter={name === "actor" || undefined} placeholder={placeholder} spellcheck={false} defaultValue={given[name]} onChange={(event) => setQuery({ [name]: event.currentTarget.value.trim() })} />}
          </Field>
        ))}
        <Switch label="Since" name="since" of={SINCE} />
      </form>
      <Entries key={JSON.stringify([given, since])} given={given} since={since} />
    </Page>
  );
}

function Entries({ given, since }: { given: Record<string, string>; since: string }) {
  const [from] = useState(() => (SECONDS[since] ? new Date(now() - SECONDS[since] * 1000).toISOString() : null));
  const list = useList("GET /audit", { ...given, since: from, limit: PART }, (entry) => entry.id);
  const isFiltered = Boolean(since || Object.values(given).some(Boolean));
  if (list.refusal) return <Problem refusal={list.refusal} retry={list.refresh} />;
  if (!list.rows.length)
    return list.isLoading ? (
      <Loading />
    ) : (
      <Empty title={isFiltered ? "Nothing matches." : "Nobody has changed anything yet."}>
        {isFiltered && (
          <button type="button" class="link" onClick={() => setQuery({ actor: null, action: null, subject: null, since: null })}>Show all</button>
        )}
      </Empty>
    );
  return (
    <>
      <ol class="entries" aria-label="What was done">
        {list.rows.map((entry) => (
          <li key={entry.id}>
            <Line of={entry} />
          </li>
        ))}
      </ol>
      <p class="table-note" role="status">
        {many(list.rows.length, "entry", "entries")}
        {list.searchedTo && <> · searched back to <Instant at={list.searchedTo} /></>}
        {list.hasMore ? (
          <button type="button" class="link" onClick={list.more}>{list.isLoading ? "Loading …" : "Show more"}</button>
        ) : (
          <span>that is all</span>
        )}
        <button type="button" class="link" onClick={list.refresh}>Look again</button>
      </p>
    </>
  );
}

/** Words in front of a subject that have a page. */
const PAGES: Record<string, (name: string) => string> = {
  task: (name) => link`tasks/${name}`,
  job: (name) => link`jobs/${name}`,
  schedule: (name) => link`schedules/${name}`,
  batch: (name) => link`batches/${name}`,
  agent: (name) => link`agents/${name}`,
  setting: () => "settings",
  token: () => "access",
  session: () => "access?tab=sessions",
};

function Line({ of }: { of: Entry }) {
  const [kind = "", name] = /^([\w-]+):(.*)$/s.exec(of.subject ?? "")?.slice(1) ?? [];
  const page = name && PAGES[kind]?.(name);
  const changes = Object.entries(of.changes ?? {}).filter(([, { old, new: is }]) => JSON.stringify(old) !== JSON.stringify(is));
  return (
    <details class={of.refused ? "refused" : ""}>
      <summary>
        <Instant at={of.at} />
        <span class="who-did">
          {of.actor} <span class="quiet">{of.role}</span>
        </span>
        <code>{of.action}</code>
        <span class="subject">{of.subject}</span>
        <span class={of.refused ? "tone-bad" : "quiet"}>
          {of.refused ? `refused: ${of.refused}` : changes.length ? (Object.values(of.changes ?? {}).every(({ old }) => old === null || old === undefined) ? many(changes.length, "value") : many(changes.length, "change")) : ""}
        </span>
      </summary>
      {changes.length > 0 && (
        <div class="changes-box">
        <table class="changes">
          <thead>
            <tr>
              <th scope="col">What</th>
              <th scope="col">Before</th>
              <th scope="col">After</th>
            </tr>
          </thead>
          <tbody>
            {changes.map(([what, { old, new: is }]) => (
              <tr key={what}>
                <th scope="row">{what}</th>
                <td>{old === null || old === undefined ? NONE : <Json of={old} />}</td>
                <td>{is === null || is === undefined ? NONE : <Json of={is} />}</td>
              </tr>
            ))}
          </tbody>
        </table>
        </div>
      )}
      {of.detail && <Json of={of.detail} />}
      <p class="quiet">
        {page && (
          <>
            <a href={page}>{of.subject}</a> ·{" "}
          </>
        )}
        entry {of.id}
        {of.address && <> · from {of.address}</>}
        {of.token !== null && <> · token {of.token}{of.token === session.value?.token && " (yours)"}</>}
        {of.request_id && <> · request {of.request_id}</>}
      </p>
    </details>
  );
}
