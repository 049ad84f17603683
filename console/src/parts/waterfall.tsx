// The life of a task as a waterfall, and how long the same job took before.

import { second } from "../core/clock";
import { steps } from "../core/phases";
import { link } from "../core/router";
import type { TaskDetail, TaskSummary } from "../core/schema";
import { isEnded, lookOf } from "../core/states";
import { milliseconds, span } from "../core/time";
import { Instant, NONE } from "./show";

export function Waterfall({ of: task, own }: { of: TaskDetail; own: string | null }) {
  const all = steps(task.phases, isEnded(task.state) ? null : second.value);
  return (
    <table class={`waterfall came-${lookOf(task.state).tone}`}>
      <thead class="hidden">
        <tr>
          <th scope="col">Step</th>
          <th scope="col">At</th>
          <th scope="col">Since the step before</th>
          <th scope="col">Length, by its logarithm</th>
        </tr>
      </thead>
      <tbody>
        {all.map((step) => (
          <tr key={step.name} class={`phase ${step.name}`}>
            <th scope="row">{step.name}</th>
            <td>{step.name === "now" ? NONE : <Instant at={step.at} own={own} ms />}</td>
            <td class="right">
              {step.after !== null && <span class="number">+{span(step.after)}</span>}
              {step.name === "fired" && step.late !== null && <span class="narrow number">{milliseconds(Math.max(0, step.late * 1000))} late</span>}
            </td>
            <td class="track">
              <span class="phase-bar" style={{ left: `${step.from * 100}%`, width: `${(step.to - step.from) * 100}%` }} />
              {step.name === "fired" && step.late !== null && (
                <span class={step.late >= 1 ? "callout bad" : "callout"} style={step.to > 0.5 ? { right: `calc(${(1 - step.from) * 100}% + 6px)` } : { left: `calc(${step.to * 100}% + 6px)` }}>
                  {milliseconds(Math.max(0, step.late * 1000))} late
                </span>
              )}
              {step.name === "armed" && step.late !== null && step.late < 0 && (
                <span class="callout" style={step.to > 0.5 ? { right: `calc(${(1 - step.from) * 100}% + 6px)` } : { left: `calc(${step.to * 100}% + 6px)` }}>
                  {span(-step.late)} ahead
                </span>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The last runs as bars, the oldest first; each is a link. */
export function Runs({ of: runs, current }: { of: readonly TaskSummary[]; current: number }) {
  const took = (run: TaskSummary) => (run.started_at ? (run.finished_at ? Date.parse(run.finished_at) : second.value) - Date.parse(run.started_at) : 0);
  const longest = Math.max(1, ...runs.map(took));
  return (
    <ol class="runs">
      {[...runs].reverse().map((run) => {
        const look = lookOf(run.state);
        const words = `Task ${run.id}: ${look.word}${run.started_at ? `, ${span(Math.max(0, took(run)) / 1000)}` : ""}`;
        return (
          <li key={run.id} class={`tone-${look.tone}`}>
            <a href={link`tasks/${run.id}`} aria-label={words} title={words} aria-current={run.id === current ? "true" : undefined}>
              <span class={look.tone === "bad" ? "bar bad" : "bar"} style={{ height: `${Math.max(6, (100 * took(run)) / longest)}%` }} />
            </a>
          </li>
        );
      })}
    </ol>
  );
}
