// A strip of what came of the last plan times or runs: each a shape with a colour, skipped ones with the letter of their reason.

import { useMemo } from "preact/hooks";
import { REASONS } from "../core/reasons";
import { go, link } from "../core/router";
import type { LastRun, Strip as StripOf, StripMark } from "../core/schema";
import { lookOf } from "../core/states";
import type { Tone } from "../core/states";
import { milliseconds } from "../core/time";
import { everyZone } from "./show";

export type Came = StripMark["came"];

const CAME: Record<Came, readonly [Tone, string]> = {
  on_time: ["good", "on time"],
  late: ["warn", "late"],
  failed: ["bad", "failed"],
  skipped: ["quiet", "skipped"],
  missed: ["bad", "missed"],
  running: ["busy", "running"],
  waiting: ["idle", "waiting"],
  unknown: ["quiet", "no longer known"],
};

const STEP = 7;
const HIGH = 16;

interface Drawn {
  tone: Tone;
  shape: Came;
  letter: string;
  title: string;
  to: string | null;
}

function shape({ shape: came, letter }: Drawn, x: number) {
  if (letter)
    return (
      <>
        <rect x={x + 0.5} y="0.5" width={STEP - 1} height={HIGH - 1} rx="1" fill="none" stroke="currentColor" stroke-opacity="0.7" />
        <text x={x + STEP / 2} y="11.5">
          {letter}
        </text>
      </>
    );
  switch (came) {
    case "on_time":
      return <rect x={x + 1} y="4" width={STEP - 2} height={HIGH - 4} fill="currentColor" />;
    case "late": // taller, and torn
      return <path d={`M${x + 1} 0h${STEP - 2}v5l-${STEP - 2} 3zM${x + 1} 10l${STEP - 2}-3v${HIGH - 7}h-${STEP - 2}z`} fill="currentColor" />;
    case "failed":
      return <path d={`M${x + 1} 5l5 6m0-6l-5 6`} stroke="currentColor" stroke-width="2" />;
    case "missed":
      return <rect x={x + 1} y="1" width={STEP - 2} height={HIGH - 2} fill="none" stroke="currentColor" stroke-width="1.5" />;
    case "running":
      return <path d={`M${x + 1} 4l5 4-5 4z`} fill="currentColor" />;
    case "waiting":
      return <circle cx={x + STEP / 2} cy="8" r="2.2" fill="none" stroke="currentColor" stroke-width="1.4" />;
    default:
      return <rect x={x + 2} y="7" width={STEP - 4} height="2" fill="currentColor" />;
  }
}

function Drawing({ marks, label, most }: { marks: Drawn[]; label: string; most: number }) {
  const empty = Math.max(0, most - marks.length);
  return (
    <svg class="strip" width={most * STEP} height={HIGH} viewBox={`0 0 ${most * STEP} ${HIGH}`} role="img" aria-label={label}>
      {marks.map((mark, place) => (
        <g key={place} class={`tone-${mark.tone}`} onClick={mark.to ? () => go(mark.to ?? "") : undefined}>
          <title>{mark.title}</title>
          <rect x={(empty + place) * STEP} y="0" width={STEP} height={HIGH} fill="transparent" />
          {shape(mark, (empty + place) * STEP)}
        </g>
      ))}
    </svg>
  );
}

/** "30 plan times: 27 on time, 2 late, 1 failed". */
export function summary(words: string[], what: string): string {
  const counts = new Map<string, number>();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  const told = [...counts].sort((a, b) => b[1] - a[1]).map(([word, count]) => `${count} ${word}`);
  return words.length ? `last ${words.length} ${what}: ${told.join(", ")}` : `no ${what} yet`;
}

/** The last plan times of a schedule; a click explains one. */
export function Strip({ of, own }: { of: StripOf | undefined; own: string }) {
  const drawn = useMemo(
    () =>
      (of?.marks ?? []).map((mark): Drawn => {
        const [tone, word] = CAME[mark.came];
        const [letter, , why] = (mark.reason && REASONS[mark.reason]) || ["", "", ""];
        const at = Date.parse(mark.at);
        const late = mark.lateness_ms === null ? "" : `, ${milliseconds(mark.lateness_ms)} late`;
        return { tone, shape: mark.came, letter, to: link`schedules/${of?.schedule ?? ""}/at/${mark.at}`, title: `${word}${why ? `: ${why}` : late}\n${everyZone(at, own)}` };
      }),
    [of, own],
  );
  if (!of) return <span class="strip-space" />;
  return <Drawing marks={drawn} most={30} label={summary(of.marks.map((mark) => CAME[mark.came][1]), "plan times")} />;
}

/** The last runs of a job. */
export function Runs({ of, most = 12 }: { of: readonly LastRun[]; most?: number }) {
  const drawn = of.map(({ id, state }): Drawn => {
    const { tone, word } = lookOf(state);
    const came: Came = state === "succeeded" ? "on_time" : tone === "bad" ? "failed" : tone === "busy" ? "running" : tone === "idle" ? "waiting" : "unknown";
    return { tone, shape: came, letter: "", title: `task ${id}: ${word}`, to: link`tasks/${id}` };
  });
  return <Drawing marks={drawn} most={most} label={summary(of.map(({ state }) => lookOf(state).word), "runs")} />;
}
