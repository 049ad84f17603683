// Planned versus fired, as a list of what is drawn: pure, so that it can be tested without a canvas.
//
// One row per schedule. Upper lane: a tick at each plan time. Lower lane: the run as a bar from its start to its end. A line
// joins the two, and its length is the lateness. At the right a dot per fire on a log axis of lateness.

import { REASONS } from "../core/reasons";
import type { Bin, ClockChange, Coming, Line, Mark, Missing, TaskSummary } from "../core/schema";

/** How much time is shown: each step of a zoom. */
export const RANGES = "1m 2m 5m 10m 15m 30m 1h 2h 3h 6h 12h 1d 2d 3d 7d".split(" ").map((name) => [name, parseInt(name) * { m: 60_000, h: 3_600_000, d: 86_400_000 }[name.slice(-1) as "m" | "h" | "d"]] as const);
export const spanOf = (range: string): number => RANGES.find(([name]) => name === range)?.[1] ?? 3_600_000;

export type Look = "fired" | "planned" | "skipped" | "missed" | "coming" | "good" | "bad" | "busy" | "quiet" | "gap" | "fold" | "unknown";
export type Kind = "tick" | "bar" | "line" | "dot" | "slo" | "bin" | "change" | "unknown";
export type Source = Mark | Coming | Missing | Bin | ClockChange | TaskSummary;

export interface Item {
  is: Kind;
  row: number;
  x: number;
  /** Where it ends; the same for what is a point. */
  to: number;
  y: number;
  height: number;
  look: Look;
  /** In words. */
  means: string;
  letter?: string;
  /** What it stands for, of one plan time all scopes. */
  of: readonly Source[];
  at: number;
}

export interface Row {
  name: string;
  zone: string | null;
  y: number;
  /** What the picture cannot show of it. */
  note: string | null;
  /** Told of each item, one by one: an object for each of 200,000 costs more than its pixels. */
  lay: (put: Put) => void;
  /** The same as a list, made when it is first read. */
  readonly items: readonly Item[];
}

/** It stands for those of `of` from `first` to before `next`. */
export type Put = (is: Kind, x: number, to: number, y: number, height: number, look: Look, means: string, letter: string | undefined, at: number, of: readonly Source[], first: number, next: number) => void;

export interface Scene {
  from: number;
  to: number;
  width: number;
  /** Of the plot in px; the lateness is to the right of it. */
  plot: number;
  height: number;
  row: number;
  /** Room of the lateness in px; 0: there is none. */
  strip: number;
  rows: Row[];
}

export interface View {
  from: number;
  to: number;
  width: number;
  now: number;
}

export const MOST = 2000; // marks of a row beyond which it is drawn in bins
const NARROW = 700; // px below which names stand above their rows
const LANES = 3; // runs drawn beside each other
const ROOM = 480; // px that the rows of few agents may have
const LANE = 14;
const TICK = 14;
const BAR = 18;
const LEAST = 1e-4; // s: the left end of the lateness
const LONGEST = 300;
const DECADES = Math.log(LONGEST / LEAST);

const stripOf = (width: number): number => (width < NARROW ? 84 : 150);
/** Where the rows' lanes begin, below a name that stands above them. */
export const head = (width: number): number => (width < NARROW ? 20 : 4);
export const names = (width: number): number => (width < NARROW ? 0 : 190);
const rowHeight = (width: number): number => head(width) + TICK + BAR + 12;

/** Milliseconds of lateness → px within the strip: logarithmic from 0.1 ms to 5 min. */
export function latenessAt(ms: number, room: number): number {
  const share = Math.log(Math.max(LEAST, Math.min(LONGEST, ms / 1000)) / LEAST) / DECADES;
  return 6 + share * (room - 12);
}

interface Frame extends View {
  plot: number;
  scale: number;
  row: number;
  strip: number;
}

