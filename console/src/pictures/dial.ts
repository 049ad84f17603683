// Draws dials and squares of agents: one canvas for all of them, laid over the boxes that the page has made.
//
// The canvas is as wide as the fleet and a little higher than the window; it moves with the scrolled page, and is put to
// another place in the same frame in which it is drawn there. What it drew last is kept in `canvas.scene`.

import { now, second } from "../core/clock";
import { shade } from "../core/prefs";
import { dial, point, turn } from "./dial_scene";
import { penOn, tokensOf } from "./pen";
import type { Pen } from "./pen";
import type { Dial, Dot, Watched } from "./dial_scene";

export interface Drawn {
  /** The database's time, in ms, that was drawn. */
  at: number;
  dials: Dial[];
  /** The colour of text in the theme that was drawn. */
  ink: string;
}
export type SceneCanvas = HTMLCanvasElement & { scene?: Drawn };

const FRAME = 1000 / 30; // ms
const MANY = 100; // boxes from which fewer frames do
const SLOW = 100; // ms
const BEYOND = 0.5; // of the window's height, drawn above and below
export const isStill = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;

interface Place {
  name: string;
  isSquare: boolean;
  x: number; // of its middle, within the box
  y: number;
  reach: number;
}

/** Draws what is in sight until `stop`; `measure` is called when the boxes may have moved. `read` gives an agent as it is known now. */
export function drawFleet(canvas: SceneCanvas, box: HTMLElement, read: (name: string) => Watched | undefined): { measure: () => void; stop: () => void } {
  let places: Place[] = [];
  let token = tokensOf(box);
  let theme = shade.peek();
  let size = { top: 0, width: 0, height: 0 };
  let wait = FRAME;

  const measure = () => {
    const found = box.getBoundingClientRect();
    places = [...box.querySelectorAll<HTMLElement>("[data-dial]")].map((one) => {
      const where = one.getBoundingClientRect();
      const reach = where.width / 2;
      return { name: one.dataset.dial ?? "", isSquare: one.dataset.shape === "square", x: where.left - found.left + reach, y: where.top - found.top + where.height / 2, reach };
    });
    wait = places.length > MANY ? SLOW : FRAME;
  };

  /** Put the canvas where the reader is. */
  const place = () => {
    const found = box.getBoundingClientRect();
    const height = Math.min(found.height, innerHeight * (1 + 2 * BEYOND));
    const seen = -found.top - innerHeight * BEYOND;
    const isNear = size.height > 0 && Math.abs(seen - size.top) < (innerHeight * BEYOND) / 2;
    const top = Math.max(0, Math.min(found.height - height, isNear ? size.top : seen));
    canvas.style.top = `${top}px`;
    size = { top, width: found.width, height };
  };

  const draw = () => {
    place();
    const at = now();
    if (theme !== shade.peek()) [token, theme] = [tokensOf(box), shade.peek()];
    const pen = penOn(canvas, size.width, size.height, token);
    const dials: Dial[] = [];
    for (const { name, isSquare, x, y, reach } of places) {
      if (y + reach < size.top || y - reach > size.top + size.height) continue;
      const agent = read(name);
      if (!agent) continue;
      const one = dial(agent, at);
      dials.push(one);
      pen.on.save();
      pen.on.translate(x, y - size.top);
      (isSquare ? drawSquare : drawDial)(pen, one, reach);
      pen.on.restore();
    }
    canvas.scene = { at, dials, ink: token("text") };
  };

  let frame = 0;
  let last = 0;
  const loop = (time: number) => {
    frame = requestAnimationFrame(loop);
    if (time - last < wait - 2) return;
    last = time;
    draw();
  };
  const resized = new ResizeObserver(() => (measure(), draw()));
  resized.observe(box);
  const forget = isStill() ? second.subscribe(draw) : () => cancelAnimationFrame(frame);
  if (!isStill()) frame = requestAnimationFrame(loop);
  const forgetShade = shade.subscribe(draw);
  return { measure, stop: () => (resized.disconnect(), forget(), forgetShade()) };
}

/** Diagonal lines within a box around the middle: draining. */
function hatch(pen: Pen, half: number, gap: number, alpha: number): void {
  pen.within(-half, -half, 2 * half, 2 * half, () =>
    pen.faint(alpha, () => {
      for (let x = -2 * half; x < 2 * half; x += gap) pen.line("warn", 1, x, half, x + 2 * half, -half);
    }),
  );
}

