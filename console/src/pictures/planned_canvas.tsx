// Draws a scene of planned versus fired on a canvas, and lets one zoom, pan and choose in it.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { axis } from "../core/axis";
import { second } from "../core/clock";
import { shade, zone } from "../core/prefs";
import type { ClockChange } from "../core/schema";
import { offsetAt, wall, zoneFor } from "../core/time";
import { Pen, penOn, tokensOf } from "./pen";
import { canChoose, head, hit, latenessAt, names, neighbour, RANGES, spanOf } from "./planned_scene";
import type { Item, Look, Put, Row, Scene, View } from "./planned_scene";

export interface Where {
  range: string;
  /** In the middle of the view; null: now, which moves. */
  at: number | null;
}

interface Props {
  label: string;
  build: (view: View) => Scene;
  where: Where;
  move: (to: Where) => void;
  /** The zone of all rows, if they have the same. */
  own: string | null;
  open: (item: Item, row: string) => void;
  to: (name: string) => string;
  card: (item: Item, row: string) => ComponentChildren;
}

const AHEAD = 0.2; // of the view that lies in the future while it follows now
const AXIS = 30; // px
const CHANGED = 4; // px beyond which a press is a drag

/** What is in view. */
export function viewOf({ range, at }: Where, now: number): [number, number] {
  const span = spanOf(range);
  const from = at === null ? now - span * (1 - AHEAD) : at - span / 2;
  return [from, from + span];
}