function frame(view: View, strip: number): Frame {
  const plot = Math.max(50, view.width - names(view.width) - strip);
  return { ...view, plot, strip, scale: plot / (view.to - view.from), row: rowHeight(view.width) };
}

const scene = (framed: Frame, rows: Row[]): Scene => ({ ...framed, height: rows.length * framed.row, rows });

export function build(lines: readonly Line[], view: View): Scene {
  const framed = frame(view, stripOf(view.width));
  return scene(framed, lines.map((line, place) => ofSchedule(line, place, framed)));
}

/** What became of one plan time in one scope. */
export function meaning(mark: Mark, now: number): readonly [Look, string] {
  if (mark.decision !== "planned") return ["skipped", `skipped: ${REASONS[mark.decision]?.[1] ?? mark.decision}`];
  if (mark.started_at) return ["fired", "fired"];
  if (Date.parse(mark.plan_time) > now) return ["coming", "to come"];
  return ["planned", mark.state === null ? "its task is not kept any longer" : mark.finished_at ? `planned, then ${mark.state.replace("_", " ")}` : "planned, has not started"];
}

export const tone = (state: string | null): Look =>
  state === "succeeded" ? "good" : state === "failed" || state === "timed_out" || state === "lost" ? "bad" : state === "running" ? "busy" : "quiet";

/** A row is laid out when it is looked at: of many, few are on screen. */
function rowOf(row: number, name: string, zone: string | null, y: number, note: string | null, framed: Frame, lay: (draw: Draw) => void): Row {
  let items: Item[] | undefined;
  const layInto = (put: Put) => lay(drawer(put, framed));
  return {
    name, zone, y, note, lay: layInto,
    get items() {
      if (!items) {
        const all: Item[] = (items = []);
        layInto((is, x, to, y, height, look, means, letter, at, of, first, next) => all.push({ is, row, x, to, y, height, look, means, ...(letter && { letter }), of: of.slice(first, next), at }));
      }
      return items;
    },
  };
}

function ofSchedule(line: Line, place: number, framed: Frame): Row {
  const y = place * framed.row;
  const top = y + head(framed.width);
  const isMany = line.marks.length > MOST;
  const bins = isMany ? binned(line.marks, framed) : line.bins;
  const total = bins.reduce((sum, bin) => sum + bin.plan_times, 0);
  const notes = [
    bins.length && `${total.toLocaleString("en-GB")} plan times, counted in bins; zoom in to see each`,
    line.missed_to && !bins.length && "too many to look for all that were missed; zoom in",
    line.coming_to && "not all to come are drawn",
    !(bins.length + line.marks.length + line.missed.length + line.coming.length) && "nothing in this range",
  ].filter(Boolean);
  return rowOf(place, line.schedule, line.timezone, y, notes.join("; ") || null, framed, (draw) => {
    for (const change of line.changes) {
      const at = Date.parse(change.at);
      const long = change.seconds * 1000;
      draw("change", long > 0 ? at : at + long, long > 0 ? at : at - long, top, TICK + BAR + 7, long > 0 ? "gap" : "fold", change.said, at, [change]);
    }
    const width = isMany ? (framed.to - framed.from) / 200 : (line.bin_seconds ?? 0) * 1000;
    if (bins.length) drawBins(bins, width, top, draw);
    else drawMarks(line, top, framed, draw);
    drawUndecided(line, top, framed, draw);
  });
}

interface Draw {
  /** In time: moves with the plot. */
  (is: Kind, from: number, to: number, y: number, height: number, look: Look, means: string, at: number, of: readonly Source[], first?: number, next?: number, letter?: string): void;
  /** In the strip of lateness, which stands still. */
  beside: (is: "dot" | "slo", x: number, y: number, look: Look, means?: string) => void;
}

const NOTHING: readonly Source[] = []; // nobody chooses a dot: the tick above it is there for that