const SEGMENTS = 32; // slots up to which each is a part of the ring

/** Slots: filled while they run, half as wide while they are armed, a thin line while they are free. */
function ring(pen: Pen, { look, running, armed, slots }: Dial, radius: number, width: number): void {
  const held = look === "lost" ? "line-strong" : "busy";
  const kinds = [
    [0, running, width, held],
    [running, running + armed, width / 2, held],
    [running + armed, 1, width, "idle-soft"],
  ] as const;
  if (slots > SEGMENTS) {
    for (const [from, to, wide, colour] of kinds) if (to > from) pen.arc(colour, wide, 0, 0, radius, from, to);
    return;
  }
  const gap = Math.min(0.012, 0.15 / slots) / 2;
  for (let slot = 0; slot < slots; slot += 1) {
    const middle = (slot + 0.5) / slots;
    const [, , wide, colour] = kinds.find(([from, to]) => middle >= from && middle < to) ?? kinds[2];
    pen.arc(colour, wide, 0, 0, radius, slot / slots + gap, (slot + 1) / slots - gap);
  }
}

function drawDial(pen: Pen, one: Dial, reach: number): void {
  const unit = reach / 90; // drawn for a box of 180 px
  const isLarge = unit > 1.2;
  const isLost = one.look === "lost";
  const track = 66 * unit;
  ring(pen, one, 84 * unit, 7 * unit);
  // how far ahead it is armed, then the track with its ticks
  if (!isLost && one.lead > 0) pen.arc("busy-soft", 18 * unit, 0, 0, track, 1 - turn(one.lead), 1);
  pen.arc("line", 1, 0, 0, track);
  for (const seconds of [1, 5, 15, 30]) {
    const { x, y } = point(seconds);
    const [from, to] = [track - 4 * unit, track + 4 * unit];
    pen.line("line-strong", 1, x * from, y * from, x * to, y * to);
    if (isLarge) pen.text(`${seconds} s`, x * (track - 15 * unit), y * (track - 15 * unit), "quiet", 11);
  }
  if (one.look === "draining") {
    pen.on.save();
    pen.on.beginPath();
    pen.on.arc(0, 0, 77 * unit, 0, 7);
    pen.on.clip();
    hatch(pen, 80 * unit, 8 * unit, 0.3);
    pen.on.restore();
  }
  // twelve o'clock
  pen.shape(isLost ? "line-strong" : "text", 0, -track + 11 * unit, -4 * unit, -track + 17.5 * unit, 4 * unit, -track + 17.5 * unit);
  drawNeedle(pen, one, unit);
  if (!isStill()) drawMarks(pen, one, track, 4.5 * unit, track - (isLarge ? 27 : 14.5) * unit);
  drawCentre(pen, one, unit);
}

function drawMarks(pen: Pen, one: Dial, track: number, radius: number, inner: number): void {
  pen.on.lineCap = "round";
  for (const mark of one.marks) {
    if (mark.kind === "trace") pen.faint(0.75 * (1 - mark.age) ** 1.5, () => pen.line("good", radius / 2, mark.x * inner, mark.y * inner, mark.x * (inner - radius), mark.y * (inner - radius)));
    else if (mark.kind === "flash")
      pen.faint(1 - mark.age, () => {
        pen.disc("good", 0, -track, radius * (1 + 0.4 * (1 - mark.age)));
        pen.arc("good", radius / 2, 0, -track, radius * (1 + 3.5 * mark.age));
      });
  }
  for (const mark of one.marks) if (mark.kind === "dot") drawDot(pen, mark, track - mark.lane * 1.5 * radius, radius, one);
}

function drawDot(pen: Pen, dot: Dot, track: number, radius: number, { look }: Dial): void {
  const [x, y] = [dot.x * track, dot.y * track];
  pen.disc("surface", x, y, radius + 1.5);
  if (dot.isLate) pen.box("warn", x - radius, y - radius, 2 * radius, 2 * radius); // held up: a square
  else pen.disc(look === "lost" ? "line-strong" : "accent", x, y, radius);
}

