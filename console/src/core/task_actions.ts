// What can be done to a task: in which states, by whom, and in which words.

import type { Rank } from "./api";
import { LIVE } from "./states";

const WAITING = ["blocked", "pending"];
const RETRIED = ["failed", "timed_out", "cancelled", "skipped", "lost"];

export interface Verb {
  word: string;
  /** "3 tasks retried." */
  done: string;
  needs: Rank;
  states: readonly string[];
  /** Those of the selection to which it applies. */
  which: string;
  effect: string;
  body: Record<string, unknown>;
}

/** On many at once: POST /actions/tasks. */
export const VERBS = {
  retry: { word: "Retry", done: "retried", needs: "operator", states: RETRIED, which: "ended without success", effect: "They run again, with their attempts counted anew.", body: { action: "retry" } },
  now: { word: "Run now", done: "made due now", needs: "operator", states: WAITING, which: "wait", effect: "They are due at once, whatever time they had.", body: { action: "change", now: true } },
  priority: { word: "Priority", done: "changed", needs: "operator", states: WAITING, which: "wait", effect: "What waits is served in the order of its priority.", body: { action: "change" } },
  cancel: { word: "Cancel", done: "cancelled", needs: "operator", states: LIVE, which: "have not ended", effect: "What waits is cancelled at once; what runs is asked to stop, and has its grace to do so.", body: { action: "cancel" } },
  kill: { word: "Kill", done: "killed", needs: "operator", states: LIVE, which: "have not ended", effect: "What waits is cancelled at once; what runs is ended without grace.", body: { action: "kill" } },
} as const satisfies Record<string, Verb>;
export type VerbName = keyof typeof VERBS;