export function Picture({ label, build, where, move, own, open, to, card }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<HTMLDivElement>(null);
  const body = useRef<Sheet>(null);
  const side = useRef<HTMLCanvasElement>(null);
  const top = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [chosen, setChosen] = useState<{ item: Item; isByKey: boolean } | null>(null);
  const [place, setPlace] = useState(0);
  const now = second.value;
  const [from, until] = viewOf(where, now);
  const span = until - from;
  // Built for a stretch of time, and only moved while that does: a second's step of now builds nothing.
  const origin = Math.floor(from / (span / 2)) * (span / 2);
  const scene = useMemo(() => build({ from: origin, to: origin + span, width, now }), [build, origin, span, width, span < 3_600_000 ? Math.floor(now / 1000) : Math.floor(now / 10_000)]);
  const shift = -Math.round(((from - origin) / span) * scene.plot);

  useLayoutEffect(() => {
    const look = () => setWidth(Math.floor(box.current?.clientWidth ?? 0));
    look();
    const watch = new ResizeObserver(look);
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const zoneName = zoneFor(zone.value, own);
  const latest = useRef<Drawn>(null!);
  latest.current = { scene, from, until, now, zoneName };
  const waits = useRef(0);
  const paint = useRef((isPrinted = false) => {
    if (!body.current || !side.current || !top.current || !latest.current.scene.width) return;
    const began = performance.now();
    const isWhole = drawBody(body.current, side.current, latest.current, isPrinted);
    drawAxis(top.current, latest.current);
    Object.assign(body.current, { scene: latest.current.scene, isWhole, drawnIn: performance.now() - began });
    if (!isWhole) soon();
  }).current;
  const soon = useRef(() => {
    waits.current ||= requestAnimationFrame(() => {
      waits.current = 0;
      paint();
    });
  }).current;
  useLayoutEffect(paint);
  useEffect(() => {
    const print = () => paint(true);
    const heard = [["scroll", soon], ["resize", soon], ["beforeprint", print]] as const;
    for (const [name, does] of heard) addEventListener(name, does, { passive: true });
    return () => heard.forEach(([name, does]) => removeEventListener(name, does));
  }, []);
  useEffect(soon, [shade.value]);

  const step = RANGES.findIndex(([name]) => name === where.range);
  /** Closer or wider; what is at `share` of the width stays where it is. */
  const zoom = (by: number, share = where.at === null ? 1 - AHEAD : 0.5) => {
    const next = RANGES[Math.max(0, Math.min(RANGES.length - 1, step + by))];
    if (!next || next[0] === where.range) return;
    const fixed = from + share * span;
    const isNow = where.at === null && Math.abs(share - (1 - AHEAD)) < 0.01;
    move({ range: next[0], at: isNow ? null : fixed + (0.5 - share) * next[1] });
  };
  const pan = (share: number) => move({ ...where, at: from + span / 2 + share * span });

  const spot = (event: { clientX: number; clientY: number }) => {
    const edge = plot.current?.getBoundingClientRect();
    return [event.clientX - (edge?.left ?? 0), event.clientY - (edge?.top ?? 0)] as const;
  };
  const drag = useRef<{ x: number; at: number; isMoved: boolean } | null>(null);
  const at = (event: PointerEvent) => hit(scene, ...spot(event), shift);
  useEffect(() => {
    const canvas = box.current;
    const wheel = (event: WheelEvent) => {
      const isOurs = event.ctrlKey || event.metaKey || document.activeElement === box.current;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        pan(event.deltaX / scene.plot);
      } else if (isOurs && event.deltaY) {
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1 : -1, Math.max(0, Math.min(1, spot(event)[0] / scene.plot)));
      }
    };
    canvas?.addEventListener("wheel", wheel, { passive: false });
    return () => canvas?.removeEventListener("wheel", wheel);
  });

  const openIt = (item: Item) => open(item, scene.rows[item.row]!.name);
  const choose = (item: Item | null) => {
    if (!item) return;
    setPlace(item.row);
    setChosen({ item, isByKey: true });
    if (item.at < from || item.at > until) move({ ...where, at: item.at });
  };
  const keys = (event: KeyboardEvent) => {
    const row = scene.rows[place];
    const middle = chosen?.item.row === place ? chosen.item.at : from + span / 2;
    const does: Record<string, () => void> = {
      "+": () => zoom(-1),
      "=": () => zoom(-1),
      "-": () => zoom(1),
      ArrowLeft: () => pan(-0.125),
      ArrowRight: () => pan(0.125),
      PageUp: () => pan(-1),
      PageDown: () => pan(1),
      Home: () => move({ ...where, at: null }),
      ArrowUp: () => setPlace(Math.max(0, place - 1)),
      ArrowDown: () => setPlace(Math.min(scene.rows.length - 1, place + 1)),
      "[": () => choose(neighbour(row, middle, -1)),
      "]": () => choose(neighbour(row, middle, 1)),
      Enter: () => chosen && openIt(chosen.item),
      Escape: () => setChosen(null),
    };
    const found = does[event.key];
    if (!found || event.ctrlKey || event.metaKey || event.altKey || event.target !== box.current) return;
    event.preventDefault();
    event.stopPropagation();
    found();
  };

  const left = chosen ? Math.max(0, Math.min(scene.plot, chosen.item.x + shift)) : 0;
  const isLeft = left > scene.plot / 2;
  const name = chosen ? scene.rows[chosen.item.row]?.name : undefined;
  return (
    <div
      ref={box}
      class="p-picture"
      role="application"
      aria-roledescription="picture"
      aria-label={`${label}. Plus and minus zoom, arrows move, square brackets choose a mark, Enter explains it, Home is now. The table has the same.`}
      tabIndex={0}
      onKeyDown={keys}
      onBlur={(event) => event.target === box.current && setChosen(null)}
    >
      <canvas ref={top} class="p-axis" aria-hidden="true" />
      <div class="p-rows" style={{ height: `${scene.height}px` }}>
        <ul class="p-names" style={{ width: names(width) ? `${names(width)}px` : "100%" }}>
          {scene.rows.map((row, number) => (
            <li key={row.name} class={number === place && chosen?.isByKey ? "chosen" : ""} style={{ top: `${row.y}px`, height: `${scene.row}px` }}>
              <a href={to(row.name)} title={row.name}>
                {row.name}
              </a>
              {row.note && (
                <span class="quiet" title={row.note}>
                  {row.note}
                </span>
              )}
            </li>
          ))}
        </ul>
        <div
          ref={plot}
          class="p-plot"
          aria-hidden="true"
          style={{ left: `${names(width)}px`, width: `${scene.plot}px` }}
          onPointerDown={(event) => {
            if (event.button) return;
            drag.current = { x: event.clientX, at: from + span / 2, isMoved: false };
            event.currentTarget.setPointerCapture(event.pointerId);
          }}
          onPointerMove={(event) => {
            const held = drag.current;
            if (!held) {
              const item = at(event);
              if (item !== chosen?.item) setChosen(item && { item, isByKey: false });
            } else if (held.isMoved || Math.abs(event.clientX - held.x) > CHANGED) {
              held.isMoved = true;
              setChosen(null);
              move({ ...where, at: held.at - ((event.clientX - held.x) / scene.plot) * span });
            }
          }}
          onPointerUp={(event) => {
            const held = drag.current;
            drag.current = null;
            const item = held?.isMoved ? null : at(event);
            if (item && (canChoose(item) || item.is === "bar" || item.is === "line")) openIt(item);
          }}
          onPointerCancel={() => (drag.current = null)}
          onPointerLeave={() => !chosen?.isByKey && setChosen(null)}
        >
          <canvas ref={body} style={{ transform: `translateX(${shift}px)` }} />
          {now >= from && now <= until && <i class="p-now" style={{ left: `${((now - from) / span) * scene.plot}px` }} />}
          {chosen && <i class="p-chosen" style={{ left: `${chosen.item.x + shift - 8}px`, top: `${chosen.item.y - 4}px`, width: `${Math.max(16, chosen.item.to - chosen.item.x + 16)}px`, height: `${chosen.item.height + 8}px` }} />}
        </div>
        <canvas ref={side} aria-hidden="true" style={{ right: 0 }} />
        {chosen && name !== undefined && (
          <div class="p-card" role={chosen.isByKey ? "status" : undefined} style={{ top: `${(scene.rows[chosen.item.row]?.y ?? 0) + scene.row}px`, [isLeft ? "right" : "left"]: `${isLeft ? width - names(width) - left : names(width) + left}px` }}>
            {card(chosen.item, name)}
          </div>
        )}
      </div>
    </div>
  );
}