/** Clock skew deflects it; the round trip is the width of what is not known. */
function drawNeedle(pen: Pen, { needle }: Dial, unit: number): void {
  if (!needle) return;
  const [pivot, length, most] = [42 * unit, 19 * unit, 0.175]; // of the circle
  const tone = needle.tone === "calm" ? "quiet" : needle.tone;
  const at = (share: number, far: number) => [Math.sin(share * most * 2 * Math.PI) * far, pivot - Math.cos(share * most * 2 * Math.PI) * far] as const;
  pen.arc("line-strong", 1, 0, pivot, length + 3 * unit, -most, most);
  pen.line("line-strong", 1, ...at(0, length), ...at(0, length + 3 * unit));
  pen.faint(0.18, () => pen.arc(tone, length, 0, pivot, length / 2, Math.max(-1, needle.at - needle.spread) * most, Math.min(1, needle.at + needle.spread) * most));
  pen.on.lineCap = "round";
  pen.line(tone, 1.8 * unit, 0, pivot, ...at(needle.at, length));
  pen.disc(tone, 0, pivot, 2.6 * unit);
}

/** "0.8", "12": seconds as they count down. */
export const countdown = (seconds: number): string => (seconds < 9.95 && !isStill() ? Math.max(0, seconds).toFixed(1) : String(Math.max(0, Math.ceil(seconds))));

function drawCentre(pen: Pen, one: Dial, unit: number): void {
  const { lease, next, late, more, marks } = one;
  const say = (large: string, small: string, colour: string, down = 0, rest = colour) => {
    pen.text(large, 0, (down - 14) * unit, colour, (down ? 22 : 24) * unit, 600);
    pen.text(small, 0, (down + 6) * unit, rest, Math.max(11, 10.5 * unit));
  };
  if (lease !== null) say(lease <= 0 ? "gone" : `${countdown(lease)} s`, lease <= 0 ? "lease over" : "lease left", "quiet", 8);
  else if (next) say(`${countdown(next.left)} s`, more ? `next of ${more + marks.filter(({ kind }) => kind === "dot").length}` : "to next fire", "text", 0, "quiet");
  else if (late !== null) say(`${Math.floor(late)} s`, "held up", "warn");
  else say("–", "nothing armed", "quiet");
}

/** A small agent: its load fills it from below, its next fire runs round its edge to the middle of the top. */
function drawSquare(pen: Pen, one: Dial, reach: number): void {
  const half = reach - 4;
  const isLost = one.look === "lost";
  pen.box("idle-soft", -half, -half, 2 * half, 2 * half);
  pen.faint(isLost ? 0.35 : 0.55, () => pen.box(isLost ? "line-strong" : "busy", -half, half - 2 * half * one.running, 2 * half, 2 * half * one.running));
  if (one.look === "draining") hatch(pen, half, 6, 0.6);
  if (isLost) pen.text("×", 0, 0, "quiet", half, 600);
  if (one.needle && one.needle.tone !== "calm") pen.shape(one.needle.tone, half - 9, -half, half, -half, half, -half + 9);
  if (isStill()) return;
  for (const mark of one.marks) {
    if (mark.kind === "flash") pen.faint(1 - mark.age, () => pen.edge("good", 2, 1 - reach, 1 - reach, 2 * reach - 2, 2 * reach - 2));
    else if (mark.kind === "dot") {
      drawDot(pen, mark, half / Math.max(Math.abs(mark.x), Math.abs(mark.y)), 3, one);
      break; // the next one only
    }
  }
}

/** The dot nearest to a point of the page, with the agent whose it is. */
export function hit(canvas: SceneCanvas, box: HTMLElement, x: number, y: number): { name: string; dot: Dot } | null {
  const element = document.elementsFromPoint(x, y).find((one): one is HTMLElement => one instanceof HTMLElement && one.dataset.shape === "dial" && box.contains(one));
  const found = canvas.scene?.dials.find(({ name }) => name === element?.dataset.dial);
  if (!element || !found) return null;
  const where = element.getBoundingClientRect();
  const unit = where.width / 180;
  let best: { name: string; dot: Dot } | null = null;
  let nearest = 12 * unit;
  for (const dot of found.marks) {
    if (dot.kind !== "dot") continue;
    const radius = (66 - dot.lane * 6.75) * unit;
    const away = Math.hypot(where.left + where.width / 2 + dot.x * radius - x, where.top + where.height / 2 + dot.y * radius - y);
    if (away < nearest) [nearest, best] = [away, { name: found.name, dot }];
  }
  return best;
}
