// The armed fleet as geometry: an agent, what it is armed with, and an instant → the marks of its dial. Pure; dial.ts draws.
//
// A dial shows the next 60 s. Twelve o'clock is now: a task moves clockwise towards it and fires there. The scale is
// logarithmic, so that the last seconds, in which agents are armed, have most of the room: 5 s take a quarter.

export const WINDOW = 60; // s
const NEAR = 5; // s, around which the scale turns from even to logarithmic
const FLASH = 0.7; // s
const OVERDUE = 1500; // ms after its instant that a task which is still armed counts as held up
const TOGETHER = 0.15; // s within which tasks are drawn side by side
export const LANES = 4;

export interface Armed {
  id: number;
  job: string;
  at: number; // ms
}

export interface Watched {
  name: string;
  status: string;
  slots: number;
  running: number;
  armed: number;
  /** s */
  skew: number | null;
  roundTrip: number | null;
  lead: number | null;
  leaseUntil: number; // ms
  /** Soonest first. */
  tasks: readonly Armed[];
  /** When the answer was made that `tasks` is from, in ms. */
  asOf: number;
  /** What was recorded as started on it in the last minute. */
  fired: readonly { id: number; at: number }[];
}

/** Counter-clockwise from twelve o'clock, as a share of the dial, at so many seconds before. */
export function turn(seconds: number): number {
  return Math.log1p(Math.min(WINDOW, Math.max(0, seconds)) / NEAR) / Math.log1p(WINDOW / NEAR);
}

/** The point of a dial of radius 1 that lies so many seconds before twelve o'clock; negative: after it. */
export function point(seconds: number): { x: number; y: number } {
  const angle = Math.sign(seconds) * turn(Math.abs(seconds)) * 2 * Math.PI;
  return { x: -Math.sin(angle), y: -Math.cos(angle) };
}

export interface Dot {
  kind: "dot";
  id: number;
  job: string;
  left: number; // s
  x: number;
  y: number;
  lane: number;
  /** Its instant is past, and it has not started. */
  isLate: boolean;
}
export interface Flash {
  kind: "flash";
  id: number;
  job: string;
  age: number; // 0 to 1
}
export interface Trace {
  kind: "trace";
  id: number;
  age: number; // 0 to 1
  x: number;
  y: number;
}
export type Mark = Dot | Flash | Trace;

export interface Dial {
  name: string;
  look: Look;
  marks: Mark[];
  /** Armed tasks beyond those that are drawn. */
  more: number;
  next: { id: number; job: string; left: number } | null;
  /** Seconds for which the first of those that are held up has waited. */
  late: number | null;
  /** Shares of the ring. */
  running: number;
  armed: number;
  slots: number;
  lead: number;
  needle: Needle | null;
  /** Seconds until its lease ends, for one that is not heard. */
  lease: number | null;
}

export type Look = "live" | "draining" | "lost";
export const lookOfAgent = (status: string): Look => (status === "active" ? "live" : status === "draining" ? "draining" : "lost");

export interface Needle {
  /** −1 to 1: behind, ahead. */
  at: number;
  /** Half of the round trip on the same scale: the clock is not known better. */
  spread: number;
  tone: "calm" | "warn" | "bad";
}

/** Skew on a scale that shows a millisecond and a second alike. */
export function deflection(seconds: number): number {
  return Math.sign(seconds) * Math.min(1, Math.log1p(Math.abs(seconds) * 1000) / Math.log1p(2000));
}

export function needle(skew: number | null, roundTrip: number | null): Needle | null {
  if (skew === null) return null;
  const off = Math.abs(skew);
  return { at: deflection(skew), spread: deflection((roundTrip ?? 0) / 2), tone: off >= 1 ? "bad" : off >= 0.1 ? "warn" : "calm" };
}

export function dial(agent: Watched, now: number): Dial {
  const look = lookOfAgent(agent.status);
  const marks: Mark[] = agent.fired
    .filter(({ at }) => at <= now && now - at < WINDOW * 1000)
    .map(({ id, at }) => ({ kind: "trace", id, age: (now - at) / (WINDOW * 1000), ...point(-(now - at) / 1000) }));
  let next: Dial["next"] = null;
  let late: number | null = null;
  let drawn = 0;
  let lane = 0;
  let before = -Infinity;
  for (const { id, job, at } of agent.tasks) {
    const left = (at - now) / 1000;
    if (left > WINDOW) continue;
    const isLate = left <= 0 && agent.asOf - at > OVERDUE;
    if (left <= 0 && !isLate) {
      drawn += 1;
      if (-left < FLASH && look !== "lost") marks.push({ kind: "flash", id, job, age: -left / FLASH });
      continue;
    }
    if (!isLate) next ??= { id, job, left };
    late ??= isLate ? -left : null;
    const shown = Math.max(0, left); // what is held up waits at twelve o'clock
    lane = shown - before < TOGETHER ? lane + 1 : 0;
    if (lane === 0) before = shown;
    if (lane >= LANES) continue;
    drawn += 1;
    marks.push({ kind: "dot", id, job, left, lane, isLate, ...point(shown) });
  }
  const slots = Math.max(1, agent.slots);
  return {
    name: agent.name,
    look,
    marks,
    more: Math.max(0, agent.armed - drawn),
    next,
    late,
    running: Math.min(1, agent.running / slots),
    armed: Math.max(0, Math.min(1 - agent.running / slots, agent.armed / slots)),
    slots: agent.slots,
    lead: agent.lead ?? 0,
    needle: look === "lost" ? null : needle(agent.skew, agent.roundTrip),
    lease: look === "lost" ? (agent.leaseUntil - now) / 1000 : null,
  };
}

export type Sort = "name" | "load" | "skew" | "next";

/** Names in the order of a sort, as of now. It is taken once and kept: nothing moves under the reader. */
export function order(agents: readonly Watched[], by: Sort, now: number): string[] {
  const value = (agent: Watched): number => {
    if (by === "load") return -agent.running / Math.max(1, agent.slots);
    if (by === "skew") return -Math.abs(agent.skew ?? 0);
    if (by === "next") return agent.tasks.find(({ at }) => at > now)?.at ?? Infinity;
    return 0;
  };
  const difference = (one: number, other: number) => (one === other ? 0 : one - other);
  return [...agents].sort((one, other) => difference(value(one), value(other)) || one.name.localeCompare(other.name, "en", { numeric: true })).map(({ name }) => name);
}
