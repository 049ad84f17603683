// The life of a task as steps on one axis: lengths by their logarithm, so that a millisecond and a day both show.

import type { Phase } from "./schema";

export interface Step {
  name: string;
  at: number;
  /** Seconds since the step before; null for the first. */
  after: number | null;
  /** Where the bar begins and ends, 0 to 1. */
  from: number;
  to: number;
  late: number | null;
}

const WORDS: Record<string, string> = { started: "fired", finished: "ended" };

/** In the order of their times; a task that runs gets "now" as its last step. */
export function steps(phases: readonly Phase[], now: number | null): Step[] {
  const all = phases.map((phase) => ({ name: WORDS[phase.name] ?? phase.name, at: Date.parse(phase.at), late: phase.late ?? null }));
  all.sort((one, other) => one.at - other.at);
  if (now !== null) all.push({ name: "now", at: Math.max(now, all.at(-1)?.at ?? now), late: null });
  const lengths = all.map((step, place) => (place ? Math.log10(1 + Math.max(0, step.at - (all[place - 1]?.at ?? step.at))) : 0));
  const whole = lengths.reduce((sum, length) => sum + length, 0) || 1;
  let from = 0;
  return all.map((step, place) => {
    const to = from + (lengths[place] ?? 0) / whole;
    const before = all[place - 1];
    // times are of a millisecond here, the lateness is finer: one figure, not two that differ
    const after = before ? (step.name === "fired" && before.name === "due" && step.late !== null ? Math.max(0, step.late) : (step.at - before.at) / 1000) : null;
    const made = { ...step, after, from, to };
    from = to;
    return made;
  });
}
