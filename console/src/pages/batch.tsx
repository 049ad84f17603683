// One batch: how far it is, what failed alike, what it calls when it has ended, and what runs after what.

import { useState } from "preact/hooks";
import { act } from "../core/actions";
import { FAILURES } from "../core/states";
import { useGet } from "../core/query";
import { link, withQuery } from "../core/router";
import type { Names } from "../core/router";
import type { BatchDetail } from "../core/schema";
import { count, percent, span } from "../core/time";
import { Action, Confirm } from "../parts/controls";
import { Check, FormDialog } from "../parts/form";
import { Failures } from "../parts/failures";
import { OutcomeBar, OutcomeWords } from "../parts/outcomes";
import { Fact, Facts, Page, Section, Show } from "../parts/page";
import { Instant, Json, many, State, To } from "../parts/show";
import { Table } from "../parts/table";
import { Flow } from "../pictures/graph";
import { columns, countsOf } from "./batches";

const LAST_FAILED = 50;
const MOST_NODES = 200;
const ASK_ABOVE = 100; // tasks beyond which the number is typed
const EVENTS: Record<string, string> = { success: "when all have succeeded", complete: "when all have ended", failure: "when the first has failed for good" };

const failures = ({ failed, timed_out, lost }: BatchDetail): number => failed + timed_out + lost;

export default function Batch({ names: { id = "" } }: { names: Names }) {
  const batch = useGet("GET /batches/{id}", { id }, { topics: ["tasks"] });
  const [asks, setAsks] = useState<"cancel" | "retry" | null>(null);
  const found = batch.data;
  const tasks = (filter: string) => withQuery("tasks", { filter: `batch:${id}${filter && ` ${filter}`}` });
  const close = () =>
    act("POST /batches/{id}/close", { params: { id }, said: ({ state, live }) => `Batch ${id} is ${state}${live ? `; it ends with its last ${many(live, "task")}` : ""}.`, then: batch.refresh });
  return (
    <Page
      title={found ? found.name : `Batch ${id}`}
      trail={[["Batches", "batches"]]}
      remark={
        found && (
          <>
            <State of={found.outcome ?? found.state} /> · batch {id}
            {found.retrying && <> · what failed is being retried</>}
            {found.cancelled_at && !found.ended_at && <> · being cancelled</>}
          </>
        )
      }
      actions={
        found && (
          <>
            {found.state === "open" && <Action needs="submitter" run={close}>Close</Action>}
            <Action needs="operator" refused={failures(found) ? null : "nothing in it has failed"} run={() => setAsks("retry")}>Retry failed …</Action>
            <Action kind="danger" needs="submitter" refused={found.ended_at ? "it has ended" : null} run={() => setAsks("cancel")}>Cancel …</Action>
          </>
        )
      }
    >
      <Show of={batch}>
        {(of) => (
          <>
            <Section title="Progress" aside={<a href={tasks("")}>all its tasks</a>}>
              <OutcomeBar counts={countsOf(of)} />
              <OutcomeWords counts={countsOf(of)} to={(state) => tasks(state === "live" ? "state:blocked,pending,assigned,running" : `state:${state}`)} />
              <p class="figure">
                {count(of.total - of.live)} of {many(of.total, "member")} ended ({percent(of.progress, 0)})
                {of.live > 0 && of.rate !== null && <> · {of.rate < 1 ? `${Math.round(of.rate * 60)} a minute` : `${of.rate.toFixed(of.rate < 10 ? 1 : 0)} a second`}</>}
                {of.live > 0 && of.time_left !== null && <> · about {span(of.time_left)} left</>}
                {of.state === "open" && <span class="quiet"> · open: it ends only once it is closed</span>}
              </p>
            </Section>
            <div class="columns">
              <Callbacks of={of} />
              <Section title="About">
                <Facts>
                  <Fact name="Created"><Instant at={of.created_at} date="always" /> by {of.created_by}</Fact>
                  <Fact name="Closed">{of.closed_at && <Instant at={of.closed_at} date="always" />}</Fact>
                  <Fact name="Ended">{of.ended_at && <Instant at={of.ended_at} date="always" />}</Fact>
                  <Fact name="Cancelled">{of.cancelled_at && <Instant at={of.cancelled_at} date="always" />}</Fact>
                  <Fact name="Part of">{of.parent !== null && <a href={link`batches/${of.parent}`}>batch {of.parent}</a>}</Fact>
                </Facts>
              </Section>
            </div>
            {failures(of) > 0 && <Failed of={of} all={tasks(`state:${FAILURES.join()}`)} />}
            {of.total <= MOST_NODES && <Flow of="batch" id={of.id} />}
            <Within id={id} />
          </>
        )}
      </Show>
      {asks === "retry" && found && <Retry of={found} close={() => setAsks(null)} done={batch.refresh} />}
      {asks === "cancel" && found && (
        <Confirm
          title={`Cancel batch ${id}`}
          word="Cancel it"
          {...(found.live > ASK_ABOVE ? { type: String(found.live) } : {})}
          run={() => act("POST /batches/{id}/cancel", { params: { id }, said: ({ live }) => `Batch ${id} is closed and being cancelled: ${many(live, "task")} left.`, then: batch.refresh })}
          close={() => setAsks(null)}
        >
          <p>{many(found.live, "live member")} {found.live === 1 ? "is" : "are"} cancelled, in steps: what waits at once, what runs is asked to stop.</p>
        </Confirm>
      )}
    </Page>
  );
}

