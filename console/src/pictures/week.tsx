// The week of everything, drawn: colour is how many starts, a bar at the edge of a cell is a herd. Keys move, Enter opens.

import { useEffect, useRef, useState } from "preact/hooks";
import { second } from "../core/clock";
import { shade as theme } from "../core/prefs";
import { count, wall } from "../core/time";
import { many } from "../parts/show";
import { penOn, tokensOf } from "./pen";
import type { Pen } from "./pen";
import { boxOf, frameOf, HERD, isHerd, marks, next, QUARTER, shade, slotAt } from "./week_scene";
import type { Frame, Scene, Slot } from "./week_scene";

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** "Tue 17 Nov". */
export const dayWords = (date: string): string => new Date(date).toUTCString().replace(/(\w+), 0?(\d+ \w+).*/, "$1 $2");

/** "Tue 17 Nov, 09:00–09:15 +01:00". */
export function slotWords(slot: { at: number }, zone: string): string {
  const { date, time, offset } = wall(slot.at, zone);
  return `${dayWords(date)}, ${time.slice(0, 5)}–${wall(slot.at + QUARTER, zone).time.slice(0, 5)} ${offset}`;
}

export function slotState(slot: Slot, zone: string): string {
  const done = slot.isPast ? "fired" : "planned";
  const words = slot.shares || slot.peak === null ? `${many(slot.starts, "start")} ${done} in its hour` : `${many(slot.starts, "start")} ${done}`;
  const pass = slot.isDoubled ? `, the ${slot.pass ? "second" : "first"} of two` : "";
  const skipped = slot.skipped ? `, ${count(slot.skipped)} skipped` : "";
  const herd = isHerd(slot) && slot.peakAt ? ` · herd: ${count(slot.peak ?? 0)} in one second at ${wall(Date.parse(slot.peakAt), zone).time}` : "";
  return `${slotWords(slot, zone)}${pass} · ${words}${skipped}${herd}`;
}

// ── colours, from the tokens ──────────────────────────────────────────────────────────────────────────

type Colour = [number, number, number];
const STEPS = 24;

function ramp(token: (name: string) => string, full: string): string[] {
  const [low, high, most] = [`${full}-soft`, full, "text"].map((name) => [1, 3, 5].map((at) => parseInt(token(name).slice(at, at + 2), 16))) as [Colour, Colour, Colour];
  return Array.from({ length: STEPS + 1 }, (_, step) => {
    const share = step / STEPS;
    const [from, to, at] = share < 0.7 ? [low, high, share / 0.7] : [high, most, ((share - 0.7) / 0.3) * 0.65];
    return `rgb(${from.map((part, place) => Math.round(part + (to[place]! - part) * at)).join(" ")})`;
  });
}

/** A step of what was fired or of what is planned, by name as tokens are. */
function colours(element: Element): (name: string) => string {
  const token = tokensOf(element);
  const ramps: Record<string, string[]> = { fired: ramp(token, "idle"), planned: ramp(token, "busy") };
  return (name) => {
    const [kind = "", step] = name.split(" ");
    return step ? ramps[kind]![Number(step)]! : token(name);
  };
}

const colourOf = (starts: number, scene: Scene, isPast: boolean): string => `${isPast ? "fired" : "planned"} ${Math.round(shade(starts, scene) * STEPS)}`;

// ── drawing ───────────────────────────────────────────────────────────────────────────────────────────

/** What was drawn, for tests: the canvas keeps it. */
export interface Drawn {
  kind: "slot" | "herd" | "torn" | "doubled" | "now";
  day: number;
  row: number;
  starts?: number;
}

