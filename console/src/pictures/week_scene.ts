// The week of everything as a scene: which quarter of an hour lies where by the clocks of a zone, and how full it is.
//
// A day has 96 rows of wall time, whatever the clocks do: an hour that is left out is torn, one that comes twice has two
// passes side by side.

import { offsetAt, wall } from "../core/time";

export const QUARTER = 900_000; // ms
export const ROWS = 96;
export const HERD = 20; // starts within one second

/** What is known of a quarter of an hour. */
export interface Filled {
  starts: number;
  peak: number | null; // starts in its busiest second; null: not known
  peakAt: string | null;
  skipped?: number | null;
}

export interface Slot extends Filled {
  at: number;
  day: number;
  row: number;
  /** 0, or 1 for the second pass of an hour that comes twice. */
  pass: number;
  isDoubled: boolean;
  isPast: boolean;
  /** Rows that share one count, because it is kept by the hour; the first of them has it. */
  shares: boolean;
}

export interface Day {
  date: string;
  start: number;
  end: number;
  starts: number;
  torn: number[]; // rows that this day does not have
}

export interface Scene {
  zone: string;
  days: Day[];
  slots: Slot[];
  least: number; // starts of the emptiest slot that has any,
  most: number; // and of the fullest
  peak: Slot | null; // the slot with the busiest second
  starts: number;
}

const DAY = 86_400_000;
const utc = (date: string): number => Date.parse(`${date}T00:00:00Z`);
export const plusDays = (date: string, days: number): string => new Date(utc(date) + days * DAY).toISOString().slice(0, 10);

/** 2026-11-17 → 2026-W47, the week that has its Thursday in that year. */
export function weekOf(date: string): string {
  const thursday = new Date(utc(date) + (3 - ((new Date(utc(date)).getUTCDay() + 6) % 7)) * DAY);
  const first = Date.UTC(thursday.getUTCFullYear(), 0, 1);
  return `${thursday.getUTCFullYear()}-W${String(Math.floor((thursday.getTime() - first) / DAY / 7) + 1).padStart(2, "0")}`;
}

/** 2026-W47 → 2026-11-16; null if there is no such week. */
export function mondayOf(week: string): string | null {
  const found = /^(\d{4})-W(\d{2})$/.exec(week);
  if (!found) return null;
  const fourth = `${found[1]}-01-04`; // always in the first week
  const monday = plusDays(fourth, -((new Date(utc(fourth)).getUTCDay() + 6) % 7) + 7 * (Number(found[2]) - 1));
  return weekOf(monday) === week ? monday : null;
}

/** The first instant of a day by the clocks of a zone. */
export function midnight(date: string, zone: string): number {
  let at = utc(date) - offsetAt(utc(date), zone);
  at = utc(date) - offsetAt(at, zone);
  while (wall(at, zone).date < date) at += QUARTER;
  while (wall(at - QUARTER, zone).date >= date) at -= QUARTER;
  return at;
}

/** The days and their slots, empty. */
export function layOut(dates: readonly string[], zone: string, now: number): Scene {
  const days: Day[] = [];
  const slots: Slot[] = [];
  for (const [day, date] of dates.entries()) {
    const start = midnight(date, zone);
    const end = midnight(plusDays(date, 1), zone);
    const taken = new Map<number, Slot>();
    for (let at = start; at < end; at += QUARTER) {
      const time = wall(at, zone).time;
      const row = Number(time.slice(0, 2)) * 4 + Math.floor(Number(time.slice(3, 5)) / 15);
      const first = taken.get(row);
      if (first) first.isDoubled = true;
      const slot = { at, day, row, pass: first ? 1 : 0, isDoubled: Boolean(first), isPast: at + QUARTER <= now, shares: false, starts: 0, peak: 0, peakAt: null };
      taken.set(row, slot);
      slots.push(slot);
    }
    const torn = Array.from({ length: ROWS }, (_, row) => row).filter((row) => !taken.has(row));
    days.push({ date, start, end, starts: 0, torn });
  }
  return { zone, days, slots, least: 1, most: 0, peak: null, starts: 0 };
}

