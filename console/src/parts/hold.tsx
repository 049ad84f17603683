// Holds: nothing new starts until it is released. One of everything is said on every page.

import { signal } from "../core/signals";
import { useState } from "preact/hooks";
import { act } from "../core/actions";
import { session } from "../core/api";
import { useGet } from "../core/query";
import type { HoldChange, HoldView } from "../core/schema";
import { Action } from "./controls";
import { Check, FormDialog, Text } from "./form";
import { Instant, many } from "./show";

/** Grows with each change made here, so that the line follows at once. */
const changes = signal(0);
const LOOK_EVERY = 15; // seconds

const held = ({ armed, running }: HoldChange): string => `${armed ? `${many(armed, "task")} taken back from agents` : "no task had to be taken back"}; ${running ? `${running === 1 ? "1 runs" : `${running} run`} on` : "none runs"}`;

/** Hold a job, or everything. */
export function hold(job: string | null, body: { note?: string; skip?: boolean } = {}, done: () => void = () => {}): Promise<HoldChange | null> {
  return act(job === null ? "POST /hold" : "POST /jobs/{name}/hold", {
    params: job === null ? {} : { name: job },
    body,
    said: (answer) => `${job ?? "Everything"} is held: ${held(answer)}.`,
    undo: () => release(job, done, true),
    then: () => ((changes.value += 1), done()),
  });
}

/** Let it go on: what waits is spread over a minute, or starts at once. */
export function release(job: string | null, done: () => void = () => {}, at_once = false, before?: HoldView | null): Promise<HoldChange | null> {
  return act(job === null ? "POST /release" : "POST /jobs/{name}/release", {
    params: job === null ? {} : { name: job },
    body: { at_once },
    said: ({ waiting }) => `${job ?? "Everything"} is released: ${waiting ? `${many(waiting, "task")} let go${at_once ? "" : ", over a minute"}` : "nothing waited"}.`,
    undo: () => hold(job, { ...(before?.note ? { note: before.note } : {}), skip: before?.skip ?? false }, done),
    then: () => ((changes.value += 1), done()),
  });
}

export function HoldDialog({ job, close, done }: { job: string | null; close: () => void; done?: () => void }) {
  const [note, setNote] = useState("");
  const [skip, setSkip] = useState(false);
  return (
    <FormDialog title={`Hold ${job ?? "everything"}`} word="Hold" needs="operator" danger run={async () => (await hold(job, { ...(note.trim() && { note: note.trim() }), skip }, done)) !== null} close={close}>
      {() => (
        <>
          <p>Nothing new {job === null ? "of any job" : "of this job"} starts until it is released. What runs goes on; what agents have not started is taken back.</p>
          <Text label="Why" hint="Everybody sees it beside the hold." first value={note} set={setNote} />
          <Check is={skip} set={setSkip}>plan times meanwhile are skipped, not made up for</Check>
        </>
      )}
    </FormDialog>
  );
}

/** Who holds it since when and why; after a release, until when what waited is let go. */
export function HoldWords({ of, what }: { of: HoldView; what: string }) {
  if (of.released_at)
    return (
      <>
        {what} was released; what waited is let go until <Instant at={of.spread_until} />.
      </>
    );
  return (
    <>
      {what} is held by {of.by} since <Instant at={of.since} />
      {of.note && <>: “{of.note}”</>}
      {of.skip && <> Plan times are skipped meanwhile.</>}
    </>
  );
}

export function HoldLine() {
  const isBlind = session.value?.role === "submitter";
  const found = useGet("GET /hold", isBlind ? null : {}, { with: changes.value, every: LOOK_EVERY, keep: true });
  const now = found.data?.everything;
  if (!now || isBlind) return null;
  return (
    <div class="line warn hold-line" role="note">
      <p>
        <HoldWords of={now} what="Everything" />
      </p>
      {!now.released_at && (
        <Action needs="operator" run={() => release(null, undefined, false, now)}>
          Release everything
        </Action>
      )}
    </div>
  );
}
