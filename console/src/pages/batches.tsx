// Batches: tasks that are counted together, the newest first.

import { call } from "../core/api";
import { useList } from "../core/list";
import { useLive } from "../core/live";
import { useCoalesced } from "../core/once";
import { link, query, setQuery } from "../core/router";
import type { BatchView } from "../core/schema";
import { count, span } from "../core/time";
import { anywhere } from "../core/typed";
import { OutcomeBar } from "../parts/outcomes";
import type { Counts } from "../parts/outcomes";
import { Chips } from "../parts/controls";
import { Empty, Page,  } from "../parts/page";
import { Search } from "../parts/search";
import { Instant, many, NONE, State, To } from "../parts/show";
import { Fresh, ListTable,  } from "../parts/table";
import type { Column } from "../parts/table";

const PART = 50;
const STATES = ["open", "closed", "ended"];

export const countsOf = ({ succeeded, failed, timed_out, cancelled, skipped, lost, live }: BatchView): Counts => ({ succeeded, failed, timed_out, cancelled, skipped, lost, live });

export const columns: Column<BatchView>[] = [
  { name: "Batch", cell: (batch) => <To page="batches" of={batch.id} /> },
  { name: "Name", cell: (batch) => batch.name },
  { name: "State", cell: (batch) => <State of={batch.outcome ?? batch.state} /> },
  { name: "Members", cell: (batch) => <OutcomeBar counts={countsOf(batch)} small />, drop: 3 },
  { name: "Ended", align: "right", cell: (batch) => <span class="figure">{count(batch.total - batch.live)} of {count(batch.total)}</span>, drop: 2 },
  { name: "Left", align: "right", cell: (batch) => (batch.live && batch.time_left !== null ? <span class="figure">{span(batch.time_left)}</span> : NONE), drop: 1 },
  { name: "Created", cell: (batch) => <Instant at={batch.created_at} />, drop: 1 },
  { name: "By", cell: (batch) => <span class="quiet">{batch.created_by}</span>, drop: 1 },
];

export default function Batches() {
  const text = query.value.get("name") ?? "";
  const state = query.value.getAll("state");
  const params = { name: anywhere(text), state };
  const list = useList("GET /batches", { ...params, limit: PART }, (batch) => batch.id);
  const look = useCoalesced(async () => {
    const found = await call("GET /batches", { ...params, limit: PART });
    list.patch(found.items, (batch) => batch.id > (list.rows[0]?.id ?? 0));
  });
  useLive(["tasks"], look);
  return (
    <Page title="Batches" remark="Tasks that are counted together, with a callback when all have ended.">
      <Search label="Filter batches by name" placeholder="import*" value={text} set={(name) => setQuery({ name })} />
      <div class="quick" role="group" aria-label="States">
        <Chips of={STATES} held={state} set={(state) => setQuery({ state })} show={(state) => <State of={state} />} />
      </div>
      <div class="table-note">
        <Fresh list={list} one="batch" more="batches" />
      </div>
      <ListTable
        label="Batches"
        columns={columns}
        list={list}
        to={(batch) => link`batches/${batch.id}`}
        empty={
          text || state.length ? (
            <Empty title="No batch matches.">
              <button type="button" class="link" onClick={() => setQuery({ name: null, state: null })}>Show all batches</button>
            </Empty>
          ) : (
            <Empty title="A batch counts tasks together and calls a job when all have ended; there is none yet." command={"mainspring batch create import --on-complete report"} />
          )
        }
      />
      <p class="table-note" role="status">{list.rows.length > 0 && (list.hasMore ? "more below" : `all ${many(list.rows.length, "batch", "batches")}`)}</p>
    </Page>
  );
}
