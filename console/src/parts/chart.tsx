// Series over time, drawn as SVG: colours come from the style sheet, so a change of theme draws nothing again. The same as
// a table is one switch away.

import { useState } from "preact/hooks";
import { call } from "../core/api";
import { axis, roundAbove } from "../core/axis";
import { now, second } from "../core/clock";
import { zone } from "../core/prefs";
import { useQuery } from "../core/query";
import { query } from "../core/router";
import type { Series } from "../core/schema";
import type { Tone } from "../core/states";
import { count, offsetAt, shown, wall, zoneFor } from "../core/time";
import { Switch } from "./controls";

export interface Line {
  name: string;
  tone: Tone;
  values: (number | null)[];
  /** On the axis at the right, in other units. */
  right?: boolean;
  fill?: boolean;
  dash?: boolean;
}

interface ChartProps {
  title: string;
  /** Seconds since 1970. */
  at: number[];
  lines: Line[];
  format?: (value: number) => string;
  formatRight?: (value: number) => string;
  asTable?: boolean;
}

const WIDE = 1000; // units of the drawing, which stretches
const HIGH = 100;
const ROOM = 480; // px that a plot may have little of: how close the labels of its times stand
const DAY = 86_400_000;
const plain = (value: number): string => (Number.isInteger(value) ? count(value) : value.toFixed(value < 10 ? 1 : 0));