function draw(pen: Pen, scene: Scene, frame: Frame, width: number, height: number, now: number): Drawn[] {
  const drawn: Drawn[] = [];
  const { isDay, left, top, column, row } = frame;
  const today = wall(now, scene.zone).date;
  const gap = isDay ? 2 : 3;
  const hourHigh = isDay ? row : row * 4;
  const dayWide = isDay ? column * 4 : column;
  for (let hour = 0; hour < 24; hour += isDay ? 1 : 2) {
    const y = top + hour * hourHigh;
    pen.text(`${String(hour).padStart(2, "0")}:00`, left - 8, isDay ? y + hourHigh / 2 : Math.max(y, top + 5), "quiet", 11, 400, "right");
  }
  scene.days.forEach((day, place) => {
    const x = left + place * column;
    if (!isDay) {
      pen.text(dayWords(day.date), x + gap, 12, "text", 13, day.date === today ? 600 : 400, "left");
      pen.text(day.starts ? compact.format(day.starts) : "–", x + gap, 30, "quiet", 11, 400, "left");
    }
    pen.box("surface", x, top, isDay ? dayWide : column - gap, height - top);
  });
  if (isDay) [":00", ":15", ":30", ":45"].forEach((words, place) => pen.text(words, left + place * column + gap, 10, "quiet", 11, 400, "left"));

  for (const slot of scene.slots) {
    const { x, y, width: whole, height: high } = boxOf(frame, slot.day, slot.row, slot.pass, slot.isDoubled);
    const wide = whole - (slot.isDoubled && slot.pass === 0 && !isDay ? 1 : gap);
    if (slot.starts) pen.box(colourOf(slot.starts, scene, slot.isPast), x, y, wide, isDay ? high - gap : high + 0.3);
    drawn.push({ kind: slot.isDoubled ? "doubled" : "slot", day: slot.day, row: slot.row, starts: slot.starts });
    if (isHerd(slot)) {
      // the longer the larger the herd; on a ground of its own, so that it is seen on any colour
      const long = 4 + (wide * 0.4 * slot.peak!) / (scene.peak?.peak ?? 1);
      const thick = isDay ? 6 : Math.max(2, high - 3);
      const from = y + (high - thick) / 2;
      pen.box("surface", x + wide - long - 2, from - 1, long + 2, thick + 2);
      pen.box("bad", x + wide - long, from, long, thick);
      drawn.push({ kind: "herd", day: slot.day, row: slot.row, starts: slot.peak! });
    }
  }
  // hours, faint over the cells
  pen.faint(0.45, () => {
    for (let hour = 1; hour < 24; hour += 1) pen.box("ground", left, top + hour * hourHigh - 0.5, width - left, hour % 6 ? 1 : 2);
  });
  scene.days.forEach((day, place) => {
    if (day.torn.length) drawn.push(...tear(pen, frame, place, day.torn[0]!, day.torn.length, dayWide - gap));
    const twice = scene.slots.filter((slot) => slot.day === place && slot.isDoubled && slot.pass === 0);
    if (twice.length) {
      const { x, y } = boxOf(frame, place, twice[0]!.row);
      const high = (twice.length / 4) * hourHigh;
      pen.edge("warn", 1.5, x + 0.75, y + 0.75, dayWide - gap - 1.5, high - 1.5);
      if (!isDay) pen.box("warn", x + column / 2 - 1, y, 1.5, high); // two passes
      for (const slot of scene.slots.filter((one) => one.day === place && one.isDoubled && one.row === twice[0]!.row)) {
        const its = boxOf(frame, place, slot.row, slot.pass, true);
        label(pen, wall(slot.at, scene.zone).offset, isDay ? left + column * 2 : its.x + its.width / 2, isDay ? its.y + its.height / 2 : its.y + high / 2);
      }
    }
    const slot = now >= day.start && now < day.end && scene.slots.findLast((one) => one.at <= now);
    if (slot) {
      const { x, y: from, width: wide, height: high } = boxOf(frame, slot.day, slot.row, slot.pass, slot.isDoubled);
      const share = (now - slot.at) / QUARTER;
      const y = from + share * high;
      if (isDay) pen.box("accent", x + share * wide - 1, from, 2, high - gap);
      else {
        pen.box("accent", x, y - 1, wide - gap, 2);
        pen.shape("accent", x - 5, y - 5, x + 2, y, x - 5, y + 5);
      }
      drawn.push({ kind: "now", day: place, row: slot.row });
    }
  });
  return drawn;
}

/** Rows that a day does not have: hatched between two torn edges. */
function tear(pen: Pen, frame: Frame, day: number, row: number, rows: number, wide: number): Drawn[] {
  const { x, y } = boxOf(frame, day, row);
  const high = frame.row * (frame.isDay ? rows / 4 : rows);
  const teeth = 2 * Math.round(wide / 14);
  const edge = (at: number, way: number) => Array.from({ length: teeth + 1 }, (_, tooth) => [x + (wide * tooth) / teeth, at + way * (tooth % 2 ? 4 : -1)]);
  const points = [...edge(y, 1), ...edge(y + high, -1).reverse(), [x, y - 1]].flat();
  pen.shape("ground", ...points);
  pen.line("warn", 1.5, ...points);
  pen.within(x, y, wide, high, () => pen.faint(0.35, () => {
    for (let at = x - high; at < x + wide; at += 7) pen.line("warn", 1.5, at, y + high, at + high, y);
  }));
  if (rows === 4) label(pen, `no ${String(row / 4).padStart(2, "0")}:00`, x + wide / 2, y + high / 2);
  return Array.from({ length: rows }, (_, place) => ({ kind: "torn" as const, day, row: row + place }));
}

/** Words about clocks, on a ground of their own. */
function label(pen: Pen, words: string, x: number, y: number): void {
  const half = words.length * 3.5 + 4;
  pen.box("ground", x - half, y - 7, 2 * half, 14);
  pen.text(words, x, y, "warn", 11, 600);
}

// ── the component ─────────────────────────────────────────────────────────────────────────────────────

