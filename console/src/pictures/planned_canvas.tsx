// Draws a scene of planned versus fired on a canvas, and lets one zoom, pan and choose in it.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { axis } from "../core/axis";
import { second } from "../core/clock";
import { shade, zone } from "../core/prefs";
import type { ClockChange } from "../core/schema";
import { offsetAt, wall, zoneFor } from "../core/time";
import { penOn } from "./pen";
import type { Pen } from "./pen";
import { canChoose, head, hit, latenessAt, names, neighbour, RANGES, spanOf } from "./planned_scene";
import type { Item, Look, Row, Scene, View } from "./planned_scene";

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
  const body = useRef<HTMLCanvasElement>(null);
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
  const shift = -((from - origin) / span) * scene.plot;

  useLayoutEffect(() => {
    const look = () => setWidth(Math.floor(box.current?.clientWidth ?? 0));
    look();
    const watch = new ResizeObserver(look);
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const zoneName = zoneFor(zone.value, own);
  const latest = useRef({ scene, shift, from, until, now, zoneName, chosen });
  latest.current = { scene, shift, from, until, now, zoneName, chosen };
  const waits = useRef(0);
  const paint = useRef((isPrinted = false) => {
    if (!body.current || !top.current || !latest.current.scene.width) return;
    const began = performance.now();
    const isWhole = drawBody(body.current, latest.current, isPrinted);
    drawAxis(top.current, latest.current);
    Object.assign(body.current, { scene: latest.current.scene, shift: latest.current.shift, isWhole, drawnIn: performance.now() - began });
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
    const edge = body.current?.getBoundingClientRect();
    return [event.clientX - (edge?.left ?? 0), event.clientY - (edge?.top ?? 0)] as const;
  };
  const drag = useRef<{ x: number; at: number; isMoved: boolean } | null>(null);
  const at = (event: PointerEvent) => {
    const [x, y] = spot(event);
    return x <= scene.plot ? hit(scene, x, y, shift) : null;
  };
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
        <canvas
          ref={body}
          aria-hidden="true"
          style={{ left: `${names(width)}px` }}
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
        />
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
  shift: number;
  from: number;
  until: number;
  now: number;
  zoneName: string;
  chosen: { item: Item } | null;
}

const TONES: Record<Look, string> = { fired: "text", planned: "idle", skipped: "warn", missed: "bad", coming: "line-strong", good: "good", bad: "bad", busy: "busy", quiet: "line-strong", gap: "accent", fold: "accent", unknown: "line" };

/** What a row looks like from the origin of a scene to the end of the stretch that a pan moves through: a pan only copies it. */
interface Kept {
  scene: Scene;
  canvas: HTMLCanvasElement;
}
const stretch = ({ plot }: Scene): number => Math.ceil(plot * 1.5);
const BEYOND = 8; // rows above and below what is on screen
const TURN = 16; // ms of a frame in which rows are drawn; the others wait for the next one, as they were until then

/** Whether all rows that are on screen and near it are there; all of the picture, if it is printed. */
function drawBody(canvas: HTMLCanvasElement & { kept?: Map<string, Kept>; key?: string }, drawn: Drawn, isPrinted: boolean): boolean {
  const { scene, now, from, until, zoneName, chosen } = drawn;
  const { plot, row, rows } = scene;
  const width = scene.width - names(scene.width);
  const wide = stretch(scene);
  const pen = penOn(canvas, width, Math.max(1, scene.height));
  const edge = canvas.getBoundingClientRect();
  const first = isPrinted ? 0 : Math.max(0, Math.floor(-edge.top / row));
  const last = isPrinted ? rows.length : Math.max(first, Math.min(rows.length, Math.ceil((innerHeight - edge.top) / row) + 1));
  const ratio = devicePixelRatio || 1;
  const key = [ratio, pen.token("text"), scene.to - scene.from, width, row].join();
  if (canvas.key !== key) Object.assign(canvas, { key, kept: new Map() });
  const kept = canvas.kept!;
  const ends = performance.now() + TURN;
  let isTurn = true; // for one row at least, however slow the machine is
  let isWhole = true;
  const near = rows.slice(Math.max(0, first - BEYOND), last + BEYOND);
  for (const one of [...rows.slice(first, last), ...near]) {
    const before = kept.get(one.name);
    if (before?.scene === scene) continue;
    if (isTurn) kept.set(one.name, { scene, canvas: drawRow(before?.canvas ?? document.createElement("canvas"), one, scene, pen) });
    else isWhole = false;
    isTurn &&= isPrinted || performance.now() < ends;
  }
  for (const name of kept.keys()) if (!near.some((one) => one.name === name)) kept.delete(name);

  const [top, high] = [first * row, (last - first) * row];
  const x = (at: number) => Math.round(((at - from) / (until - from)) * plot);
  const copy = ({ canvas }: Kept, y: number, start: number, end: number, to: number) => end > start && pen.on.drawImage(canvas, start * ratio, 0, (end - start) * ratio, row * ratio, to, y, end - start, row);
  for (const { at } of axis(from, until, plot, (at) => offsetAt(at, zoneName))) if (x(at) >= 0 && x(at) < plot) pen.box("line", x(at), top, 1, high);
  for (const { name, y } of rows.slice(first, last)) {
    const one = kept.get(name);
    if (one) {
      const start = -x(one.scene.from);
      copy(one, y, Math.max(0, start), Math.min(wide, start + plot), Math.max(0, -start));
      copy(one, y, wide, wide + width - plot, plot);
    }
    if (y + row < scene.height) pen.box("line", 0, y + row - 1, width, 1);
  }
  pen.within(0, 0, plot, scene.height, () => {
    if (chosen) pen.edge("accent", 2, chosen.item.x + drawn.shift - 7, chosen.item.y - 3, Math.max(14, chosen.item.to - chosen.item.x + 14), chosen.item.height + 6);
    if (now >= from && now <= until) pen.box("accent", x(now) - 0.5, top, 1.5, high);
  });
  if (scene.strip) pen.box("line", plot, top, 1, high);
  return isWhole;
}

function drawRow(canvas: HTMLCanvasElement, row: Row, scene: Scene, { token }: Pen): HTMLCanvasElement {
  const wide = stretch(scene);
  const pen = penOn(canvas, wide + scene.strip, scene.row, token);
  pen.on.translate(0, -row.y);
  pen.within(0, row.y, wide, scene.row, () => drawPlot(pen, row, wide));
  drawLateness(pen, row, wide, scene.row - head(scene.width) - 6);
  return canvas;
}

/** What a row has thousands of, in three strokes, those that touch as one: a change of style and a shape cost more than a mark. */
const PLAIN: [Item["is"], Look, number][] = [["bar", "good", 1], ["tick", "coming", 0.7], ["tick", "fired", 1]];

function drawPlot(pen: Pen, { items, gap }: Row, wide: number): void {
  const thick = Math.max(1, Math.round(Math.min(3, gap * 0.6)));
  const seen = items.filter((item) => item.is !== "dot" && item.is !== "slo" && item.to >= -12 && item.x <= wide + 12);
  const others = seen.filter((item) => !PLAIN.some(([is, look]) => item.is === is && item.look === look));
  const draw = (isBelow: boolean) => others.forEach((item) => isBelow === (item.is === "change" || item.is === "unknown") && drawItem(pen, item, gap));
  draw(true);
  for (const [is, look, share] of PLAIN)
    pen.faint(share, () => {
      pen.on.fillStyle = pen.token(TONES[look]);
      let [from, to, y, height] = [0, 0, 0, 0];
      for (const item of seen)
        if (item.is === is && item.look === look) {
          const isBar = is === "bar";
          const x = Math.round(item.x) - (isBar ? 0 : thick >> 1);
          const end = isBar ? Math.max(x + 2, Math.round(item.to)) : x + (share < 1 ? Math.min(2, thick) : thick);
          if (x > to || x < from || item.y !== y || item.height !== height) {
            pen.on.fillRect(from, y, to - from, height);
            [from, to, y, height] = [x, end, item.y, item.height];
          } else to = Math.max(to, end);
        }
      pen.on.fillRect(from, y, to - from, height);
    });
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

function drawLateness(pen: Pen, row: Row, left: number, high: number): void {
  pen.on.fillStyle = pen.token("good");
  for (const { is, x: far, y, look } of row.items) {
    const x = Math.round(left + far);
    if (is === "dot" && look === "good") pen.on.fillRect(x - 1, y - 1, 3, 3);
  }
  for (const { is, x: far, y, look } of row.items) {
    const x = Math.round(left + far);
    if (is === "slo") for (let down = 0; down < high; down += 5) pen.box("text", x, y + down, 1, 3);
    else if (is === "dot" && look === "bad") pen.shape("bad", x, y - 3.5, x + 3.5, y + 3, x - 3.5, y + 3);
  }
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
