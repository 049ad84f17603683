// What a task wrote: followed, searched, windowed by lines. A reader who has scrolled up is not moved.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { tellRefusal, toast } from "../core/actions";
import { linksIn, NONE, styled } from "../core/ansi";
import { call, urlOf } from "../core/api";
import { ahead } from "../core/clock";
import { Follower } from "../core/follow";
import type { Following } from "../core/follow";
import { liveness } from "../core/live";
import { Output, shownOf, textOf } from "../core/output";
import type { Line } from "../core/output";
import { kept, zone } from "../core/prefs";
import { query, setQuery } from "../core/router";
import type { AttemptView, PieceView } from "../core/schema";
import { bytes, count, LOCAL, shown, wall, zoneFor } from "../core/time";
import { Icon } from "./icons";
import { Empty, Problem } from "./page";
import { many } from "./show";

const MARGIN = 30; // rows drawn above and below what is seen
const PAGES = 4; // pages of 256 kB that one "load earlier" reads
const MOST_FOUND = 10_000;
const SEARCH_AFTER = 150; // ms

const wraps = kept("wrap", ["on", "off"] as const, "on");
const stamps = kept("timestamps", ["on", "off"] as const, "off");

interface Found {
  line: Line;
  from: number;
}

export function TaskOutput({ id, isEnded, attempts }: { id: number; isEnded: boolean; attempts: readonly AttemptView[] }) {
  const only = Number(query.value.get("attempt")) || null;
  const output = useMemo(() => new Output(), [id, only]);
  const [, redraw] = useState(0);
  const [following, setFollowing] = useState<Following>({ state: "loading" });
  const follower = useRef<Follower | null>(null);
  const view = useRef<View>({ ...AT_END });
  const [unseen, setUnseen] = useState(0);
  const draw = () => redraw((number) => number + 1);

  const life = `${isEnded} ${attempts.at(-1)?.token ?? 0}`;
  const begun = useRef("");
  const begin = (after: string | null) => {
    begun.current = life;
    follower.current?.close();
    follower.current = new Follower(
      id,
      only,
      {
        now: setFollowing,
        pieces: (pieces) => {
          // before the reader's lines would fall out, no more is taken: "jump to the end" or reading on goes on from there
          if (!view.current.isAtEnd && output.isFull) return hold();
          const before = output.lines.length;
          if (!output.lines.length && pieces[0] && !isFirst(pieces[0], attempts)) output.hasEarlier = true;
          const dropped = take(pieces);
          if (!view.current.isAtEnd) setUnseen((old) => old + output.lines.length - before + dropped);
          draw();
        },
      },
      after,
    );
  };
  const take = (pieces: PieceView[]): number => {
    const dropped = output.add(pieces);
    view.current.lost += dropped.reduce((rows, line) => rows + (wraps.value === "on" ? line.rows || 1 : 1), 0);
    return dropped.length;
  };
  const hold = () => {
    follower.current?.close();
    output.hasLater = true;
    setFollowing({ state: "held" });
  };
  useEffect(() => {
    view.current = { ...AT_END };
    setUnseen(0);
    begin(null);
    return () => follower.current?.close();
  }, [output]);
  useEffect(() => {
    // it was retried, and may have ended again before anybody looked
    if (following.state !== "ended" || begun.current === life) return;
    begin(output.last);
  }, [life, following.state]);

  const jump = () => {
    view.current.isAtEnd = true;
    setUnseen(0);
    if (output.hasLater) {
      output.clear();
      output.hasEarlier = true;
      begin(null);
    }
    draw();
  };
  const loadEarlier = async () => {
    for (let page = 0; page < PAGES; page += 1) {
      if (!output.first) return;
      const found = await call("GET /tasks/{id}/output", { id, attempt: only, before: output.first });
      view.current.isAtEnd = false;
      view.current.came += output.addEarlier(found.items);
      output.hasEarlier = Boolean(found.previous);
      if (output.hasLater) hold();
      if (!output.hasEarlier) break;
    }
    draw();
  };
  const loadLater = async () => {
    for (let page = 0; page < PAGES && output.last; page += 1) {
      const found = await call("GET /tasks/{id}/output", { id, attempt: only, after: output.last });
      take(found.items);
      output.hasLater = found.next !== null && found.items.length > 0;
      if (output.hasLater) continue;
      begin(output.last);
      break;
    }
    draw();
  };

  const words =
    following.state === "live"
      ? liveness.value.state === "lost" ? "what is new waits for the server" : "following"
      : following.state === "lost"
        ? `not live since ${wall(following.since + ahead.value, LOCAL).time}, trying again`
        : following.state === "held"
          ? "held: the newest is not loaded"
          : following.state === "loading"
            ? "loading …"
            : "";
  const isEmpty = !output.lines.length && following.state === "ended";
  return (
    <section class="section output" aria-label="Output" id="output">
      <header class="section-head">
        <h2>Output</h2>
        <div class="aside">
          <span role="status" class={following.state === "lost" ? "following lost" : "following"}>
            {words}
          </span>
          {output.size > 0 && <span class="number">{bytes(output.size)} loaded</span>}
          {(attempts.length > 1 || only) && (
            <label class="attempt-choice">
              Attempt{" "}
              <select value={only ?? ""} onChange={(event) => setQuery({ attempt: event.currentTarget.value })}>
                <option value="">all</option>
                {[...new Set(attempts.map((one) => one.number))].map((number) => (
                  <option key={number} value={number}>
                    {number}
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
      </header>
      {following.state === "refused" && <Problem refusal={following.refusal} retry={() => begin(output.last)} />}
      {isEmpty ? (
        <Empty title="This task wrote nothing.">What commands print is shown here; what Python handlers print is in the output of their worker.</Empty>
      ) : (
        <Lines
          key={`${id} ${only}`}
          id={id}
          output={output}
          view={view.current}
          attempts={attempts}
          isEnded={isEnded}
          unseen={unseen}
          atEnd={() => setUnseen(0)}
          jump={jump}
          earlier={loadEarlier}
          later={loadLater}
        />
      )}
    </section>
  );
}

/** Text with its colours, as a terminal shows it. */
export function Coloured({ text }: { text: string }) {
  return <>{styled(text, NONE).pieces.map((piece) => (piece.classes ? <span class={piece.classes}>{piece.text}</span> : piece.text))}</>;
}

/** Whether nothing can be before this piece. */
function isFirst(piece: { token: number; number: number }, attempts: readonly AttemptView[]): boolean {
  return piece.number === 1 && attempts.every((attempt) => attempt.token >= piece.token);
}

/** Where the reader is: at the end, which is followed, or at a place that must not move. */
interface View {
  isAtEnd: boolean;
  top: number; // px
  came: number; // lines above, since the last drawing
  lost: number; // rows above
}
const AT_END: View = { isAtEnd: true, top: 0, came: 0, lost: 0 };

interface LinesProps {
  id: number;
  output: Output;
  view: View;
  attempts: readonly AttemptView[];
  isEnded: boolean;
  unseen: number;
  atEnd: () => void;
  jump: () => void;
  earlier: () => Promise<void>;
  later: () => Promise<void>;
}

function Lines({ id, output, view, attempts, isEnded, unseen, atEnd, jump, earlier, later }: LinesProps) {
  const { lines } = output;
  const box = useRef<HTMLDivElement>(null);
  const [size, setSize] = useState({ row: 20, columns: 0, height: 400 });
  const [, redraw] = useState(0);
  const [isLoading, setLoading] = useState(false);
  const [wasEnded] = useState(isEnded);
  const isWrapped = wraps.value === "on";
  const draw = () => redraw((number) => number + 1);

  const load = (read: () => Promise<void>) => {
    if (isLoading) return;
    setLoading(true);
    void read().catch(tellRefusal).finally(() => setLoading(false));
  };

  // where each line begins, in rows
  const tops = useRef<number[]>([]);
  let total = 0;
  if (isWrapped) {
    tops.current.length = lines.length;
    for (const [place, line] of lines.entries()) {
      tops.current[place] = total;
      total += line.rows || (line.rows = rowsOf(line, size.columns));
    }
  } else total = lines.length;
  const topOf = (place: number) => (isWrapped ? (tops.current[place] ?? total) : place);
  const lineAt = (row: number) => {
    if (!isWrapped) return Math.max(0, Math.min(lines.length - 1, Math.floor(row)));
    let [low, high] = [0, Math.max(0, lines.length - 1)];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((tops.current[middle] ?? 0) <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  };

  useLayoutEffect(() => {
    const measure = () => {
      const element = box.current;
      const sample = element?.querySelector<HTMLElement>(".sample");
      if (!element || !sample) return;
      const row = sample.getBoundingClientRect().height;
      const gutter = element.querySelector<HTMLElement>(".log-gutter")?.offsetWidth ?? 0;
      const columns = Math.max(10, Math.floor((element.clientWidth - gutter - 8) / (sample.getBoundingClientRect().width / 10)));
      setSize((old) => {
        if (old.columns !== columns) for (const line of lines) line.rows = 0;
        return old.row === row && old.columns === columns && old.height === element.clientHeight ? old : { row, columns, height: element.clientHeight };
      });
    };
    measure();
    const observer = new ResizeObserver(measure);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, [lines, stamps.value]);

  // ── search ──
  const text = query.value.get("find") ?? "";
  const [found, setFound] = useState<Found[]>([]);
  const [current, setCurrent] = useState<Found | null>(null);
  useEffect(() => {
    if (!text) {
      setFound([]);
      setCurrent(null);
      return undefined;
    }
    const timer = setTimeout(() => setFound(search(lines, text)), SEARCH_AFTER);
    return () => clearTimeout(timer);
  }, [text, lines.length, lines[0]?.key]);
  const place = current ? found.findIndex((one) => one.line === current.line && one.from === current.from) : -1;
  const step = (by: 1 | -1) => {
    if (!found.length) return;
    // from where the reader is, the first time
    const here = lineAt((box.current?.scrollTop ?? 0) / size.row);
    const first = found.findIndex((one) => lines.indexOf(one.line) >= here);
    const next = found[place >= 0 ? (place + by + found.length) % found.length : Math.max(0, first)];
    if (!next) return;
    setCurrent(next);
    view.isAtEnd = false;
    const row = topOf(lines.indexOf(next.line));
    if (box.current) box.current.scrollTop = (row + 0.5) * size.row - size.height / 2;
    draw();
  };

  // ── where the reader is ──
  const scroll = () => {
    const element = box.current;
    if (!element) return;
    const top = element.scrollTop;
    const rest = element.scrollHeight - element.clientHeight - top;
    if (top < view.top - 1) view.isAtEnd = false;
    else if (rest < size.row * 1.5 && !output.hasLater) {
      if (!view.isAtEnd) atEnd();
      view.isAtEnd = true;
    }
    view.top = top;
    draw();
  };
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    // lines came or went above: what was seen stays where it was
    const moved = topOf(view.came) - view.lost;
    view.came = view.lost = 0;
    if (moved && !view.isAtEnd) element.scrollTop = view.top + moved * size.row;
    if (isWrapped) measureDrawn(element);
    if (view.isAtEnd) element.scrollTop = element.scrollHeight;
    view.top = element.scrollTop;
  });
  /** Characters may be wider than one column: what was drawn tells how many rows a line takes. */
  const measureDrawn = (element: HTMLElement) => {
    let isOff = false;
    for (const drawn of element.querySelectorAll<HTMLElement>(".log-line")) {
      const line = lines[Number(drawn.dataset.place)];
      const rows = Math.max(1, Math.round(drawn.offsetHeight / size.row));
      if (!line || line.rows === rows || !size.columns) continue;
      if (!view.isAtEnd && topOf(Number(drawn.dataset.place)) * size.row < element.scrollTop) element.scrollTop += (rows - line.rows) * size.row;
      line.rows = rows;
      isOff = true;
    }
    if (isOff) draw();
  };

  const top = view.isAtEnd ? Math.max(0, total * size.row - size.height) : (box.current?.scrollTop ?? 0);
  const first = Math.max(0, lineAt(top / size.row - MARGIN));
  const last = Math.min(lines.length, lineAt((top + size.height) / size.row + MARGIN) + 1);
  const marks = new Map<Line, Found[]>();
  for (const one of found) marks.set(one.line, [...(marks.get(one.line) ?? []), one]);
  const isShort = wasEnded && total < 24 && !output.hasEarlier;

  const copy = async () => {
    try {
      await navigator.clipboard.writeText(lines.filter((line) => line.stream !== "attempt").map(textOf).join("\n"));
      toast({ kind: "done", text: `Copied ${many(lines.length, "line")}${output.hasEarlier || output.hasLater ? ", those that are loaded" : ""}.` });
    } catch {
      toast({ kind: "told", text: "This browser does not let a page copy here; download the output instead." });
    }
  };
  return (
    <div class="log-frame">
      <div class="log-bar">
        <div class="log-search" role="search">
          <Icon name="search" />
          <input
            type="text"
            aria-label="Search the output"
            placeholder="Search"
            spellcheck={false}
            autoComplete="off"
            value={text}
            onInput={(event) => setQuery({ find: event.currentTarget.value })}
            onKeyDown={(event) => {
              if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
              else if (event.key === "Escape") setQuery({ find: null });
              else return;
              event.preventDefault();
            }}
          />
          {text && (
            <>
              <span role="status" class="number found">
                {place >= 0 ? `${count(place + 1)} of ` : ""}
                {count(found.length)}
                {found.length >= MOST_FOUND ? "+" : ""}
              </span>
              <button type="button" class="icon-button up" aria-label="Previous match" onClick={() => step(-1)}>
                <Icon name="down" />
              </button>
              <button type="button" class="icon-button" aria-label="Next match" onClick={() => step(1)}>
                <Icon name="down" />
              </button>
            </>
          )}
        </div>
        <label>
          <input type="checkbox" checked={isWrapped} onChange={(event) => (wraps.value = event.currentTarget.checked ? "on" : "off")} /> wrap
        </label>
        <label>
          <input type="checkbox" checked={stamps.value === "on"} onChange={(event) => (stamps.value = event.currentTarget.checked ? "on" : "off")} /> times
        </label>
        <button type="button" class="button" onClick={copy}>
          <Icon name="copy" /> Copy
        </button>
        <a class="button" href={urlOf("GET /tasks/{id}/output", { id, download: true })} download>
          Download
        </a>
      </div>
      {output.hasEarlier && (
        <p class="log-note">
          <span>Earlier output is not loaded; this is a window of at most 5 MB.</span>
          <button type="button" class="link" aria-busy={isLoading} onClick={() => load(earlier)}>
            {isLoading ? "loading …" : "load earlier"}
          </button>
        </p>
      )}
      <div class={`log${isWrapped ? " wrapped" : ""}${isShort ? " short" : ""}`} ref={box} onScroll={scroll} tabIndex={0} role="region" aria-label="Lines of the output">
        <span class="sample" aria-hidden="true">
          0000000000
        </span>
        <div class="log-room" style={{ height: `${total * size.row}px` }}>
          <div class="log-lines" style={{ transform: `translateY(${topOf(first) * size.row}px)` }}>
            {lines.slice(first, last).map((line, number) => (
              <LineRow key={line.key} line={line} place={first + number} marks={marks.get(line)} current={current} attempts={attempts} />
            ))}
          </div>
        </div>
      </div>
      {(output.hasLater || !view.isAtEnd) && (
        <div class="log-end">
          {output.hasLater && (
            <button type="button" class="button" onClick={() => load(later)}>
              Load later
            </button>
          )}
          <button type="button" class="button main" onClick={jump}>
            {unseen > 0 ? `${many(unseen, "new line")} · jump` : "Jump"} to the end
          </button>
        </div>
      )}
    </div>
  );
}

/** An estimate by the number of characters; what is drawn is measured. */
function rowsOf(line: Line, columns: number): number {
  return columns && line.stream !== "attempt" ? Math.max(1, Math.ceil(textOf(line).length / columns)) : 1;
}

function search(lines: readonly Line[], text: string): Found[] {
  const wanted = text.toLowerCase();
  const found: Found[] = [];
  for (const line of lines) {
    const given = textOf(line).toLowerCase();
    for (let from = given.indexOf(wanted); from >= 0; from = given.indexOf(wanted, from + wanted.length)) {
      found.push({ line, from });
      if (found.length >= MOST_FOUND) return found;
    }
  }
  return found;
}

const TAGS = { stdout: "", stderr: "err", remark: "agent", attempt: "" } as const;

interface RowProps {
  line: Line;
  place: number;
  marks: Found[] | undefined;
  current: Found | null;
  attempts: readonly AttemptView[];
}

function LineRow({ line, place, marks, current, attempts }: RowProps) {
  if (line.stream === "attempt") {
    const attempt = attempts.find((one) => one.token === line.token);
    return (
      <div class="log-line attempt" data-place={place}>
        <span class="attempt-mark">
          {attempt ? `attempt ${attempt.number}${attempt.agent ? ` on ${attempt.agent}` : ""}` : "next attempt"} · {shown(line.at, zoneFor(zone.value), line.at)}
        </span>
      </div>
    );
  }
  return (
    <div class={`log-line ${line.stream}`} data-place={place}>
      <span class="log-gutter">
        {stamps.value === "on" && <time dateTime={new Date(line.at).toISOString()}>{timeOf(line.at)} </time>}
        <span class="tag">{TAGS[line.stream]}</span>
      </span>
      <span class="log-text">{drawn(line, marks, current)}</span>
    </div>
  );
}

function timeOf(at: number): string {
  return shown(at, zoneFor(zone.value), at, { ms: true }).split(" ")[0] ?? "";
}

/** Cut where its style changes, and where links and matches begin and end. */
function drawn(line: Line, marks: Found[] | undefined, current: Found | null): ComponentChildren {
  const { pieces } = styled(shownOf(line), line.style);
  const text = textOf(line);
  const links = linksIn(text);
  if (!links.length && !marks && pieces.length === 1 && !pieces[0]?.classes) return text || "\u200b";
  const length = marks ? (query.value.get("find") ?? "").length : 0;
  const cuts = new Set([0, text.length]);
  let at = 0;
  const styles: [number, string][] = [];
  for (const piece of pieces) {
    styles.push([at, piece.classes]);
    cuts.add((at += piece.text.length));
  }
  for (const [from, upto] of links) cuts.add(from).add(upto);
  for (const { from } of marks ?? []) cuts.add(from).add(Math.min(text.length, from + length));
  const places = [...cuts].sort((one, other) => one - other);
  const parts: ComponentChildren[] = [];
  for (const [number, from] of places.slice(0, -1).entries()) {
    const word = text.slice(from, places[number + 1]);
    const classes = styles.findLast(([begins]) => begins <= from)?.[1] ?? "";
    const mark = marks?.find((one) => one.from <= from && from < one.from + length);
    const link = links.find(([begins, ends]) => begins <= from && from < ends);
    let part: ComponentChildren = classes ? <span class={classes}>{word}</span> : word;
    if (mark) part = <mark class={mark.line === current?.line && mark.from === current.from ? "current" : ""}>{part}</mark>;
    if (link)
      part = (
        <a href={text.slice(link[0], link[1])} target="_blank" rel="noopener noreferrer">
          {part}
        </a>
      );
    parts.push(part);
  }
  return parts.length ? parts : "\u200b";
}