/** Puts what is within the view or near it. */
function drawer(put: Put, { from, to, scale, plot }: Frame): Draw {
  const near = plot / 2; // px beyond the edges that a pan may bring in
  const draw: Draw = (is, start, end, y, height, look, means, at, of, first = 0, next = of.length, letter) => {
    const x = (start - from) * scale;
    const until = (Math.min(end, to + (to - from) * 2) - from) * scale;
    if (until >= -near && x <= plot + near) put(is, x, until, y, height, look, means, letter, at, of, first, next);
  };
  draw.beside = (is, x, y, look, means = "") => put(is, x, x, y, 0, look, means, undefined, 0, NOTHING, 0, 0);
  return draw;
}

/** A line's marks, read once for all zooms, in columns: an object for each of 100,000 would cost more than drawing them. */
interface Times {
  at: Float64Array;
  /** NaN: has not started. */
  start: Float64Array;
  /** Infinity: runs. */
  end: Float64Array;
  /** Of its run, among those beside each other. */
  lane: Uint8Array;
  lanes: number;
}
const FIRED = ["fired", "fired"] as const;
const read = new WeakMap<Line, Times>();

let hour = NaN; // the last one that was read
let began = 0;
const digits = (text: string, at: number): number => text.charCodeAt(at) * 10 + text.charCodeAt(at + 1) - 528;

/** Date.parse of an instant as the API writes it, in a fraction of the time: 100,000 marks have 300,000 of them. */
export function instant(text: string): number {
  const long = text.length;
  if ((long !== 20 && long !== 24 && long !== 27) || text.charCodeAt(long - 1) !== 90) return Date.parse(text);
  const key = (((digits(text, 0) * 100 + digits(text, 2)) * 100 + digits(text, 5)) * 100 + digits(text, 8)) * 100 + digits(text, 11);
  if (key !== hour) {
    hour = key;
    began = Date.parse(`${text.slice(0, 14)}00Z`);
  }
  return began + digits(text, 14) * 60_000 + digits(text, 17) * 1000 + (long > 20 ? digits(text, 20) * 10 + text.charCodeAt(22) - 48 : 0);
}

function timesOf(line: Line): Times {
  let found = read.get(line);
  if (found) return found;
  const { marks } = line;
  const [at, start, end] = [0, 1, 2].map(() => new Float64Array(marks.length)) as [Float64Array, Float64Array, Float64Array];
  const lane = new Uint8Array(marks.length);
  const free = Array<number>(LANES).fill(-Infinity);
  let most = 0;
  for (let place = 0; place < marks.length; place += 1) {
    const { plan_time, started_at, finished_at } = marks[place] as Mark;
    at[place] = instant(plan_time);
    const starts = (start[place] = started_at ? instant(started_at) : NaN);
    const ends = (end[place] = finished_at ? instant(finished_at) : Infinity);
    if (!started_at) continue;
    let on = 0;
    while (on < LANES - 1 && (free[on] as number) > starts) on += 1;
    free[on] = Math.max(free[on] as number, ends);
    lane[place] = on;
    most = Math.max(most, on);
  }
  read.set(line, (found = { at, start, end, lane, lanes: most + 1 }));
  return found;
}