/** The same with what is known of each slot, by its first instant; `width` is how long one count of the past lasts. */
export function fill(scene: Scene, known: ReadonlyMap<number, Filled>, width: number = QUARTER): Scene {
  const days = scene.days.map((day) => ({ ...day, starts: 0 }));
  const found: Scene = { ...scene, days, slots: [], least: Infinity, most: 0, peak: null, starts: 0 };
  for (const slot of scene.slots) {
    const isWide = slot.isPast && width > QUARTER;
    const own = known.get(isWide ? Math.floor(slot.at / width) * width : slot.at);
    const shares = isWide && slot.at % width !== 0;
    const filled: Slot = { ...slot, shares, ...(own ?? { starts: 0, peak: isWide ? null : 0, peakAt: null }) };
    found.slots.push(filled);
    if (shares) continue;
    found.starts += filled.starts;
    const day = days[slot.day];
    if (day) day.starts += filled.starts;
    found.most = Math.max(found.most, filled.starts);
    if (filled.starts) found.least = Math.min(found.least, filled.starts);
    if ((filled.peak ?? 0) > (found.peak?.peak ?? 0)) found.peak = filled;
  }
  return found;
}

type Extremes = Pick<Scene, "least" | "most">;

/** Where the scale of colours begins and ends: a decade at least, or all that is equal would look different. */
const ends = ({ least, most }: Extremes): [number, number] => [Math.max(1, Math.min(least, most / 10)), Math.max(most, 10)];

/** 0 for none, 1 for the fullest; on a log scale, and never 0 for what is there. */
export function shade(starts: number, extremes: Extremes): number {
  const [low, high] = ends(extremes);
  return starts ? 0.1 + 0.9 * Math.max(0, Math.log(starts / low) / Math.log(high / low)) : 0;
}

export const isHerd = (slot: Filled): boolean => (slot.peak ?? 0) >= HERD;

/** Round numbers from the emptiest to the fullest: what the scale of colours is marked with. */
export function marks(extremes: Extremes): number[] {
  const [low, high] = ends(extremes);
  const steps = high / low > 200 ? [1] : high / low > 30 ? [1, 3] : [1, 2, 5];
  const found: number[] = [];
  for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10) found.push(...steps.map((step) => step * decade));
  const inside = found.filter((mark) => mark >= low && mark < high / 1.2);
  return [...inside, Math.round(high)]; // the fullest cell has its own colour, and so its own mark
}

// ── where things lie ──────────────────────────────────────────────────────────────────────────────────

export interface Frame {
  isDay: boolean; // one day: hours below each other, their quarters side by side
  left: number;
  top: number;
  column: number; // px wide
  row: number; // px high
}

export const frameOf = (isDay: boolean, width: number, height: number): Frame => {
  const left = 48;
  const top = isDay ? 24 : 44;
  return { isDay, left, top, column: (width - left) / (isDay ? 4 : 7), row: (height - top) / (isDay ? 24 : ROWS) };
};

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export function boxOf(frame: Frame, day: number, row: number, pass = 0, isDoubled = false): Box {
  const half = isDoubled ? 0.5 : 1;
  if (frame.isDay) {
    const height = frame.row * half;
    return { x: frame.left + (row % 4) * frame.column, y: frame.top + Math.floor(row / 4) * frame.row + pass * height, width: frame.column, height };
  }
  const width = frame.column * half;
  return { x: frame.left + day * frame.column + pass * width, y: frame.top + row * frame.row, width, height: frame.row };
}

/** The slot at a point of the picture. */
export function slotAt(scene: Scene, frame: Frame, x: number, y: number): Slot | null {
  return (
    scene.slots.find((slot) => {
      const box = boxOf(frame, slot.day, slot.row, slot.pass, slot.isDoubled);
      return x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height;
    }) ?? null
  );
}

/** Where an arrow key leads from a slot: nearest in that direction, over what is torn. */
export function next(scene: Scene, frame: Frame, from: Slot, key: string): Slot {
  const place = scene.slots.indexOf(from);
  const along = frame.isDay ? { ArrowLeft: -1, ArrowRight: 1 } : { ArrowUp: -1, ArrowDown: 1 };
  const step = along[key as keyof typeof along];
  if (step) return scene.slots[place + step] ?? from;
  const to = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -4], ArrowDown: [0, 4], PageUp: [0, -4], PageDown: [0, 4], Home: [0, -from.row], End: [0, ROWS - 1 - from.row] }[key];
  if (!to) return from;
  const [days = 0, rows = 0] = to;
  const wanted = scene.slots.filter((slot) => slot.day === from.day + days && (rows < 0 ? slot.row <= from.row + rows : slot.row >= from.row + rows));
  const direction = rows < 0 ? -1 : 0;
  return wanted.find((slot) => slot.row === from.row + rows && slot.pass === from.pass) ?? wanted.at(direction) ?? from;
}