// ── drawing ───────────────────────────────────────────────────────────────────────────────────────────

interface Drawn {
  scene: Scene;
  from: number;
  until: number;
  now: number;
  zoneName: string;
}

const TONES: Record<Look, string> = { fired: "text", planned: "idle", skipped: "warn", missed: "bad", coming: "line-strong", good: "good", bad: "bad", busy: "busy", quiet: "line-strong", gap: "accent", fold: "accent", unknown: "line" };

/** All rows from the origin of a scene to the end of the stretch that a pan moves through: a pan only moves it. */
interface Sheet extends HTMLCanvasElement {
  /** What all that is on it has in common. */
  key?: string;
  from?: number;
  /** Of each row, what it was drawn from. */
  rows?: Row[];
}
const STRETCH = 1.5;
const BEYOND = 8; // rows above and below what is on screen
const TURN = 16; // ms of a frame in which rows are drawn; the others wait for the next one, as they were until then

/** Whether all rows that are on screen and near it are there; all of the picture, if it is printed. */
function drawBody(sheet: Sheet, side: HTMLCanvasElement, { scene, zoneName }: Drawn, isPrinted: boolean): boolean {
  const { plot, row, rows, strip, height, from } = scene;
  const span = scene.to - from;
  const wide = Math.ceil(plot * STRETCH);
  const ratio = devicePixelRatio || 1;
  const key = [ratio, shade.value, zoneName, span, plot, row, strip, ...rows.map(({ name }) => name)].join();
  if (sheet.key !== key) {
    penOn(sheet, wide, Math.max(1, height));
    penOn(side, strip, Math.max(1, height));
    Object.assign(sheet, { key, from, rows: [] });
  }
  const [pen, beside] = [sheet, side].map((canvas) => new Pen(canvas.getContext("2d")!, tokensOf(sheet))) as [Pen, Pen];
  if (sheet.from !== from) {
    // until its turn comes a row stays as it is, where it now belongs
    pen.on.globalCompositeOperation = "copy";
    pen.on.drawImage(sheet, Math.round(((sheet.from! - from) / span) * plot), 0, wide, height);
    pen.on.globalCompositeOperation = "source-over";
    sheet.from = from;
  }
  const edge = side.getBoundingClientRect();
  const first = isPrinted ? 0 : Math.max(0, Math.floor(-edge.top / row));
  const last = isPrinted ? rows.length : Math.max(first, Math.min(rows.length, Math.ceil((innerHeight - edge.top) / row) + 1));
  const lines = axis(from, from + span * STRETCH, wide, (at) => offsetAt(at, zoneName)).map(({ at }) => Math.round(((at - from) / span) * plot));
  const ends = performance.now() + TURN;
  let isTurn = true; // for one row at least, however slow the machine is
  let isWhole = true;
  for (const one of [...rows.slice(first, last), ...rows.slice(Math.max(0, first - BEYOND), last + BEYOND)]) {
    const place = one.y / row;
    if (sheet.rows![place] === one) continue;
    if (isTurn) {
      for (const { on } of [pen, beside]) on.clearRect(0, one.y, wide, row);
      for (const x of lines) pen.box("line", x, one.y, 1, row);
      drawRow(pen, beside, one, plot, row - head(scene.width) - 6);
      if (strip) beside.box("line", 0, one.y, 1, row);
      if (place < rows.length - 1) for (const each of [pen, beside]) each.box("line", 0, one.y + row - 1, wide, 1);
      sheet.rows![place] = one;
    } else isWhole = false;
    isTurn &&= isPrinted || performance.now() < ends;
  }
  return isWhole;
}

