// A flow in layers, from the top: what runs after what. Shape and word say the state; a list beside it says the same.

import { useState } from "preact/hooks";
import { call } from "../core/api";
import { layout } from "../core/layers";
import type { Edge } from "../core/layers";
import { useQuery } from "../core/query";
import { link } from "../core/router";
import { lookOf } from "../core/states";
import { Glyph } from "../parts/icons";
import { Section } from "../parts/page";
import { many, State } from "../parts/show";

export interface Node {
  id: number;
  job: string | null;
  state: string;
}

const MOST = 200;
const WIDE = 168;
const HIGH = 44;
const GAP = 16;
const FALL = 40;
const PASS = 12; // the room of a line between tasks

/** The flow around a task, or the tasks of a batch, as it goes; nothing if none of them runs after another. */
export function Flow({ of, id }: { of: "task" | "batch"; id: number }) {
  const found = useQuery(`${of} ${id}`, (signal) => call(of === "task" ? "GET /tasks/{id}/flow" : "GET /batches/{id}/flow", { id }, undefined, { signal }), { topics: ["tasks"] });
  if (!found.data?.edges.length) return null;
  return (
    <Section title="Flow">
      <FlowGraph tasks={found.data.tasks} edges={found.data.edges} isWhole={found.data.is_whole} {...(of === "task" && { own: id })} />
    </Section>
  );
}

/** `own` is the task whose page this is. */
function FlowGraph({ tasks, edges, own, isWhole = true }: { tasks: readonly Node[]; edges: readonly Edge[]; own?: number; isWhole?: boolean }) {
  const [asList, setAsList] = useState(false);
  const by = new Map(tasks.map((task) => [task.id, task]));
  const linked = new Set(edges.flatMap(({ parent, child }) => [parent, child]));
  const flowing = tasks.filter(({ id }) => linked.has(id));
  const alone = tasks.length - flowing.length; // a row of them would push the flow out of sight
  const shown = flowing.slice(0, MOST).map(({ id }) => id);
  const { layers: found, lines } = layout(shown, edges);
  const wide = (id: number) => (id < 0 ? PASS : WIDE) + GAP;
  const widths = found.map((layer) => layer.reduce((sum, id) => sum + wide(id), -GAP));
  const width = Math.max(0, ...widths);
  const height = found.length * (HIGH + FALL) - FALL;
  const places = new Map<number, { x: number; y: number }>(); // the middle of each, and its top
  found.forEach((layer, level) => {
    let x = (width - (widths[level] ?? 0)) / 2;
    for (const id of layer) {
      places.set(id, { x: x + (wide(id) - GAP) / 2, y: level * (HIGH + FALL) });
      x += wide(id);
    }
  });
  const after = (id: number) => edges.filter(({ child }) => child === id).map(({ parent }) => parent);
  return (
    <figure class="flow">
      {asList ? (
        <ol class="flow-list">
          {found.flat().filter((id) => id > 0).map((id) => (
            <li key={id}>
              <a href={link`tasks/${id}`}>
                {id} {by.get(id)?.job}
              </a>{" "}
              <State of={by.get(id)?.state ?? "unknown"} />
              {after(id).length > 0 && <span class="quiet"> after {after(id).join(", ")}</span>}
            </li>
          ))}
        </ol>
      ) : (
        <div class="flow-box" tabIndex={0} role="group" aria-label="The flow in layers">
          <svg viewBox={`-2 -2 ${width + 4} ${height + 4}`} width={width + 4} height={height + 4}>
            {lines.map((line) => (
              <path key={line.join()} class="flow-edge" d={drawn(line.map((id) => ({ ...(places.get(id) ?? { x: 0, y: 0 }), passes: id < 0 })))} />
            ))}
            {shown.map((id) => {
              const { x: middle, y } = places.get(id) ?? { x: 0, y: 0 };
              const x = middle - WIDE / 2;
              const { job, state } = by.get(id) ?? { job: null, state: "unknown" };
              const look = lookOf(state);
              return (
                <a key={id} href={link`tasks/${id}`} class={`flow-node tone-${look.tone}${id === own ? " own" : ""}`} data-task={id} aria-current={id === own ? "true" : undefined}>
                  <rect x={x} y={y} width={WIDE} height={HIGH} rx="6" />
                  <text class="flow-job" x={x + 10} y={y + 18}>
                    {cut(job ?? "unknown")}
                  </text>
                  <svg x={x + 10} y={y + 24} width="12" height="12">
                    <Glyph name={look.glyph} />
                  </svg>
                  <text x={x + 27} y={y + 34}>
                    {id} · {look.word}
                  </text>
                </a>
              );
            })}
          </svg>
        </div>
      )}
      <figcaption class="table-note">
        <span>
          {many(shown.length, "task")} in {many(found.length, "layer")}
          {alone > 0 && `; ${many(alone, "other depends", "others depend")} on none`}
          {!isWhole && "; there are more"}
        </span>
        <button type="button" class="link" onClick={() => setAsList(!asList)}>
          {asList ? "As a picture" : "As a list"}
        </button>
      </figcaption>
    </figure>
  );
}

/** From below the first, through the gaps, to above the last. */
function drawn(points: readonly { x: number; y: number; passes: boolean }[]): string {
  return points
    .map(({ x, y, passes }, place) => {
      const before = points[place - 1];
      if (!before) return `M${x} ${y + HIGH}`;
      const top = before.y + HIGH;
      return `C${before.x} ${top + FALL / 2} ${x} ${y - FALL / 2} ${x} ${y}${passes ? `V${y + HIGH}` : ""}`;
    })
    .join("");
}

const cut = (text: string): string => (text.length > 20 ? `${text.slice(0, 19)}…` : text);
