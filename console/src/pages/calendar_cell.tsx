// One quarter of an hour: its seconds and their schedules, and what spreading a herd would do. Nothing is saved here.

import { useEffect, useRef } from "preact/hooks";
import { call } from "../core/api";
import { useGet, useQuery } from "../core/query";
import { link, query, setQuery, withQuery } from "../core/router";
import type { CellSecond, SpreadPreview } from "../core/schema";
import { count, span, wall } from "../core/time";
import { Bars } from "../parts/bars";
import { Switch } from "../parts/controls";
import { Icon } from "../parts/icons";
import { Show } from "../parts/page";
import { Command, many } from "../parts/show";
import { slotState, slotWords } from "../pictures/week";
import { HERD, QUARTER } from "../pictures/week_scene";
import type { Slot } from "../pictures/week_scene";

const iso = (at: number): string => new Date(at).toISOString();

export function CellPanel({ slot, zoneName, slots, close }: { slot: Slot; zoneName: string; slots: number | null; close: () => void }) {
  const panel = useRef<HTMLElement>(null);
  useEffect(() => panel.current?.focus({ preventScroll: innerWidth > 1100 }), []);
  const chosen = query.value.get("second");
  return (
    <section class="card cell-panel" ref={panel} tabIndex={-1} aria-label={slotWords(slot, zoneName)}>
      <header class="section-head">
        <h2>{slotWords(slot, zoneName)}</h2>
        <button type="button" class="icon-button" aria-label="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </header>
      {slot.isPast ? <Past slot={slot} zoneName={zoneName} /> : chosen ? <Spread at={chosen} zoneName={zoneName} slots={slots} /> : <Seconds slot={slot} zoneName={zoneName} slots={slots} />}
    </section>
  );
}

function Past({ slot, zoneName }: { slot: Slot; zoneName: string }) {
  const filter = `due>${iso(slot.at)} due<${iso(slot.at + QUARTER)}`;
  return (
    <>
      <p>{slotState(slot, zoneName)}</p>
      <p>
        <a href={withQuery("tasks", { filter })}>Tasks that were due then</a>
      </p>
    </>
  );
}

function Seconds({ slot, zoneName, slots }: { slot: Slot; zoneName: string; slots: number | null }) {
  const cell = useGet("GET /forecast/cell", { at: iso(slot.at) });
  return (
    <Show of={cell}>
      {(found) => (
        <>
          <p class="quiet">
            {many(found.starts, "start")}, peak {count(found.peak)} in one second{slots !== null && `, ${many(slots, "slot")}`}
            {!found.complete && "; not all could be counted in time"}
          </p>
          {found.seconds.length === 0 && <p>Nothing starts in this quarter of an hour.</p>}
          <ul class="seconds">
            {found.seconds.map((one) => (
              <Second key={one.at} second={one} most={found.peak} zoneName={zoneName} />
            ))}
          </ul>
          {found.more > 0 && <p class="quiet">and {many(found.more, "second")} with fewer starts</p>}
        </>
      )}
    </Show>
  );
}

function Second({ second, most, zoneName }: { second: CellSecond; most: number; zoneName: string }) {
  const { time, offset } = wall(Date.parse(second.at), zoneName);
  const more = second.starts - second.schedules.length;
  const isHerd = second.starts >= HERD;
  return (
    <li>
      <div class="second-head">
        <strong class="number">{time}</strong> <span class="quiet">{offset}</span>
        <span class="grow" />
        <span class={isHerd ? "number tone-bad" : "number"}>
          {isHerd && "herd · "}
          {many(second.starts, "start")}
        </span>
      </div>
      <span class="second-bar" aria-hidden="true">
        <span class={isHerd ? "bad" : ""} style={{ width: `${Math.max(1, (100 * second.starts) / most)}%` }} />
      </span>
      <p class="second-names">
        {second.schedules.map((name, place) => (
          <>
            {place > 0 && ", "}
            <a key={name} href={link`schedules/${name}`}>{name}</a>
          </>
        ))}
        {more > 0 && <span class="quiet"> and {many(more, "more start", "more starts")}</span>}
      </p>
      {isHerd && (
        <button type="button" class="button plain" onClick={() => setQuery({ second: second.at, spread: null })}>
          Spread these …
        </button>
      )}
    </li>
  );
}

