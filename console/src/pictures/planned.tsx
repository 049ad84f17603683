// Planned versus fired: what was to run when, what ran, and how late. As a picture, or as the table behind it.

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { now, second } from "../core/clock";
import { explained } from "../core/explained";
import { REASONS } from "../core/reasons";
import { useGet } from "../core/query";
import { go, link, query, setQuery } from "../core/router";
import type { Bin, Coming, Line, Mark, Missing } from "../core/schema";
import { milliseconds, relative, span as spanWords } from "../core/time";
import { Choice, Switch } from "../parts/controls";
import { Empty, Loading, Problem } from "../parts/page";
import { Instant, Lateness, many, NONE, To } from "../parts/show";
import { Table } from "../parts/table";
import type { Column } from "../parts/table";
import { Picture, viewOf } from "./planned_canvas";
import type { Where } from "./planned_canvas";
import { build, meaning, RANGES, spanOf } from "./planned_scene";
import type { Item, View } from "./planned_scene";

const WRITE_AFTER = 200; // ms without a move before the address has it
const OFFERED = ["5m", "1h", "6h", "1d", "7d"];

/** Where one looks: in the address, and moved at once. */
export function useWhere(first = "1h"): [Where, (to: Where) => void] {
  const [held, setHeld] = useState<Where | null>(null);
  const timer = useRef(0);
  const given = query.value.get("range");
  const at = Date.parse(query.value.get("at") ?? "");
  const range = RANGES.some(([name]) => name === given) ? (given as string) : first;
  useEffect(() => () => clearTimeout(timer.current), []);
  const move = (to: Where) => {
    setHeld(to);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      setQuery({ range: to.range, at: to.at === null ? null : new Date(to.at).toISOString() });
      setHeld(null);
    }, WRITE_AFTER);
  };
  return [held ?? { range, at: Number.isNaN(at) ? null : at }, move];
}

/** The switches above a picture: how much time, now, picture or table. */
export function Switches({ where, move }: { where: Where; move: (to: Where) => void }) {
  const offered = OFFERED.includes(where.range) ? OFFERED : [...OFFERED, where.range].sort((a, b) => spanOf(a) - spanOf(b));
  return (
    <div class="p-switches">
      <Choice label="Range" of={offered.map((name) => [name, name.replace(/(\d+)m/, "$1 min").replace(/(\d+)([hd])/, "$1 $2")] as const)} value={where.range} set={(range) => move({ ...where, range })} />
      <button type="button" class="button plain" aria-pressed={where.at === null} onClick={() => move({ ...where, at: null })}>
        Now
      </button>
      <Switch label="Show as" name="view" of={[["picture", "Picture"], ["table", "Table"]]} />
    </div>
  );
}

const ROWS_IN_SIGHT = 8; // with more, what is below the picture is not seen beside it

export function PlannedFired({ schedules, range }: { schedules: string[]; range?: string }) {
  const [where, move] = useWhere(range);
  const span = spanOf(where.range);
  const [from] = viewOf(where, second.value);
  const start = Math.floor(from / (span / 2)) * (span / 2); // a stretch that is loaded once while now moves through it
  const loaded = useGet("GET /timeline", schedules.length ? { schedule: schedules, from: new Date(start).toISOString(), to: new Date(start + 1.5 * span).toISOString() } : null, { topics: span > 3_600_000 ? ["schedules"] : ["schedules", "tasks"], every: Math.max(5, span / 3_600_000), keep: true });
  const lines = loaded.data?.lines ?? EMPTY;
  const drawn = useCallback((view: View) => build(lines, view), [lines]);
  const zones = new Set(lines.map((line) => line.timezone));
  const own = zones.size === 1 ? (lines[0]?.timezone ?? null) : null;
  const isTable = query.value.get("view") === "table";
  return (
    <div class="p-planned">
      <Switches where={where} move={move} />
      {loaded.refusal && <Problem refusal={loaded.refusal} retry={loaded.refresh} />}
      {!loaded.data ? (
        !loaded.refusal && <Loading />
      ) : isTable ? (
        <AsTable lines={lines} where={where} />
      ) : (
        <>
          {lines.length > ROWS_IN_SIGHT && <Legend lines={lines} />}
          <Picture
            label={`Planned versus fired: ${many(lines.length, "schedule")}`}
            build={drawn}
            where={where}
            move={move}
            own={own}
            open={open}
            to={(name) => link`schedules/${name}`}
            card={(item, row) => <Card item={item} name={row} zone={lines[item.row]?.timezone ?? null} />}
          />
          {lines.length <= ROWS_IN_SIGHT && <Legend lines={lines} />}
        </>
      )}
    </div>
  );

  function open(item: Item, row: string): void {
    if (item.is === "bin") move({ range: RANGES[Math.max(0, RANGES.findIndex(([name]) => name === where.range) - 2)]?.[0] ?? where.range, at: item.at });
    else go(explained(row, item.at));
  }
}
const EMPTY: Line[] = [];

