// Now is the database's time: the browser's clock is corrected by it, and nothing is read from it alone.

import { signal } from "./signals";
import { call } from "./api";

/** Milliseconds by which the database is ahead of this browser. */
export const ahead = signal(0);

/** The database's time in milliseconds. */
export const now = (): number => Date.now() + ahead.value;

/** The same, once a second, for what counts down. Stands still while the tab is hidden. */
export const second = signal(Date.now());

/** Take what a server said the time was, between these two looks at our own clock. */
export function correct(said: string, asked: number, answered: number): void {
  const found = Date.parse(said) - (asked + answered) / 2;
  if (Math.abs(found - ahead.value) > (answered - asked) / 2) ahead.value = found;
}

async function look(): Promise<void> {
  const asked = Date.now();
  try {
    correct((await call("GET /session")).now, asked, Date.now());
  } catch {
    // the next look may do
  }
}

export function startClock(): void {
  const tick = () => {
    if (!document.hidden) second.value = now();
    setTimeout(tick, 1000 - (now() % 1000) + 5);
  };
  tick();
  setInterval(() => !document.hidden && look(), 300_000);
}
