// Axes: where a scale has its labels.

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];

/** Where an axis of time has labels, on round times of a zone; `offset` is that of the zone at an instant, in ms. */
export function axis(from: number, to: number, width: number, offset: (at: number) => number): { at: number; step: number }[] {
  const step = (STEPS.find((one) => ((one * 1000) / (to - from)) * width >= 78) ?? 604_800) * 1000;
  const found: { at: number; step: number }[] = [];
  for (let at = from; at <= to && found.length < 60; ) {
    const off = offset(at);
    let next = Math.ceil((at + off) / step) * step - off;
    const then = offset(next);
    if ((next + then) % step) {
      // clocks change on the way: the same time by the new ones, or the next round one if that does not exist
      const moved = next + off - then;
      next = moved >= at && offset(moved) === then ? moved : Math.ceil((next + then) / step) * step - then;
    }
    if (next > to) break;
    found.push({ at: next, step });
    at = next + 1;
  }
  return found;
}

/** A round number at or above all values: 1, 2, 4, 5, 10, 20 … */
export function roundAbove(values: readonly (number | null)[]): number {
  const most = values.reduce((found: number, value) => Math.max(found, value ?? 0), 1);
  const size = 10 ** Math.floor(Math.log10(most));
  return size * ([1, 2, 4, 5].find((times) => times * size >= most) ?? 10);
}
