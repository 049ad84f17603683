// Jobs: what each runs, what it has to do, how it has done in the last hour. Figures are those of the rows on screen.

import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../core/api";
import { useList } from "../core/list";
import { useLive } from "../core/live";
import { runOf } from "../core/policies";
import { FAILURES } from "../core/states";
import { link, query, setQuery, withQuery } from "../core/router";
import type { JobFigures, JobView } from "../core/schema";
import { count, span } from "../core/time";
import { anywhere } from "../core/typed";
import { Empty, Page,  } from "../parts/page";
import { OutcomeBar } from "../parts/outcomes";
import { Search } from "../parts/search";
import { Instant, many, NONE, State, To } from "../parts/show";
import { ListTable,  } from "../parts/table";
import type { Column } from "../parts/table";

const PART = 100; // rows of one request
const LOOK_AFTER = 3000; // ms between two looks at the rows on screen while tasks change
const BAD = FAILURES.join();

export const tasksOf = (job: string, more = ""): string => withQuery("tasks", { filter: `job:${/\s/.test(job) ? `"${job}"` : job}${more && ` ${more}`}` });
const none = NONE;
const sum = (of: Record<string, number>): number => Object.values(of).reduce((total, one) => total + one, 0);

export default function Jobs() {
  const text = query.value.get("name") ?? "";
  const list = useList("GET /jobs", { name: anywhere(text), limit: PART }, (job) => job.name);
  const figures = useFigures(list.rows, list.patch);
  const columns: Column<JobView>[] = [
    {
      name: "Job",
      cell: (job) => (
        <>
          <To page="jobs" of={job.name} />
          {job.held && !job.held.released_at && (
            <span class="chip tone-warn" title={job.held.note ?? undefined}>
              held
            </span>
          )}
        </>
      ),
    },
    { name: "Kind", cell: (job) => job.definition.run.type, drop: 2 },
    { name: "Runs", cell: (job) => <code class="quiet" title={job.definition.description}>{runOf(job.definition)}</code>, drop: 1 },
    { name: "Live", cell: (job) => (job.live ? <a class="figure" href={tasksOf(job.name, "state:blocked,pending,assigned,running")}>{job.live_is_estimated && "about "}{count(job.live)}</a> : none), align: "right" },
    { name: "Last ended", cell: (job) => <Last of={job} />, drop: 2 },
    { name: "Ended", label: "Ended in the last hour", align: "right", drop: 3, cell: (job) => figure(figures.get(job.name), (one) => count(sum(one.ended))) },
    {
      name: "Failed",
      label: "Failed in the last hour",
      align: "right",
      cell: (job) => {
        const failed = FAILURES.reduce((total, state) => total + (figures.get(job.name)?.ended[state] ?? 0), 0);
        return failed ? <a class="late figure" href={tasksOf(job.name, `state:${BAD}`)}>{count(failed)}</a> : none;
      },
    },
    { name: "p50", label: "Median duration in the last hour", align: "right", drop: 1, cell: (job) => figure(figures.get(job.name)?.duration, (one) => span(one.p50)) },
    { name: "p99", label: "99th percentile of the duration in the last hour", align: "right", drop: 1, cell: (job) => figure(figures.get(job.name)?.duration, (one) => span(one.p99)) },
  ];
  return (
    <Page title="Jobs" remark="What tasks run. Ended, failed and durations are those of the last hour.">
      <Search label="Filter jobs by name" placeholder="report, shop.*" value={text} set={(name) => setQuery({ name })} />
      <ListTable
        label="Jobs"
        columns={columns}
        list={list}
        to={(job) => link`jobs/${job.name}`}
        empty={
          text ? (
            <Empty title={`No job has “${text}” in its name.`}>
              <button type="button" class="link" onClick={() => setQuery({ name: null })}>Show all jobs</button>
            </Empty>
          ) : (
            <Empty title="A job says what to run; there is none yet." command="mainspring job create hello -- echo hello" />
          )
        }
      />
      <p class="table-note" role="status">
        {list.rows.length > 0 && (list.hasMore ? `${many(list.rows.length, "job")} so far, more below` : many(list.rows.length, "job"))}
      </p>
    </Page>
  );
}

const figure = <T,>(of: T | null | undefined, say: (of: T) => string) => (of ? <span class="figure">{say(of)}</span> : none);

/** How its tasks ended in the last minute or hour in which any did: one word if all ended alike, else a bar. */
function Last({ of: { last_ended: last } }: { of: JobView }) {
  if (!last) return none;
  const states = Object.keys(last.outcomes);
  return (
    <span class="last-ended">
      {states.length === 1 ? <State of={states[0] ?? ""} /> : <OutcomeBar counts={last.outcomes} small />}
      <span class="quiet">
        <Instant at={last.at} relative />
      </span>
    </span>
  );
}

/** The names of the rows that are drawn. */
const drawn = (): string[] => [...document.querySelectorAll<HTMLElement>("tr[data-id]")].map((row) => row.dataset.id ?? "").slice(0, PART);

/** The last hour of the rows on screen, and those rows themselves anew while tasks change. */
function useFigures(rows: readonly JobView[], patch: (rows: JobView[]) => void): ReadonlyMap<string, JobFigures> {
  const [found, setFound] = useState<ReadonlyMap<string, JobFigures>>(new Map());
  const isDue = useRef(true);
  const hasChanged = useRef(false);
  const latest = useRef(patch);
  latest.current = patch;
  useLive(["tasks"], () => void (hasChanged.current = true));
  useEffect(() => void (isDue.current = true), [rows.length]);
  useEffect(() => {
    const controller = new AbortController();
    let isBusy = false;
    let lookedAt = 0;
    let isEarly = false; // figures are written up to 2 s after what they count: each look is followed by a later one
    const look = async () => {
      const isLate = (hasChanged.current || isEarly) && performance.now() - lookedAt >= LOOK_AFTER;
      const names = drawn();
      if (isBusy || document.hidden || !(isDue.current || isLate) || !names.length) return;
      isBusy = true;
      const wasDue = isDue.current;
      isEarly = isDue.current || hasChanged.current;
      isDue.current = hasChanged.current = false;
      lookedAt = performance.now();
      const how = { signal: controller.signal };
      try {
        const [figures, jobs] = await Promise.all([
          call("GET /figures/jobs", { job: names }, undefined, how),
          wasDue ? null : call("GET /jobs", { name: names, limit: PART }, undefined, how),
        ]);
        setFound((old) => new Map([...old, ...figures.items.map((one) => [one.job, one] as const)]));
        if (jobs) latest.current(jobs.items);
      } catch {
        // the list itself tells what is wrong, and the next look may do
      }
      isBusy = false;
    };
    const scrolled = () => void (isDue.current = true);
    addEventListener("scroll", scrolled, { passive: true });
    const timer = setInterval(look, 500);
    return () => {
      controller.abort();
      clearInterval(timer);
      removeEventListener("scroll", scrolled);
    };
  }, []);
  return found;
}