function drawMarks(line: Line, top: number, framed: Frame, draw: Draw): void {
  const { marks, slo } = line;
  const { from, to, now, strip } = framed;
  const px = 1 / framed.scale; // ms of a pixel
  const dots = new Uint8Array(strip * 32 + 64); // where one was drawn
  const covered = Array<number>(LANES).fill(-Infinity); // up to where a lane is drawn
  let lastPixel = NaN;
  let lastWords = "";
  let count = 0;
  const [early, late] = [from - (to - from) / 2, to + (to - from) / 2];
  const times = timesOf(line);
  const height = BAR / times.lanes;
  for (let first = 0, next = 0; first < marks.length; first = next) {
    // all scopes of one plan time
    const at = times.at[first] as number;
    let last = at;
    let skipped: Mark | undefined;
    let waits: Mark | undefined;
    for (; next < marks.length && times.at[next] === at; next += 1) {
      const mark = marks[next] as Mark;
      if (mark.decision !== "planned") skipped ??= mark;
      if (mark.started_at) last = Math.max(last, times.end[next] as number);
      else waits ??= mark;
    }
    if (at > late || last < early) continue;
    const [look, means] = waits ? meaning(skipped ?? waits, now) : FIRED;
    const pixel = Math.floor((at - from) / px);
    if (pixel !== lastPixel || means !== lastWords) // what would cover the one before is left out
      draw("tick", at, at, top, TICK, look, means, at, marks, first, next, look === "skipped" && skipped ? (REASONS[skipped.decision]?.[0] ?? "?") : undefined);
    lastPixel = pixel;
    lastWords = means;
    for (let place = first; place < next; place += 1) {
      const { state, lateness_ms } = marks[place] as Mark;
      const start = times.start[place] as number;
      if (Number.isNaN(start)) continue;
      const ended = times.end[place] as number;
      const end = Math.max(start, ended === Infinity ? now : ended);
      if (start - at > 1.5 * px) draw("line", at, start, top + TICK + 1, 4, "quiet", `${Math.round(start - at)} ms`, at, marks, place, place + 1);
      const lane = times.lane[place] as number;
      const toned = tone(state);
      if (end > (covered[lane] as number) || toned === "bad") {
        draw("bar", start, end, top + TICK + 5 + lane * height, height - (times.lanes > 1 ? 1 : 0), toned, state ?? "", at, marks, place, place + 1);
        covered[lane] = Math.max(end, start + 2 * px);
      }
      count += 1;
      if (lateness_ms === null) continue;
      const x = latenessAt(lateness_ms, strip);
      const y = 2 + ((count * 11) % (TICK + BAR));
      const isLate = slo !== null && lateness_ms > slo * 1000;
      const spot = Math.round(x / 2) * 64 + Math.round(y / 2) * 2 + (isLate ? 1 : 0); // a dot is 3 px wide
      if (dots[spot]) continue;
      dots[spot] = 1;
      draw.beside("dot", x, top + y, isLate ? "bad" : "good");
    }
  }
}

function drawUndecided(line: Line, top: number, framed: Frame, draw: Draw): void {
  let last = NaN;
  for (const gap of line.missed) {
    const at = Date.parse(gap.plan_time);
    if (Math.abs(at - last) * framed.scale < 1) continue;
    draw("tick", at, at, top, TICK, "missed", "missed", at, [gap]);
    last = at;
  }
  for (const one of line.coming) {
    const at = Date.parse(one.plan_time);
    if (Math.abs(at - last) * framed.scale < 1) continue;
    const by = one.skipped_by;
    draw("tick", at, at, top, TICK, by ? "skipped" : "coming", by ? `to be skipped: ${by}` : "to come", at, [one], 0, 1, by ? "s" : undefined);
    last = at;
  }
  if (line.slo !== null) {
    draw.beside("slo", latenessAt(line.slo * 1000, framed.strip), top - 2, "quiet", `objective: at most ${line.slo} s late`);
  }
  if (line.missed_to) draw("unknown", Date.parse(line.missed_to), Math.min(framed.now, framed.to), top, TICK, "unknown", "not looked for missed ones here", 0, NOTHING);
  if (line.coming_to) draw("unknown", Date.parse(line.coming_to), framed.to, top, TICK, "unknown", "those to come are not drawn here", 0, NOTHING);
}

function drawBins(bins: readonly Bin[], width: number, top: number, draw: Draw): void {
  const most = Math.max(1, ...bins.map((bin) => bin.plan_times));
  for (const bin of bins) {
    const at = Date.parse(bin.start);
    const height = Math.max(2, (bin.plan_times / most) * (TICK + BAR + 4));
    const without = bin.plan_times - bin.tasks;
    const means = `${bin.plan_times} plan times${without ? `, ${without} of them skipped` : ""}`;
    draw("bin", at, at + width, top + TICK + BAR + 5 - height, height, without ? "skipped" : "good", means, at, [bin]);
  }
}

