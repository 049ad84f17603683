// How many are in which state, as one bar: the widths are the counts, failures are hatched, and the words stand below.

import { lookOf } from "../core/states";
import { count } from "../core/time";
import { State } from "./show";

/** In the order in which they are drawn: what is well first, what is not done yet last. */
const ORDER = ["succeeded", "failed", "timed_out", "lost", "cancelled", "skipped", "running", "assigned", "pending", "blocked", "live"];
export type Counts = Record<string, number>;

const parts = (counts: Counts): [string, number][] => ORDER.flatMap((state) => (counts[state] ? [[state, counts[state]] as [string, number]] : []));
const words = (counts: Counts): string => parts(counts).map(([state, number]) => `${count(number)} ${lookOf(state).word}`).join(", ") || "none";

export function OutcomeBar({ counts, small = false }: { counts: Counts; small?: boolean }) {
  const shown = parts(counts);
  const total = shown.reduce((sum, [, number]) => sum + number, 0);
  return (
    <span class={small ? "outcome-bar small" : "outcome-bar"} role="img" aria-label={words(counts)} title={words(counts)}>
      {shown.map(([state, number]) => (
        <span key={state} class={`part-${lookOf(state).tone}`} style={{ width: `${(100 * number) / total}%` }} />
      ))}
    </span>
  );
}

/** Each state with its count, as a link to those tasks. */
export function OutcomeWords({ counts, to }: { counts: Counts; to?: ((state: string) => string) | undefined }) {
  return (
    <ul class="outcome-words">
      {parts(counts).map(([state, number]) => (
        <li key={state}>
          {to ? (
            <a href={to(state)}>
              <State of={state} /> <span class="number figure">{count(number)}</span>
            </a>
          ) : (
            <>
              <State of={state} /> <span class="number figure">{count(number)}</span>
            </>
          )}
        </li>
      ))}
    </ul>
  );
}
