// Instants in words. Every one shows its offset; the switch in the header says in whose zone.

import type { Zone } from "./prefs";

export const LOCAL = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

/** The zone in which an instant is shown; `own` is that of its schedule, if it has one. */
export function zoneFor(chosen: Zone, own?: string | null): string {
  return chosen === "utc" ? "UTC" : chosen === "schedule" && own ? own : LOCAL;
}

const formats = new Map<string, Intl.DateTimeFormat>();

function format(zone: string): Intl.DateTimeFormat {
  let found = formats.get(zone);
  if (!found) {
    const how = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" } as const;
    found = new Intl.DateTimeFormat("en-GB", { ...how, timeZone: zone, hourCycle: "h23", timeZoneName: "longOffset" });
    formats.set(zone, found);
  }
  return found;
}

export interface Wall {
  date: string; // 2026-11-17
  time: string; // 09:00:00
  offset: string; // +01:00
}

/** What clocks on the wall of a zone show at an instant. */
export function wall(at: number, zone: string): Wall {
  const parts: Record<string, string> = {};
  for (const { type, value } of format(zone).formatToParts(at)) parts[type] = value;
  const offset = zone === "UTC" ? "Z" : (parts.timeZoneName ?? "").replace("GMT", "") || "+00:00";
  return { date: `${parts.year}-${parts.month}-${parts.day}`, time: `${parts.hour}:${parts.minute}:${parts.second}`, offset };
}

/** Milliseconds by which the clocks of a zone are ahead of UTC at an instant. */
export function offsetAt(at: number, zone: string): number {
  const { date, time } = wall(at, zone);
  return Date.parse(`${date}T${time}Z`) - Math.floor(at / 1000) * 1000;
}

/** With its date unless that is today's: "09:00:00 +01:00", "2026-11-16 09:00:00 +01:00". */
export function shown(at: number, zone: string, now: number, how: { ms?: boolean; date?: "auto" | "always" } = {}): string {
  const { date, time, offset } = wall(at, zone);
  const ms = how.ms ? `.${String(Math.floor(at) % 1000).padStart(3, "0")}` : "";
  const day = how.date !== "always" && date === wall(now, zone).date ? "" : `${date} `;
  return `${day}${time}${ms} ${offset}`;
}

/** "in 4 min", "12 s ago"; with up to so many units. */
export function relative(at: number, now: number, most = 1): string {
  const away = at - now;
  const words = span(Math.abs(away) / 1000, most);
  return Math.abs(away) < 500 ? "now" : away > 0 ? `in ${words}` : `${words} ago`;
}

const UNITS: [number, string][] = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** Seconds in words, with up to so many units: 3725 → "1 h 2 min". Below a second: "0.8 s", "12 ms", "0.31 ms". */
export function span(seconds: number, most = 2): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1) return milliseconds(seconds * 1000);
  if (seconds < 10) return `${(Math.floor(seconds * 10) / 10).toFixed(1).replace(/\.0$/, "")} s`;
  const words: string[] = [];
  let rest = Math.round(seconds);
  for (const [size, unit] of UNITS) {
    if (rest >= size || (words.length && rest)) {
      const count = Math.floor(rest / size);
      if (count) words.push(`${count} ${unit}`);
      else if (words.length) break;
      rest -= count * size;
    }
    if (words.length === most) break;
  }
  return words.join(" ");
}

export function milliseconds(ms: number): string {
  if (ms >= 1000) return span(ms / 1000);
  if (ms === 0) return "0 ms";
  return ms >= 100 ? `${Math.round(ms)} ms` : ms >= 10 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(2)} ms`;
}

/** A count with separators: 12,345. */
export const count = (value: number): string => value.toLocaleString("en-GB");

/** 0.9987 → "99.87 %", 0.75 → "75 %": digits are for what is nearly all. Never rounds up to 100 what is not. */
export function percent(share: number, digits = share < 0.99 ? 0 : 2): string {
  const scaled = Math.floor(share * 100 * 10 ** digits) / 10 ** digits;
  return `${scaled.toFixed(share === 1 ? 0 : digits)} %`;
}

export function bytes(size: number): string {
  return size < 1000 ? `${size} B` : size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}