function Retry({ of, close, done }: { of: BatchDetail; close: () => void; done: () => void }) {
  const [again, setAgain] = useState(false);
  const called = of.callbacks.some(({ at }) => at !== null);
  const run = async () =>
    (await act("POST /batches/{id}/retry", {
      params: { id: of.id },
      body: { callbacks_again: again },
      said: () => `${many(failures(of), "task")} of batch ${of.id} ${failures(of) === 1 ? "is" : "are"} being retried.`,
      then: done,
    })) !== null;
  return (
    <FormDialog title="Retry what failed" word={`Retry ${many(failures(of), "task")}`} needs="operator" run={run} close={close}>
      {() => (
        <>
          <p>
            What failed, timed out or was lost runs again, in the batches in it too.{of.ended_at && " The batch ends again after that."}
          </p>
          {called && (
            <Check is={again} set={setAgain}>callbacks that were called before are called once more</Check>
          )}
        </>
      )}
    </FormDialog>
  );
}

function Callbacks({ of }: { of: BatchDetail }) {
  return (
    <Section title="Callbacks">
      {of.callbacks.length ? (
        <ul class="callbacks">
          {of.callbacks.map((one) => (
            <li key={one.event} class="card">
              <p>
                <To page="jobs" of={one.job} /> <span class="quiet">{EVENTS[one.event] ?? one.event}</span>
              </p>
              {one.args !== null && typeof one.args === "object" && Object.keys(one.args).length > 0 && <Json of={one.args} />}
              <p>
                {one.error ? (
                  <span class="tone-bad">{one.error}</span>
                ) : one.task !== null ? (
                  <>
                    called <Instant at={one.at} /> as <a href={link`tasks/${one.task}`}>task {one.task}</a>
                  </>
                ) : one.at ? (
                  <>called <Instant at={one.at} /></>
                ) : (
                  <span class="quiet">{of.ended_at ? "not called" : "not called yet"}</span>
                )}
              </p>
            </li>
          ))}
        </ul>
      ) : (
        <p class="quiet">It calls no job when it ends.</p>
      )}
    </Section>
  );
}

function Failed({ of, all }: { of: BatchDetail; all: string }) {
  const found = useGet("GET /tasks", { batch: of.id, state: FAILURES, fields: "all", limit: LAST_FAILED }, { with: failures(of), keep: true });
  return (
    <Section title="Failed" aside={<a href={all}>all {count(failures(of))}</a>}>
      <Show of={found}>
        {({ items, next }) =>
          items.length ? (
            <>
              <Failures tasks={items} />
              {next && <p class="table-note">of the last {LAST_FAILED} failures</p>}
            </>
          ) : (
            <p class="quiet">They are members of batches in it.</p>
          )
        }
      </Show>
    </Section>
  );
}

function Within({ id }: { id: string }) {
  const found = useGet("GET /batches", { parent: id, limit: 20 }, { topics: ["tasks"] });
  if (!found.data?.items.length) return null;
  return (
    <Section title="Batches in it">
      <Table label="Batches in it" columns={columns} rows={found.data.items} id={(batch) => batch.id} to={(batch) => link`batches/${batch.id}`} />
      {found.data.next && <p class="table-note">the newest 20</p>}
    </Section>
  );
}
