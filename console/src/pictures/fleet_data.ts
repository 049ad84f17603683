// What the dials are drawn from: one request a second at most, however many agents and dots there are.
//
// Mostly what the agents are armed with; now and then, or when the stream says so, the agents themselves. Starts come with
// the stream, as they were recorded.

import { useEffect, useRef, useState } from "preact/hooks";
import { asRefusal, call } from "../core/api";
import type { Refusal } from "../core/api";
import { correct, now } from "../core/clock";
import { useLive } from "../core/live";
import type { AgentView, TaskSummary } from "../core/schema";
import { WINDOW } from "./dial_scene";
import type { Armed, Watched } from "./dial_scene";

const GAP = 1000; // ms from an answer to the next request
const AGENTS_EVERY = 5000; // ms
const MOST_FIRED = 60; // starts of one agent that are kept

export interface Fleet {
  /** Null before they are known. */
  agents: AgentView[] | null;
  refusal: Refusal | null;
  /** What they are armed with is known. */
  isArmed: boolean;
  watched: (name: string) => Watched | undefined;
  /** Ask for the agents next. */
  refresh: () => void;
}

interface Held {
  views: Map<string, AgentView>;
  coming: Map<string, AgentView>;
  cursor: string | null;
  armed: Map<string, { running: number; armed: number; tasks: Armed[] }>;
  asOf: number;
  fired: Map<string, { id: number; at: number }[]>;
  agentsAt: number;
}

/** Of the sessions of one name the last; its slots are those of all that are connected. */
function together(known: Map<string, AgentView>, found: AgentView[]): void {
  for (const one of found) {
    const old = known.get(one.name);
    const both = old && [old, one].every(({ status }) => status === "active" || status === "draining");
    known.set(one.name, both ? { ...one, slots: old.slots + one.slots, holds: old.holds + one.holds, running: old.running + one.running } : one);
  }
}

async function readAgents(held: Held, name: string | null): Promise<void> {
  if (name !== null) together(held.coming, (await call("GET /agents/{name}", { name })).items);
  else {
    const part = await call("GET /agents", { limit: 500, cursor: held.cursor });
    together(held.coming, part.items);
    held.cursor = part.next ?? null;
    if (held.cursor) return;
  }
  held.views = held.coming;
  held.coming = new Map();
  held.agentsAt = performance.now();
}

async function readArmed(held: Held, each: number, name: string | null): Promise<void> {
  const asked = Date.now();
  if (name !== null) {
    const found = (await call("GET /agents/{name}/armed", { name })).items;
    const tasks = found.filter(({ state }) => state === "assigned").map(({ id, job, run_at }) => ({ id, job, at: Date.parse(run_at) }));
    held.armed = new Map([[name, { running: found.length - tasks.length, armed: tasks.length, tasks }]]);
    held.asOf = now();
    return;
  }
  const answer = await call("GET /armed", { each });
  correct(answer.counted_at, asked, Date.now());
  held.armed = new Map(
    answer.agents.map(({ name, running, armed, tasks }) => [name, { running, armed, tasks: tasks.map(({ id, job, run_at }) => ({ id, job, at: Date.parse(run_at) })) }]),
  );
  held.asOf = Date.parse(answer.counted_at);
}

/** All agents, or one. */
export function useFleet(each: number, name: string | null = null): Fleet {
  const [, show] = useState(0);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const held = useRef<Held>({ views: new Map(), coming: new Map(), cursor: null, armed: new Map(), asOf: 0, fired: new Map(), agentsAt: -Infinity });
  const wanted = useRef({ each, isDue: true });
  wanted.current.each = each;

  useLive(["agents", "tasks"], (event) => {
    if (event.topic !== "tasks") return void (wanted.current.isDue = true);
    const since = now() - WINDOW * 1000;
    for (const { id, agent, started_at } of (event.data as { changed: TaskSummary[] }).changed) {
      if (!agent || !started_at || (name !== null && agent !== name)) continue;
      const known = (held.current.fired.get(agent) ?? []).filter((one) => one.at > since && one.id !== id);
      held.current.fired.set(agent, [...known.slice(-MOST_FIRED), { id, at: Date.parse(started_at) }]);
    }
  });

  useEffect(() => {
    let timer = 0;
    let steps = 0;
    let isGone = false;
    const step = async () => {
      const state = held.current;
      if (!document.hidden) {
        try {
          if (wanted.current.isDue || state.cursor || performance.now() - state.agentsAt > AGENTS_EVERY) {
            wanted.current.isDue = false;
            await readAgents(state, name);
          } else await readArmed(state, wanted.current.each, name);
          if (isGone) return;
          setRefusal(null);
        } catch (error) {
          if (isGone) return;
          setRefusal(asRefusal(error));
        }
        show((count) => count + 1);
      }
      timer = window.setTimeout(step, (steps += 1) < 2 ? 0 : GAP); // the first dots at once
    };
    void step();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [name]);

  const state = held.current;
  return {
    agents: state.agentsAt > 0 ? [...state.views.values()] : null,
    refusal,
    isArmed: state.asOf > 0,
    refresh: () => void (wanted.current.isDue = true),
    watched: (name) => {
      const view = state.views.get(name);
      if (!view) return undefined;
      const load = state.armed.get(name) ?? { running: state.asOf ? 0 : view.running, armed: 0, tasks: [] };
      return {
        name,
        status: view.status,
        slots: view.slots,
        ...load,
        skew: view.skew,
        roundTrip: view.round_trip,
        lead: view.lead,
        leaseUntil: Date.parse(view.lease_until),
        asOf: state.asOf,
        fired: state.fired.get(name) ?? [],
      };
    },
  };
}