/** What a row has thousands of, in three strokes, those that touch as one: a change of style and a shape cost more than a mark. */
const PLAIN: [Item["is"], Look, number][] = [["bar", "good", 1], ["tick", "coming", 0.7], ["tick", "fired", 1]];

function drawRow(pen: Pen, beside: Pen, row: Row, plot: number, high: number): void {
  const plain: number[][] = PLAIN.map(() => []); // of each, one after the other: x, where it ends, y, height
  const others: Item[] = [];
  let ticks = 0;
  beside.on.fillStyle = beside.token("good");
  beside.on.beginPath();
  const put: Put = (is, x, to, y, height, look, means, letter, at, of, first, next) => {
    if (is === "tick" && x > 0 && x < plot) ticks += 1;
    const kind = is === "bar" ? (look === "good" ? 0 : -1) : is !== "tick" ? -1 : look === "fired" ? 2 : look === "coming" ? 1 : -1;
    if (kind >= 0) {
      const marks = plain[kind]!;
      const last = marks.length - 4;
      x = Math.round(x);
      to = kind ? x + 1 : Math.max(x + 2, Math.round(to));
      if (last < 0 || x > marks[last + 1]! || x < marks[last]! || y !== marks[last + 2] || height !== marks[last + 3]) marks.push(x, to, y, height);
      else marks[last + 1] = Math.max(marks[last + 1]!, to);
    } else if (is === "dot") {
      x = Math.round(x);
      if (look === "good") beside.on.fillRect(x - 1, y - 1, 3, 3);
      else {
        beside.on.moveTo(x, y - 3.5);
        beside.on.lineTo(x + 3.5, y + 3);
        beside.on.lineTo(x - 3.5, y + 3);
      }
    } else others.push({ is, row: 0, x, to, y, height, look, means, letter, at, of: of.slice(first, next) });
  };
  row.lay(put);
  beside.on.fillStyle = beside.token("bad");
  beside.on.fill();
  const gap = plot / Math.max(1, ticks); // between ticks, on average: narrow ones are drawn where they stand close
  const thick = Math.max(1, Math.round(Math.min(3, gap * 0.6)));
  const draw = (isBelow: boolean) =>
    others.forEach((item) => {
      if (item.is === "slo") for (let down = 0; isBelow && down < high; down += 5) beside.box("text", Math.round(item.x), item.y + down, 1, 3);
      else if (isBelow === (item.is === "change" || item.is === "unknown")) drawItem(pen, item, gap);
    });
  draw(true);
  PLAIN.forEach(([is, look, share], kind) =>
    pen.faint(share, () => {
      pen.on.fillStyle = pen.token(TONES[look]);
      const marks = plain[kind]!;
      const wider = is === "bar" ? 0 : (share < 1 ? Math.min(2, thick) : thick) - 1;
      let [from, to, y, height] = [0, 0, 0, 0];
      for (let place = 0; place < marks.length; place += 4) {
        const x = marks[place]! - ((wider + 1) >> 1);
        const end = x + wider + marks[place + 1]! - marks[place]!;
        if (x > to || x < from || marks[place + 2] !== y || marks[place + 3] !== height) {
          pen.on.fillRect(from, y, to - from, height);
          [from, to, y, height] = [x, end, marks[place + 2]!, marks[place + 3]!];
        } else to = Math.max(to, end);
      }
      pen.on.fillRect(from, y, to - from, height);
    }),
  );
  draw(false);
}