/** What a plan time came to, in words. */
function wordsOf(one: Mark | Coming | Missing): string {
  if ("decision" in one) {
    const [look, words] = meaning(one, now());
    if (look === "skipped") return `${words}: ${one.skipped_by ?? REASONS[one.decision]?.[2] ?? ""}`;
    if (look !== "fired") return words;
    const late = one.lateness_ms === null ? "fired" : `fired ${milliseconds(Math.max(0, one.lateness_ms))} late`;
    if (!one.finished_at) return `${late}; runs`;
    return `${late}; ${(one.state ?? "").replace("_", " ")} after ${spanWords((Date.parse(one.finished_at) - Date.parse(one.started_at ?? one.finished_at)) / 1000)}`;
  }
  if ("skipped_by" in one) return one.skipped_by ? `to be skipped by ${one.skipped_by}` : `to come, ${relative(Date.parse(one.plan_time), now())}`;
  return "missed: nothing decided about it; was a server running?";
}

function Card({ item, name, zone }: { item: Item; name: string; zone: string | null }) {
  const marks = item.of as (Mark | Coming | Missing)[];
  if (item.is === "bin" || item.is === "change")
    return (
      <>
        <p class="p-when">
          <Instant at={item.at} own={zone} date="always" />
        </p>
        <p>{item.means}</p>
      </>
    );
  const note = marks.map((mark) => ("note" in mark ? mark.note : null)).find(Boolean);
  return (
    <>
      <p class="p-when">
        <Instant at={item.at} own={zone} date="always" /> <span class="quiet">{name}</span>
      </p>
      {marks.slice(0, 5).map((mark) => (
        <p key={"scope" in mark ? mark.scope : ""}>
          {"scope" in mark && mark.scope && <b>{mark.scope}: </b>}
          {wordsOf(mark)}
        </p>
      ))}
      {marks.length > 5 && <p class="quiet">and {many(marks.length - 5, "more scope")}</p>}
      {note && <p class="quiet">{note}</p>}
    </>
  );
}

const SIGNS: [string, string, string][] = [
  ["fired", "M7 1v14", "fired"],
  ["planned", "M4.5 1.5h5v13h-5z", "planned, no run yet"],
  ["missed", "M2.5 3.5l9 9m0-9l-9 9", "missed: nothing decided about it"],
  ["coming", "M7 1v14", "to come"],
  ["good", "M1 5h18v7H1z", "run, start to end"],
  ["bad", "M1 5h18v7H1zM3 12l5-7m0 7l5-7m0 7l5-7", "run that failed"],
  ["late", "M2 8h14v4", "how late it started"],
];