interface Props {
  scene: Scene;
  /** The first instant of the slot that is open. */
  open: number | null;
  choose: (slot: Slot | null) => void;
}

export function Week({ scene, open, choose }: Props) {
  const isDay = scene.days.length === 1;
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement & { drawn?: Drawn[] }>(null);
  const [size, setSize] = useState<{ width: number; height: number } | null>(null);
  const [at, setAt] = useState<number | null>(null); // where keys or the pointer are
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const look = () => setSize({ width: element.clientWidth, height: isDay ? 24 + 24 * 24 : 44 + 96 * Math.max(5, Math.min(8, Math.floor(((innerHeight - 290) / 96) * 2) / 2)) });
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, [isDay]);
  const frame = size && frameOf(isDay, size.width, size.height);
  const minute = Math.floor(second.value / 60_000) * 60_000;
  useEffect(() => {
    const element = canvas.current;
    if (element && size && frame) element.drawn = draw(penOn(element, size.width, size.height, colours(element)), scene, frame, size.width, size.height, minute);
  }, [scene, size, theme.value, minute]);

  const find = (instant: number | null) => (instant === null ? null : (scene.slots.find((slot) => slot.at === instant) ?? null));
  const current = find(at) ?? find(open);
  const shown = (slot: Slot | null, className: string) => {
    if (!slot || !frame) return null;
    const { x, y, width, height } = boxOf(frame, slot.day, slot.row, slot.pass, slot.isDoubled);
    return <span class={className} aria-hidden="true" style={{ left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` }} />;
  };
  const point = (event: MouseEvent) => {
    const edge = box.current?.getBoundingClientRect();
    return edge && frame ? slotAt(scene, frame, event.clientX - edge.left, event.clientY - edge.top) : null;
  };
  const press = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !frame) return;
    const from = current ?? scene.slots.find((slot) => slot.at + QUARTER > second.value) ?? scene.slots[0];
    if (!from) return;
    if (event.key === "Enter" || event.key === " ") choose(from);
    else if (/^(Arrow|Page|Home|End)/.test(event.key)) setAt(current ? next(scene, frame, from, event.key).at : from.at);
    else return;
    event.preventDefault();
  };
  return (
    <>
      <div
        ref={box}
        class="week"
        role="group"
        tabIndex={0}
        aria-label={`${isDay ? "The day" : "The week"} by quarters of an hour. Arrow keys move, Enter lists what starts there. The same as a table: “Table” above.`}
        onKeyDown={press}
        onMouseMove={(event) => setAt(point(event)?.at ?? null)}
        onMouseLeave={() => setAt(null)}
        onClick={(event) => {
          const slot = point(event);
          if (slot) choose(slot);
        }}
      >
        <canvas ref={canvas} aria-hidden="true" style={{ width: "100%", height: `${size?.height ?? 600}px` }} />
        {shown(find(open), "week-slot open")}
        {shown(find(at), "week-slot")}
      </div>
      <p class="week-words" role="status">
        {current ? slotState(current, scene.zone) : "Point at a quarter of an hour, or move to one by the arrow keys."}
      </p>
    </>
  );
}

/** What the colours mean. */
export function Legend({ scene, source }: { scene: Scene; source: "ledger" | "figures" | null }) {
  const box = useRef<HTMLDivElement>(null);
  const [look, setLook] = useState<((name: string) => string) | null>(null);
  useEffect(() => {
    if (box.current) setLook(() => colours(box.current!));
  }, [theme.value]);
  const strip = (isPast: boolean, words: string) => (
    <span class="week-scale">
      <span class="quiet">{words}</span>
      {marks(scene).map((mark) => (
        <span key={mark} class="week-mark">
          <span style={{ background: look?.(colourOf(mark, scene, isPast)) }} />
          {compact.format(mark)}
        </span>
      ))}
    </span>
  );
  const hasPast = scene.slots.some((slot) => slot.isPast);
  const isTorn = scene.days.some((day) => day.torn.length);
  const isDoubled = scene.slots.some((slot) => slot.isDoubled);
  return (
    <div class="week-legend" ref={box}>
      {scene.slots.some((slot) => !slot.isPast) && strip(false, "planned starts in 15 min")}
      {hasPast && strip(true, source === "figures" ? "fired, by the hour in which they ended" : "fired in 15 min")}
      <span class="week-scale">
        <span class="week-herd" aria-hidden="true" /> herd: {HERD} or more starts in one second, the longer the more
      </span>
      {isTorn && <span class="week-scale"><span class="week-torn" aria-hidden="true" /> torn: the clocks leave this hour out</span>}
      {isDoubled && <span class="week-scale"><span class="week-twice" aria-hidden="true" /> doubled: this hour comes twice, before and after the clocks go back</span>}
    </div>
  );
}