function drawItem(pen: Pen, item: Item, gap: number): void {
  const { is, x, y, height, look, letter } = item;
  const wide = item.to - x;
  const ink = TONES[look];
  if (is === "line") {
    pen.box("warn", x, y + 1.25, wide, 1.5);
    pen.box("warn", x + wide - 0.75, y, 1.5, height);
  } else if (is === "bin") pen.box(look === "skipped" ? "warn" : "idle", x, y, Math.max(1, wide - 0.5), height);
  else if (is === "unknown") pen.box("idle-soft", x, y, wide, height);
  else if (is === "change") drawChange(pen, item, x + wide / 2, wide, ink);
  else if (is === "bar") {
    const room = Math.max(2, wide);
    if (look === "bad" || look === "quiet") {
      if (look === "bad") {
        pen.box("bad-soft", x, y, room, height);
        if (room > 6)
          pen.within(x, y, room, height, () => {
            for (let start = x - height; start < x + room; start += 6) pen.line(ink, 1.5, start, y + height, start + height, y);
          });
      }
      pen.edge(ink, 1, x + 0.5, y + 0.5, Math.max(1, room - 1), height - 1);
    } else {
      pen.faint(0.55, () => pen.box(ink, x, y, room, height)); // while it runs its end is open
      pen.box(ink, x, y, 2, height);
    }
  } else if (look === "missed") {
    for (const way of [4.5, -4.5]) pen.line(ink, 2, x - way, y + 2.5, x + way, y + 11.5);
  } else {
    const half = letter ? Math.max(3.5, Math.min(5.5, gap / 2)) : 2.5;
    pen.box("surface", x - half, y, 2 * half, height);
    pen.edge(ink, 1.25, x - half, y + 0.5, 2 * half, height - 1);
    if (letter) pen.text(letter, x, y + height / 2 + 0.5, ink, 10, 600);
  }
}

/** Clocks go forward: a torn line. Back: the hour that comes twice, shaded, and where it begins again. */
function drawChange(pen: Pen, { x, y, height, look, of }: Item, middle: number, wide: number, ink: string): void {
  const isGap = look === "gap";
  if (!isGap) pen.box("hover", x, y, wide, height);
  const points: number[] = [];
  for (let down = 16; down <= height; down += 4) points.push(middle + (isGap ? (down % 8 ? 3 : -3) : 0), y + down);
  pen.line(ink, 1.25, ...points);
  pen.text(`clocks ${isGap ? "+" : "−"}${Math.abs((of[0] as ClockChange).seconds) / 3600} h`, isGap ? middle + 7 : x + wide + 4, y + 7, ink, 10, 600, "left");
}

function drawAxis(canvas: HTMLCanvasElement, { scene, from, until, zoneName, now }: Drawn): void {
  const { plot, strip } = scene;
  const pen = penOn(canvas, scene.width, AXIS);
  const left = names(scene.width);
  const x = (at: number) => left + ((at - from) / (until - from)) * plot;
  if (left) pen.text(`${zoneName}  ${wall((from + until) / 2, zoneName).offset}`, 12, AXIS / 2, "quiet", 11, 400, "left", left - 20);
  for (const { at, step } of axis(from, until, plot, (at) => offsetAt(at, zoneName))) {
    const { date, time } = wall(at, zoneName);
    const isDay = time === "00:00:00";
    if (x(at) > left + 16 && x(at) < left + plot - (strip ? 16 : 30)) pen.text(isDay ? date.slice(5) : time.slice(0, step < 60_000 ? 8 : 5), x(at), AXIS / 2, isDay ? "text" : "quiet", 11);
  }
  const one = strip > 100 ? "1 " : "";
  if (strip) for (const [ms, word] of [[1, "ms"], [1000, "s"], [60_000, "min"]] as const) pen.text(one + word, left + plot + latenessAt(ms, strip), AXIS / 2, "quiet", 11);
  if (now >= from && now <= until) pen.shape("accent", x(now) - 5, AXIS - 7, x(now) + 5, AXIS - 7, x(now), AXIS);
}
