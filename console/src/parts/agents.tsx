// What the pages of the fleet share: drain and undrain, amounts as bars, a dial on a canvas, skew in words.

import { useLayoutEffect, useRef } from "preact/hooks";
import { act } from "../core/actions";
import { call } from "../core/api";
import type { AgentView } from "../core/schema";
import { milliseconds } from "../core/time";
import { drawFleet } from "../pictures/dial";
import type { SceneCanvas } from "../pictures/dial";
import type { Watched } from "../pictures/dial_scene";
import { Action } from "./controls";

/** Draws every [data-dial] of a box, until the component goes. */
export function Dials({ read }: { read: (name: string) => Watched | undefined }) {
  const canvas = useRef<SceneCanvas>(null);
  const latest = useRef(read);
  latest.current = read;
  const drawing = useRef<ReturnType<typeof drawFleet> | null>(null);
  useLayoutEffect(() => {
    const box = canvas.current?.parentElement;
    if (canvas.current && box) drawing.current = drawFleet(canvas.current, box, (name) => latest.current(name));
    return () => drawing.current?.stop();
  }, []);
  useLayoutEffect(() => drawing.current?.measure()); // after each change of the boxes
  return <canvas class="dials figure" aria-hidden="true" ref={canvas} />;
}

export const hasLease = (agent: AgentView): boolean => agent.status === "active" || agent.status === "draining";

export function Drain({ agent, then, kind = "plain" }: { agent: AgentView; then: () => void; kind?: "plain" | "link" }) {
  const { name } = agent;
  const isDraining = agent.draining_since !== null;
  const undo = (path: "POST /agents/{name}/drain" | "POST /agents/{name}/undrain") => async () => {
    await call(path, { name });
    then();
  };
  const run = () =>
    isDraining
      ? act("POST /agents/{name}/undrain", {
          params: { name },
          said: ({ changed }) => (changed ? `${name} is given tasks again.` : `${name} was given tasks already.`),
          undo: undo("POST /agents/{name}/drain"),
          then,
        })
      : act("POST /agents/{name}/drain", {
          params: { name },
          said: ({ changed }) => (changed ? `${name} drains: it is given no new tasks, and what it runs goes on.` : `${name} drains already.`),
          undo: undo("POST /agents/{name}/undrain"),
          then,
        });
  return (
    <Action kind={kind} needs="operator" label={`${isDraining ? "Undrain" : "Drain"} ${name}`} run={run}>
      {isDraining ? "Undrain" : "Drain"}
    </Action>
  );
}

/** What it offers, and how much of that is in use. */
export function Amounts({ agent }: { agent: AgentView }) {
  const offers = Object.entries(agent.offers);
  if (!offers.length) return null;
  return (
    <ul class="amounts" aria-label="Amounts in use">
      {offers.map(([name, offered]) => {
        const used = agent.used[name] ?? 0;
        return (
          <li key={name}>
            <span>{name}</span>
            <Bar share={offered ? used / offered : 0} />
            <span class="number">
              {used} / {offered}
            </span>
          </li>
        );
      })}
    </ul>
  );
}

export function Bar({ share, tone = "busy" }: { share: number; tone?: string }) {
  return (
    <span class="bar" aria-hidden="true">
      <span class={`tone-${tone}`} style={{ width: `${100 * Math.max(0, Math.min(1, share))}%` }} />
    </span>
  );
}

/** "+0.4 ms": seconds by which its clock is ahead. */
export function Skew({ seconds }: { seconds: number | null }) {
  if (seconds === null) return <span class="none">–</span>;
  const off = Math.abs(seconds);
  return (
    <span class={off >= 0.1 ? "number late" : "number"} title={off >= 0.1 ? "Its clock is wrong: tasks fire by the database's, but its log times are off." : undefined}>
      {off < 0.000005 ? "±" : seconds > 0 ? "+" : "−"}
      {milliseconds(off * 1000)}
    </span>
  );
}