const WAYS = [
  ["minute", "H minute"],
  ["second", "H second"],
  ["60", "jitter 1 min"],
  ["300", "5 min"],
  ["900", "15 min"],
] as const;
type Way = (typeof WAYS)[number][0];

/** What H or jitter would do to all that start in one second. */
function Spread({ at, zoneName, slots }: { at: string; zoneName: string; slots: number | null }) {
  const way: Way = WAYS.find(([name]) => name === query.value.get("spread"))?.[0] ?? "minute";
  const body = { at, by: way === "minute" || way === "second" ? way : "jitter", ...(Number(way) ? { jitter: Number(way) } : {}) };
  const preview = useQuery(`${at} ${way}`, (signal) => call("POST /forecast/spread", {}, body, { signal }), { keep: true });
  const { time, offset } = wall(Date.parse(at), zoneName);
  return (
    <div class="spread">
      <button type="button" class="link" onClick={() => setQuery({ second: null, spread: null })}>
        ← All seconds
      </button>
      <h3>
        Spread what starts at {time} {offset}
      </h3>
      <Switch label="By" name="spread" of={WAYS} first="minute" />
      <Show of={preview}>{(found) => <Preview found={found} slots={slots} zoneName={zoneName} isOld={preview.isLoading} />}</Show>
      <p class="line" role="note">A preview: nothing is saved.</p>
    </div>
  );
}

function Preview({ found, slots, zoneName, isOld }: { found: SpreadPreview; slots: number | null; zoneName: string; isOld: boolean }) {
  const kept = found.schedules - found.changed;
  const example = found.examples[0];
  const peakAt = found.peak_after_at && wall(Date.parse(found.peak_after_at), zoneName).time;
  return (
    <div class={isOld ? "spread-result old" : "spread-result"} aria-busy={isOld}>
      <p class="spread-peak">
        peak <strong>{count(found.peak_before)}</strong> → <strong class={slots !== null && found.peak_after > slots ? "tone-warn" : "tone-good"}>{count(found.peak_after)}</strong> starts in one second
        {peakAt && ` at ${peakAt}`}
        {slots !== null && `, ${many(slots, "slot")}`}
      </p>
      <Minutes words="now" starts={found.before} most={Math.max(...found.before, ...found.after)} />
      <Minutes words="spread" starts={found.after} most={Math.max(...found.before, ...found.after)} />
      <p class="quiet">
        {found.by === "jitter" ? `Each task up to ${span(found.jitter ?? 0)} later` : "H picks a value by the name of the schedule"}: {count(found.changed)} of {many(found.schedules, "schedule")} move
        {kept > 0 && `; ${count(kept)} ${kept === 1 ? "is" : "are"} spread already or by interval, which only jitter moves`}.{!found.complete && " Not all could be counted in time."}
      </p>
      {example && (
        <>
          <p>
            <a href={link`schedules/${example.name}/edit`}>{example.name}</a>: <code>{example.before}</code> → <code>{example.after}</code>
          </p>
          <Command>{`mainspring schedule edit ${example.name} ${found.by === "jitter" ? `--jitter ${found.jitter}s` : `--cron "${example.after}"`}`}</Command>
        </>
      )}
    </div>
  );
}

function Minutes({ words, starts, most }: { words: string; starts: number[]; most: number }) {
  const peak = count(Math.max(...starts));
  return (
    <figure class="bars">
      <Bars label={`${words}: starts by the minute, at most ${peak} in one`} starts={starts} most={most} />
      <figcaption class="quiet">{words}: at most {peak} in a minute</figcaption>
    </figure>
  );
}