function binned(marks: readonly Mark[], { from, to }: Frame): Bin[] {
  const width = (to - from) / 200;
  const bins = new Map<number, { plan_times: number; tasks: number }>();
  for (const mark of marks) {
    const place = Math.floor((Date.parse(mark.plan_time) - from) / width);
    const bin = bins.get(place) ?? { plan_times: 0, tasks: 0 };
    bin.plan_times += 1;
    bin.tasks += mark.decision === "planned" ? 1 : 0;
    bins.set(place, bin);
  }
  return [...bins].map(([place, bin]) => ({ start: new Date(from + place * width).toISOString(), ...bin }));
}

/** Runs by agent: a row for each, its runs as bars beside each other; few agents have higher rows, for thicker bars. */
export function gantt(agents: readonly string[], tasks: readonly TaskSummary[], view: View): Scene {
  const framed = frame(view, 0);
  const all = agents.map((name) => {
    const ends: number[] = [];
    const runs = tasks
      .filter((task) => task.agent === name && task.started_at)
      .map((task) => [Date.parse(task.started_at ?? ""), task] as const)
      .sort(([a], [b]) => a - b)
      .map(([start, task]) => {
        const end = Math.max(start, task.finished_at ? Date.parse(task.finished_at) : framed.now);
        let lane = ends.findIndex((until) => until <= start);
        if (lane < 0) lane = ends.length;
        ends[lane] = end;
        return [start, end, lane, task] as const;
      });
    return { name, runs, lanes: Math.max(2, ends.length) };
  });
  const above = head(framed.width) + 6;
  const room = Math.min(ROOM / agents.length, LANE * Math.max(...all.map(({ lanes }) => lanes)));
  framed.row = Math.max(framed.row, Math.round(above + room));
  const rows = all.map(({ name, runs, lanes }, place): Row => {
    const y = place * framed.row;
    return rowOf(place, name, null, y, null, framed, (draw) => {
      const height = (framed.row - above) / lanes;
      for (const [start, end, lane, task] of runs) draw("bar", start, end, y + head(framed.width) + lane * height, Math.max(1, Math.min(BAR, height) - 1), tone(task.state), task.state, start, [task]);
    });
  });
  return scene(framed, rows);
}

/** What can be chosen: a plan time, a bin, or a run of an agent. */
export const canChoose = (item: Item): boolean => item.is === "tick" || item.is === "bin" || (item.is === "bar" && item.of.some((of) => "job" in of));

/** What is at a point, or near it; `shift` is by how much the plot was moved since the scene was built. */
export function hit(drawn: Scene, x: number, y: number, shift = 0): Item | null {
  const row = drawn.rows[Math.floor(y / drawn.row)];
  let best: Item | null = null;
  let least = 9;
  for (const item of row?.items ?? []) {
    if (item.is === "unknown" || item.is === "slo" || item.is === "dot") continue;
    const left = item.x + shift;
    const right = item.to + shift;
    const away = x < left ? left - x : x > right ? x - right : 0;
    const off = y < item.y ? item.y - y : y > item.y + item.height ? y - item.y - item.height : 0;
    const far = away + off / 3 + (item.is === "change" ? 4 : item.is === "line" ? 1 : 0);
    if (far < least) [best, least] = [item, far];
  }
  return best;
}

/** The next thing of a row that can be chosen, before or after an instant. */
export function neighbour(row: Row | undefined, at: number, way: 1 | -1): Item | null {
  const all = (row?.items ?? []).filter((item) => canChoose(item) && (item.at - at) * way > 0);
  return all.sort((a, b) => (a.at - b.at) * way)[0] ?? null;
}