export function Chart({ title, at, lines, format = plain, formatRight = plain, asTable = false }: ChartProps) {
  const [place, setPlace] = useState<number | null>(null);
  const inZone = zoneFor(zone.value);
  const told = (line: Line, where: number): string => {
    const value = line.values[where];
    return value === null || value === undefined ? "–" : (line.right ? formatRight : format)(value);
  };
  if (asTable) return <AsTable title={title} at={at} lines={lines} told={told} inZone={inZone} />;
  const last = at.length - 1;
  const beside = last ? 0 : 30; // a single point stands in the middle of its minute
  const [from, to] = [(at[0] ?? 0) - beside, (at[last] ?? 1) + beside];
  const x = (seconds: number) => ((seconds - from) / (to - from || 1)) * WIDE;
  const [left, right] = [false, true].map((is) => roundAbove(lines.flatMap((line) => (Boolean(line.right) === is ? line.values : [])))) as [number, number];
  const lastOf = (line: Line) => Math.max(0, line.values.findLastIndex((value) => value !== null));
  const hover = (event: PointerEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    setPlace(last < 0 ? null : Math.round(Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * last));
  };
  return (
    <figure class="chart" aria-label={title}>
      <figcaption>
        <strong>{title}</strong>
        <span class="chart-legend figure">
          {lines.map((line) => (
            <span key={line.name} class={line.dash ? "key dashed" : "key"}>
              <i class={`tone-${line.tone}`} />
              {line.name} <b>{last < 0 ? "–" : told(line, place ?? lastOf(line))}</b>
            </span>
          ))}
          <span class="quiet">{place === null || last < 0 ? "latest" : shown((at[place] ?? 0) * 1e3, inZone, now())}</span>
        </span>
      </figcaption>
      <div class="chart-box" aria-hidden="true">
        <Scale most={left} format={format} />
        <svg class="chart-plot" viewBox={`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" onPointerMove={hover} onPointerLeave={() => setPlace(null)}>
          <path class="grid" d={`M0 1H${WIDE}M0 ${HIGH / 2}H${WIDE}M0 ${HIGH}H${WIDE}`} />
          {lines.map((line) => {
            const most = line.right ? right : left;
            const drawn = path(line.values, (index) => x(at[index] ?? from), (value) => HIGH - (value / most) * HIGH);
            return (
              <g key={line.name} class={`tone-${line.tone}`}>
                {line.fill && <path class="area" d={below(drawn)} />}
                <path class={line.dash ? "line dashed" : "line"} d={drawn} />
                <path class="points" d={points(drawn)} />
              </g>
            );
          })}
          {place !== null && <path class="cursor" d={`M${x(at[place] ?? from)} 0V${HIGH}`} />}
        </svg>
        {lines.some((line) => line.right) && <Scale most={right} format={formatRight} />}
        <div class="chart-times">
          {axis(from * 1e3, to * 1e3, ROOM, (when) => offsetAt(when, inZone)).map(({ at: when, step }) => {
            const { date, time } = wall(when, inZone);
            return (
              <span key={when} style={{ left: `${x(when / 1e3) / 10}%` }}>
                {step >= DAY || time.startsWith("00:00") ? date.slice(5) : time.slice(0, 5)}
              </span>
            );
          })}
        </div>
      </div>
    </figure>
  );
}

function Scale({ most, format }: { most: number; format: (value: number) => string }) {
  return (
    <div class="chart-scale">
      {[most, most / 2, 0].map((value) => (
        <span key={value}>{format(value)}</span>
      ))}
    </div>
  );
}

/** Lines through the points, broken where there is none. */
function path(values: readonly (number | null)[], x: (place: number) => number, y: (value: number) => number): string {
  let isOpen = false;
  return values
    .map((value, place) => {
      if (value === null) return (isOpen = false), "";
      const step = `${isOpen ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
      isOpen = true;
      return step;
    })
    .join("");
}

/** Those with none beside them: lines of no length, which their round ends make dots. */
export const points = (drawn: string): string => drawn.split("M").map((part) => (part && !part.includes("L") ? `M${part}h0` : "")).join("");

/** The area between each of those lines and the ground. */
function below(drawn: string): string {
  return drawn.replace(/[^M]+/g, (part) => {
    const all = part.split("L");
    const [first, end] = [all[0], all.at(-1)].map((point) => point?.split(" ")[0]);
    return `${part}L${end} ${HIGH}L${first} ${HIGH}Z`;
  });
}

function AsTable({ title, at, lines, told, inZone }: { title: string; at: number[]; lines: Line[]; told: (line: Line, place: number) => string; inZone: string }) {
  const places = at.map((_, place) => place).reverse();
  return (
    <div class="chart">
      <h3>{title}</h3>
      <div class="chart-table" tabIndex={0} role="region" aria-label={`${title}, as a table`}>
        <table>
          <thead>
            <tr>
              <th scope="col">From</th>
              {lines.map((line) => (
                <th key={line.name} scope="col" class="right">
                  {line.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {places.map((place) => (
              <tr key={place}>
                <td class="instant">{shown((at[place] ?? 0) * 1e3, inZone, now())}</td>
                {lines.map((line) => (
                  <td key={line.name} class="right">
                    {told(line, place)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

// ── figures ───────────────────────────────────────────────────────────────────────────────────────────

const RANGES: Record<string, [seconds: number, step: string, word: string]> = {
  "1h": [3600, "1m", "1 h"],
  "6h": [21600, "5m", "6 h"],
  "24h": [86400, "5m", "24 h"],
  "7d": [604800, "1h", "7 d"],
  "30d": [2592000, "1h", "30 d"],
};

/** Those whose time is over: what is counted of the last so far would look like a fall. */
export const whole = ({ points, step, end }: Series): Series["points"] => points.filter((point) => Date.parse(point.at) + step * 1000 <= Date.parse(end));

/** The figures of a job, or of all, over a range that is in the address; and the switches for it. */
export function useFigures(job?: string) {
  const given = query.value.get("range") ?? "";
  const range = given in RANGES ? given : "1h";
  const [length, step] = RANGES[range]!;
  const from = () => new Date(Math.floor((second.peek() / 1000 - length) / 60) * 60_000).toISOString();
  const found = useQuery(`${job} ${range}`, (signal) => call("GET /figures", { job, from: from(), step }, undefined, { signal }), { every: range === "1h" ? 10 : 60, keep: true });
  const switches = (
    <>
      <Switch label="Charts over the last" name="range" of={Object.entries(RANGES).map(([name, [, , word]]) => [name, word])} />
      <Switch label="Charts shown" name="as" of={[["picture", "as pictures"], ["table", "as tables"]]} />
    </>
  );
  return { found, switches, asTable: query.value.get("as") === "table" };
}
