// The words of the field for what a task, a schedule, an agent can be; each has a tone and a glyph, never colour alone.

export type Tone = "good" | "bad" | "warn" | "busy" | "idle" | "quiet";
export interface Look {
  tone: Tone;
  glyph: "dot" | "ring" | "half" | "cross" | "triangle" | "dash" | "square" | "pause" | "play" | "clock";
  word: string;
}

export const TASK_STATES: Record<string, Look> = {
  blocked: { tone: "idle", glyph: "pause", word: "blocked" },
  pending: { tone: "idle", glyph: "ring", word: "pending" },
  assigned: { tone: "busy", glyph: "clock", word: "assigned" },
  running: { tone: "busy", glyph: "play", word: "running" },
  succeeded: { tone: "good", glyph: "dot", word: "succeeded" },
  failed: { tone: "bad", glyph: "cross", word: "failed" },
  timed_out: { tone: "bad", glyph: "triangle", word: "timed out" },
  cancelled: { tone: "quiet", glyph: "dash", word: "cancelled" },
  skipped: { tone: "quiet", glyph: "dash", word: "skipped" },
  lost: { tone: "bad", glyph: "square", word: "lost" },
};

const OTHERS: Record<string, Look> = {
  paused: { tone: "warn", glyph: "pause", word: "paused" },
  // schedules
  enabled: { tone: "good", glyph: "dot", word: "enabled" },
  disabled: { tone: "quiet", glyph: "pause", word: "disabled" },
  ended: { tone: "quiet", glyph: "dash", word: "ended" },
  problem: { tone: "bad", glyph: "cross", word: "problem" },
  missed: { tone: "bad", glyph: "square", word: "missed" },
  // agents and servers
  active: { tone: "good", glyph: "dot", word: "active" },
  online: { tone: "good", glyph: "dot", word: "online" },
  draining: { tone: "warn", glyph: "half", word: "draining" },
  drained: { tone: "quiet", glyph: "half", word: "drained" },
  lost: { tone: "bad", glyph: "square", word: "lost" },
  disconnected: { tone: "warn", glyph: "square", word: "disconnected" },
  resumed: { tone: "quiet", glyph: "play", word: "resumed" },
  silent: { tone: "bad", glyph: "square", word: "silent" },
  dead: { tone: "bad", glyph: "cross", word: "dead" },
  gone: { tone: "quiet", glyph: "dash", word: "gone" },
  stopped: { tone: "quiet", glyph: "dash", word: "stopped" },
  // replicas of daemons
  up: { tone: "good", glyph: "dot", word: "up" },
  starting: { tone: "busy", glyph: "clock", word: "starting" },
  restarting: { tone: "busy", glyph: "clock", word: "restarting" },
  waiting: { tone: "idle", glyph: "ring", word: "waiting" },
  stopping: { tone: "quiet", glyph: "pause", word: "stopping" },
  outdated: { tone: "warn", glyph: "half", word: "outdated" },
  flapping: { tone: "bad", glyph: "triangle", word: "flapping" },
  // health and alerts
  healthy: { tone: "good", glyph: "dot", word: "healthy" },
  degraded: { tone: "warn", glyph: "triangle", word: "degraded" },
  unhealthy: { tone: "bad", glyph: "cross", word: "unhealthy" },
  firing: { tone: "bad", glyph: "triangle", word: "firing" },
  resolved: { tone: "good", glyph: "dot", word: "resolved" },
  muted: { tone: "quiet", glyph: "dash", word: "muted" },
  // batches
  open: { tone: "busy", glyph: "ring", word: "open" },
  closed: { tone: "busy", glyph: "half", word: "closed" },
};

export function lookOf(state: string): Look {
  return TASK_STATES[state] ?? OTHERS[state] ?? { tone: "idle", glyph: "ring", word: state.replaceAll("_", " ") };
}

/** Ended, and not well. */
export const FAILURES = ["failed", "timed_out", "lost"];
export const LIVE = ["blocked", "pending", "assigned", "running"];
export const isEnded = (state: string): boolean => !LIVE.includes(state);
