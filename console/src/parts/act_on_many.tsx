// An action on many tasks: says how many first, asks for the number beyond a hundred, shows how far it is, and can be stopped.

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { send, tellRefusal, toast } from "../core/actions";
import { call, whyNot } from "../core/api";
import { cli, curl } from "../core/commands";
import { asFilter } from "../core/filter";
import type { Params } from "../core/router";
import type { Count } from "../core/schema";
import { VERBS } from "../core/task_actions";
import type { VerbName } from "../core/task_actions";
import { count } from "../core/time";
import { AsCommand } from "./as_command";
import { Action, Choice, Dialog } from "./controls";
import { many } from "./show";

const ASK_ABOVE = 100; // things beyond which the number is typed
const AT_ONCE = 100; // ids of one request
export const LEVELS = [
  ["low", "low"],
  ["normal", "normal"],
  ["high", "high"],
  ["critical", "critical"],
] as const;
export type Level = (typeof LEVELS)[number][0];

interface Props {
  verb: VerbName;
  /** These, or else all that match the parameters. */
  ids: number[] | null;
  params: Params;
  close: () => void;
  done: () => void;
}

/** The parameters with the states to which the action applies, those of the filter among them. */
export function within(params: Params, states: readonly string[]): Params {
  const given = params.state as string[] | undefined;
  return { ...params, state: given ? given.filter((state) => states.includes(state)) : [...states] };
}

export function ActOnMany({ verb, ids, params, close, done }: Props) {
  const { word, done: said, which, effect, states, body, needs } = VERBS[verb];
  const target = within(params, states);
  const isNone = (target.state as string[]).length === 0;
  const [matching, setMatching] = useState<Count | null>(ids ? { count: ids.length, is_exact: true } : isNone ? { count: 0, is_exact: true } : null);
  const [level, setLevel] = useState<Level>("high");
  const [typed, setTyped] = useState("");
  const [acted, setActed] = useState<{ done: number; left: number } | null>(null);
  const stop = useRef(new AbortController());
  const id = useId();

  useEffect(() => {
    if (!matching) void call("GET /tasks/count", target, undefined, { signal: stop.current.signal }).then(setMatching, (error) => stop.current.signal.aborted || (tellRefusal(error), close()));
    return () => stop.current.abort();
  }, []);

  const sent = { ...body, ...(verb === "priority" ? { priority: level } : {}) };
  const number = matching ? String(matching.count) : "";
  const asks = matching !== null && matching.count > ASK_ABOVE;
  const refused = !matching ? "they are being counted" : !matching.count ? "there is none" : asks && typed !== number ? `type ${number} first` : null;

  const run = async () => {
    const total = { done: 0, left: 0 };
    let stopped = "";
    try {
      const parts = ids ? Array.from({ length: Math.ceil(ids.length / AT_ONCE) }, (_, place) => ({ id: ids.slice(place * AT_ONCE, (place + 1) * AT_ONCE) })) : [asFilter(target)];
      for (const filter of parts) {
        let cursor: string | null = null;
        do {
          const step: { done: number; skipped: unknown[]; next: string | null } = await send("POST /actions/tasks", {}, { ...sent, filter, ...(cursor ? { cursor } : {}) });
          total.done += step.done;
          total.left += step.skipped.length;
          cursor = step.next;
          setActed({ ...total });
        } while (cursor && !stop.current.signal.aborted);
        if (stop.current.signal.aborted) break;
      }
      if (stop.current.signal.aborted) stopped = "; stopped there";
    } finally {
      // with ids, those to which it does not apply do not match and are not counted
      const left = ids && !stopped ? ids.length - total.done : total.left;
      toast({ kind: total.done ? "done" : "told", text: `${many(total.done, "task")} ${said}${left ? `; ${count(left)} could not be in the state that ${left === 1 ? "it was" : "they were"} in` : ""}${stopped}.` });
      close();
      done();
    }
  };
  const hasStarted = useRef(false);
  const start = async () => {
    if (refused || whyNot(needs) || hasStarted.current) return;
    hasStarted.current = true;
    await run();
  };
  const isRunning = acted !== null;
  return (
    <Dialog title={ids ? `${word}: ${many(ids.length, "selected task")}` : `${word}: all that match`} close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void start().catch(tellRefusal);
        }}
      >
        <p>
          {isRunning
            ? `${count(acted.done)} of ${matching?.is_exact ? "" : "more than "}${count(matching?.count ?? 0)} so far …`
            : !matching
              ? "Counting …"
              : ids
                ? `It applies to those that ${which}. ${effect}`
                : `${count(matching.count)}${matching.is_exact ? "" : " and more"} of the tasks that match the filter ${which}. ${effect}`}
        </p>
        {isRunning && <progress aria-label="Progress" max={Math.max(1, matching?.count ?? 1)} value={acted.done + acted.left} />}
        {verb === "priority" && !isRunning && <Choice label="Priority" of={LEVELS} value={level} set={setLevel} />}
        {asks && !isRunning && (
          <p class="field">
            <label for={id}>
              Type <code>{number}</code> to confirm
            </label>
            <input id={id} inputMode="numeric" autoComplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value.replace(/[\s,]/g, ""))} />
          </p>
        )}
        <footer class="dialog-foot">
          {!isRunning && <AsCommand of={() => asCommands(verb, ids, { ...sent, filter: ids ? { id: ids } : asFilter(target) })} />}
          <span class="grow" />
          <button type="button" class="button plain" onClick={close}>
            {isRunning ? "Stop" : "Back"}
          </button>
          <Action kind={verb === "cancel" || verb === "kill" ? "danger" : "main"} needs={needs} refused={refused} run={start}>
            {verb === "priority" ? "Change" : word}
          </Action>
        </footer>
      </form>
    </Dialog>
  );
}

function asCommands(verb: VerbName, ids: number[] | null, body: unknown): (readonly [string, string])[] {
  const found: [string, string][] = [["curl", curl("POST /actions/tasks", {}, body)]];
  if (ids?.length === 1 && verb === "now") found.unshift(["mainspring", cli("task", "edit", ids[0] ?? 0, "--now")]);
  if (ids && (verb === "retry" || verb === "cancel" || verb === "kill")) found.unshift(["mainspring", cli("task", verb, ...ids)]);
  return found;
}
