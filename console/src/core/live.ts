// What changes, as it changes: one stream per tab, with the topics of what is on screen.
//
// Closed while the tab is hidden; opened with a resync when it is shown. A browser allows six connections to one origin,
// so the fourth tab and those beyond open none: the tab that holds the first of three places passes events on to them.

import { useEffect, useRef } from "preact/hooks";
import { call, session, urlOf } from "./api";
import { takePlace } from "./places";
import type { Place } from "./places";
import { signal } from "./signals";

export type Topic = "stats" | "tasks" | "schedules" | "agents" | "servers" | "alerts";
/** An event of a topic with its data; "resync": something may have been missed, load what is shown again. */
export type Heard = (event: { topic: Topic; data: unknown } | { topic: "resync"; data: null }) => void;

export type Liveness = { state: "off" | "catching up" | "live" } | { state: "lost"; since: number; why: string };
export const liveness = signal<Liveness>({ state: "off" });

const TOPICS: Topic[] = ["stats", "tasks", "schedules", "agents", "servers", "alerts"];
const PLACES = 3; // tabs with a stream of their own
const SHORTEST = 500; // ms before the first attempt to connect again; doubles up to
const LONGEST = 15_000;
const ASK_EVERY = 4_000; // ms after which a tab without a stream says again what it wants to hear
const FORGET_AFTER = 10_000;
const TOGETHER = 120; // ms in which the frame and its page say what they want, before a stream is opened

const listeners = new Set<{ topics: readonly Topic[]; hear: Heard }>();
const asked = new Map<string, { topics: Topic[]; at: number }>(); // of tabs without a stream
const tab = Math.random().toString(36).slice(2);

let source: EventSource | null = null;
let place: Place | null = null;
let isFollowing = false;
let opened = ""; // topics of the stream that is open
let failures = 0;
let timer = 0;
let lastAsk = 0;
let lastHeard = 0; // of the tab that passes events on

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("mainspring.events");

function wanted(): Topic[] {
  const own = [...listeners].flatMap(({ topics }) => topics);
  const fresh = performance.now() - FORGET_AFTER;
  const others = place?.number === 1 ? [...asked.values()].filter(({ at }) => at > fresh).flatMap(({ topics }) => topics) : [];
  return TOPICS.filter((topic) => own.includes(topic) || others.includes(topic));
}

function tell(event: Parameters<Heard>[0]): void {
  for (const { topics, hear } of [...listeners]) if (event.topic === "resync" || topics.includes(event.topic)) hear(event);
}

function lose(why = "The server does not answer"): void {
  if (liveness.value.state !== "lost") liveness.value = { state: "lost", since: Date.now(), why };
}

/** Bring the stream in line with what is on screen; called again whenever that changes. */
function settle(): void {
  clearTimeout(timer);
  const topics = document.hidden || !session.value ? [] : wanted();
  if (!topics.length) {
    close();
    if (document.hidden || !session.value) release();
    liveness.value = { state: "off" };
    return;
  }
  if (!place && !isFollowing) return void join();
  if (isFollowing) return ask();
  if (source && opened === topics.join()) return;
  open(topics);
}

function later(ms: number): void {
  clearTimeout(timer);
  timer = window.setTimeout(settle, ms);
}

function open(topics: Topic[]): void {
  close();
  opened = topics.join();
  if (liveness.value.state !== "lost") liveness.value = { state: "catching up" };
  const stream = new EventSource(urlOf("GET /events", { topics: opened }));
  source = stream;
  const hear = (topic: Topic | "resync", data: unknown) => {
    const event = { topic, data } as Parameters<Heard>[0];
    tell(event);
    if (place?.number === 1 && asked.size) channel?.postMessage({ event });
  };
  stream.addEventListener("ready", () => {
    failures = 0;
    liveness.value = { state: "live" };
    hear("resync", null);
  });
  stream.addEventListener("resync", () => {
    if (liveness.value.state === "lost") liveness.value = { state: "live" };
    hear("resync", null);
  });
  stream.addEventListener("away", (event) => {
    lose((JSON.parse((event as MessageEvent<string>).data) as { message: string }).message);
    if (place?.number === 1 && asked.size) channel?.postMessage({ away: (liveness.value as { why: string }).why });
  });
  for (const topic of topics) stream.addEventListener(topic, (event) => hear(topic, JSON.parse((event as MessageEvent<string>).data)));
  stream.addEventListener("bye", () => again(0));
  stream.onerror = () => again((failures += 1));
}

/** Connect again, later the more often it has failed; a server that stops lets another one answer. */
function again(failed: number): void {
  close();
  lose();
  if (failed === 2) void call("GET /session").catch(() => {}); // a session that has ended is not waited for
  later(Math.min(LONGEST, SHORTEST * 2 ** Math.min(failed, 6)) * (0.5 + Math.random()));
}

function close(): void {
  source?.close();
  source = null;
  opened = "";
}

// ── tabs beyond the third ─────────────────────────────────────────────────────────────────────────────

async function join(): Promise<void> {
  const found = channel ? await takePlace("events", PLACES) : { number: 0, release: () => {} }; // 0: a stream of its own
  if (found && place) return found.release(); // asked twice
  place = found;
  isFollowing = !found;
  settle();
}

function release(): void {
  place?.release();
  place = null;
  isFollowing = false;
  lastAsk = 0;
}

/** Say what we want to hear; if no tab passes events on, look for a place again. */
function ask(): void {
  const at = performance.now();
  if (lastHeard && at - lastHeard > 2 * ASK_EVERY) lose();
  else if (liveness.value.state === "off") liveness.value = { state: "catching up" };
  if (at - lastAsk >= ASK_EVERY || opened !== wanted().join()) {
    opened = wanted().join();
    lastAsk = at;
    channel?.postMessage({ ask: wanted(), tab });
  }
  timer = window.setTimeout(() => void join(), ASK_EVERY); // it hears on until it has a place
}

if (channel)
  channel.onmessage = ({ data }: MessageEvent<{ ask?: Topic[]; tab?: string; event?: Parameters<Heard>[0]; live?: boolean; away?: string }>) => {
    if (data.ask && data.tab && place?.number === 1) {
      const isNew = !asked.has(data.tab);
      asked.set(data.tab, { topics: data.ask, at: performance.now() });
      settle();
      if (isNew && liveness.value.state === "live") channel.postMessage({ event: { topic: "resync", data: null } });
      else if (liveness.value.state === "live") channel.postMessage({ live: true });
    } else if (isFollowing && data.away) lose(data.away);
    else if (isFollowing && (data.event || data.live)) {
      lastHeard = performance.now();
      const missed = liveness.value.state !== "live"; // such as while it was hidden
      liveness.value = { state: "live" };
      if (missed) tell({ topic: "resync", data: null });
      if (data.event) tell(data.event);
    }
  };

export function startLive(): void {
  document.addEventListener("visibilitychange", settle);
  addEventListener("pagehide", () => {
    close();
    release();
  });
  addEventListener("online", () => later(0));
}

/** Hear of these topics while a component is on screen. */
export function useLive(topics: readonly Topic[], hear: Heard): void {
  const latest = useRef(hear);
  latest.current = hear;
  const key = topics.join();
  useEffect(() => {
    if (!key) return undefined;
    const listener = { topics: key.split(",") as Topic[], hear: (event: Parameters<Heard>[0]) => latest.current(event) };
    listeners.add(listener);
    later(source ? 0 : TOGETHER);
    return () => {
      listeners.delete(listener);
      later(50); // the next page may want the same
    };
  }, [key]);
}
