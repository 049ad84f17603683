// Alerts that fire: how many, for the navigation; and which of them a mute keeps quiet.

import { like } from "./filter";
import { signal } from "./signals";
import type { AlertView, MuteView } from "./schema";

/** How many fire now; null: not known. Counted up to MOST_COUNTED. */
export const firing = signal<number | null>(null);
export const MOST_COUNTED = 100;

const among = (patterns: readonly string[], text: string): boolean => !patterns.length || patterns.some((pattern) => like(pattern, text));

/** The mute that keeps an alert quiet, the one that lasts longest. */
export function mutedBy(mutes: readonly MuteView[], alert: Pick<AlertView, "rule" | "subject">): MuteView | null {
  return mutes.filter((mute) => among(mute.rules, alert.rule) && among(mute.subjects, alert.subject)).at(-1) ?? null;
}

/** Where to look at what an alert is about: job:report → jobs/report. */
export function subjectLink(subject: string): string | null {
  const [kind = "", ...name] = subject.split(":");
  const place = { job: "jobs", schedule: "schedules", agent: "agents", daemon: "daemons", server: "cluster" }[kind];
  if (!place || !name.length) return null;
  return place === "daemons" || place === "cluster" ? place : `${place}/${encodeURIComponent(name.join(":"))}`;
}