/** What the signs mean: all of them, and of the letters those that are there. */
function Legend({ lines }: { lines: readonly Line[] }) {
  const there = useMemo(() => new Set(lines.flatMap((line) => line.marks.map((mark) => mark.decision))), [lines]);
  const hasSlo = lines.some((line) => line.slo !== null);
  return (
    <ul class="p-legend" aria-label="Signs">
      {SIGNS.map(([look, path, words]) => (
        <li key={look}>
          <svg viewBox="0 0 20 16" width="20" height="16" aria-hidden="true" class={`p-sign ${look}`}>
            <path d={path} />
          </svg>
          {words}
        </li>
      ))}
      {Object.entries(REASONS)
        .filter(([reason]) => there.has(reason) || reason === "overlap")
        .map(([reason, [letter, word, why]]) => (
          <li key={reason} title={why}>
            <span class="p-letter" aria-hidden="true">
              {letter}
            </span>
            skipped, {word}: {why}
          </li>
        ))}
      <li>
        <svg viewBox="0 0 20 16" width="20" height="16" aria-hidden="true" class="p-sign dots">
          <circle cx="5" cy="5" r="2" />
          <circle cx="11" cy="11" r="2" />
          <circle cx="15" cy="6" r="2" />
        </svg>
        at the right: how late each fire was{hasSlo && "; the dashed line is its objective, triangles are beyond it"}
      </li>
    </ul>
  );
}

interface Told {
  schedule: string;
  zone: string;
  at: number;
  one: Mark | Coming | Missing | Bin;
}

const columns: Column<Told>[] = [
  {
    name: "Plan time",
    cell: ({ schedule, at, zone, one }) =>
      "plan_time" in one ? (
        <a href={explained(schedule, at)}>
          <Instant at={at} own={zone} date="always" />
        </a>
      ) : (
        <Instant at={at} own={zone} date="always" />
      ),
  },
  { name: "Schedule", cell: ({ schedule }) => <To page="schedules" of={schedule} />, drop: 3 },
  {
    name: "What came of it",
    cell: ({ one }) => {
      const words = "plan_time" in one ? wordsOf(one) : `${many(one.plan_times, "plan time")}, ${one.tasks} with a task`;
      const note = "note" in one ? one.note : null;
      return <span title={words}>{note ? `${words}; ${note}` : words}</span>;
    },
  },
  { name: "Scope", cell: ({ one }) => ("scope" in one && one.scope) || NONE, drop: 1 },
  { name: "Late", cell: ({ one }) => ("lateness_ms" in one ? <Lateness ms={one.lateness_ms} /> : NONE), align: "right", drop: 2 },
  { name: "Task", cell: ({ one }) => "task_id" in one ? <To page="tasks" of={one.task_id} /> : NONE, drop: 2 },
];

const isComing = ({ one }: Told): boolean => "plan_time" in one && "skipped_by" in one && !("decision" in one);

/** The latest first, and behind them those to come. */
function AsTable({ lines, where }: { lines: readonly Line[]; where: Where }) {
  const [from, to] = viewOf(where, second.value);
  const rows = useMemo(
    () =>
      lines
        .flatMap((line) => {
          const all: Told["one"][] = [...line.marks, ...line.missed, ...line.coming, ...line.bins];
          return all.map((one): Told => ({ schedule: line.schedule, zone: line.timezone, at: Date.parse("plan_time" in one ? one.plan_time : one.start), one }));
        })
        .sort((a, b) => (isComing(a) !== isComing(b) ? (isComing(a) ? 1 : -1) : isComing(a) ? a.at - b.at : b.at - a.at)),
    [lines],
  );
  const shown = rows.filter(({ at, one }) => at <= to && (at >= from || ("finished_at" in one && one.started_at && !one.finished_at)));
  const changes = new Map(lines.flatMap((line) => line.changes.map((change) => [`${line.timezone}: ${change.said}`, { ...change, zone: line.timezone }] as const)));
  return (
    <>
      {[...changes].map(([said, change]) => (
        <p key={said} class="line" role="note">
          <Instant at={change.at} own={change.zone} date="always" />: {change.said}, in {change.zone}
        </p>
      ))}
      <Table
        label="Planned versus fired"
        columns={columns}
        rows={shown}
        id={({ schedule, at, one }) => `${schedule} ${at} ${"scope" in one ? one.scope : ""}`}
        to={({ schedule, at }) => explained(schedule, at)}
        empty={<Empty title="No plan time lies in this range." />}
      />
    </>
  );
}
