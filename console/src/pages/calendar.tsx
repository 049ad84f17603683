// Calendar: picture 2, the week of everything: when all schedules start, and where they pile up.

import { useEffect, useMemo, useState } from "preact/hooks";
import { call } from "../core/api";
import { now, second } from "../core/clock";
import { useKeys } from "../core/keys";
import { zone } from "../core/prefs";
import { useGet, useQuery } from "../core/query";
import { query, setQuery } from "../core/router";
import type { Fired, Forecast } from "../core/schema";
import { wall, zoneFor } from "../core/time";
import { Choice, Switch } from "../parts/controls";
import { Icon } from "../parts/icons";
import { Empty, Loading, Page, Problem } from "../parts/page";
import { Instant, many } from "../parts/show";
import { dayWords, Legend, slotWords, Week } from "../pictures/week";
import { fill, layOut, mondayOf, plusDays, QUARTER, weekOf } from "../pictures/week_scene";
import type { Filled, Scene, Slot } from "../pictures/week_scene";
import { CellPanel } from "./calendar_cell";
import { WeekTable } from "./calendar_table";

const NARROW = "(max-width: 700px)";

/** Which days are shown: those of a week, or one. In the address, or those around now. */
function useRange(zoneName: string): { dates: string[]; isDay: boolean; isNarrow: boolean; step: (by: number) => void; today: string } {
  const [isNarrow, setNarrow] = useState(matchMedia(NARROW).matches);
  useEffect(() => {
    const media = matchMedia(NARROW);
    const changed = () => setNarrow(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  const today = wall(second.value, zoneName).date;
  const day = query.value.get("day");
  const week = query.value.get("week");
  const isDay = isNarrow || day !== null;
  const monday = mondayOf(week ?? "") ?? mondayOf(weekOf(day && isDate(day) ? day : today)) ?? today;
  const inWeek = week && !Array.from({ length: 7 }, (_, place) => plusDays(monday, place)).includes(today) ? monday : today;
  const first = isDay ? (day && isDate(day) ? day : inWeek) : monday;
  const dates = useMemo(() => (isDay ? [first] : Array.from({ length: 7 }, (_, place) => plusDays(first, place))), [first, isDay]);
  const step = (by: number) => {
    if (isDay) setQuery({ day: plusDays(first, by), week: null, at: null, second: null });
    else setQuery({ week: weekOf(plusDays(monday, 7 * by)), at: null, second: null });
  };
  return { dates, isDay, isNarrow, step, today };
}

const isDate = (text: string): boolean => /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(Date.parse(text));

interface Both {
  forecast: Forecast | null;
  fired: Fired | null;
}

const iso = (at: number): string => new Date(at).toISOString();

async function load(start: number, end: number, signal: AbortSignal): Promise<Both> {
  const split = Math.min(Math.max(Math.floor(now() / QUARTER) * QUARTER, start), end);
  const [forecast, fired] = await Promise.all([
    split < end ? call("GET /forecast", { from: iso(split), to: iso(end), cell: "15m" }, undefined, { signal }) : null,
    split > start ? call("GET /fired", { from: iso(start), to: iso(split), cell: "15m" }, undefined, { signal }) : null,
  ]);
  return { forecast, fired };
}

function filled(empty: Scene, { forecast, fired }: Both): Scene {
  const known = new Map<number, Filled>();
  for (const { at, starts, skipped, peak, peak_at } of fired?.cells ?? []) known.set(Date.parse(at), { starts, skipped, peak, peakAt: peak_at });
  for (const { at, starts, peak, peak_at } of forecast?.cells ?? []) known.set(Date.parse(at), { starts, peak, peakAt: peak_at });
  return fill(empty, known, (fired?.cell ?? 900) * 1000);
}

export default function Calendar() {
  const zoneName = zoneFor(zone.value);
  const { dates, isDay, isNarrow, step, today } = useRange(zoneName);
  const quarter = Math.floor(second.value / QUARTER) * QUARTER;
  const empty = useMemo(() => layOut(dates, zoneName, quarter), [dates, zoneName, quarter]);
  const [start, end] = [empty.days[0]?.start ?? 0, empty.days.at(-1)?.end ?? 0];
  const loaded = useQuery(`${start} ${end} ${quarter}`, (signal) => load(start, end, signal), { every: 60 });
  const fleet = useGet("GET /autoscale", {}, { every: 30 });
  const slots = fleet.data && fleet.data.slots_busy + fleet.data.slots_free;
  const scene = useMemo(() => (loaded.data ? filled(empty, loaded.data) : null), [loaded.data, empty]);

  const text = query.value.get("at");
  const open = text ? Math.floor(Date.parse(text) / QUARTER) * QUARTER : null;
  const slot = scene?.slots.find((one) => one.at === open) ?? null;
  const choose = (chosen: Slot | null) => setQuery({ at: chosen && iso(chosen.at), second: null, spread: null });
  const isTable = query.value.get("view") === "table";
  useKeys([
    { keys: "[", does: isDay ? "the day before" : "the week before", run: () => step(-1) },
    { keys: "]", does: isDay ? "the next day" : "the next week", run: () => step(1) },
    { keys: "Escape", does: "close what is open", run: () => choose(null) },
  ]);
  const words = isDay ? dayWords(dates[0] ?? today) : `${dayWords(dates[0] ?? today)} – ${dayWords(dates.at(-1) ?? today)} ${(dates[0] ?? today).slice(0, 4)}`;
  const data = loaded.data;
  return (
    <Page
      title="Calendar"
      remark={scene && <Peak scene={scene} slots={slots} choose={choose} />}
      actions={
        <>
          <span class="week-steps">
            <button type="button" class="icon-button" aria-label={isDay ? "The day before" : "The week before"} onClick={() => step(-1)}>
              <Icon name="left" />
            </button>
            <strong>{words}</strong>
            <button type="button" class="icon-button" aria-label={isDay ? "The next day" : "The next week"} onClick={() => step(1)}>
              <Icon name="right" />
            </button>
          </span>
          <button type="button" class="button plain" onClick={() => setQuery({ week: null, day: isDay && !isNarrow ? today : null, at: null, second: null })}>
            Today
          </button>
          {!isNarrow && (
            <Choice
              label="Show"
              of={[
                ["week", "Week"],
                ["day", "Day"],
              ]}
              value={isDay ? "day" : "week"}
              set={(value) => setQuery(value === "day" ? { day: dates.includes(today) ? today : (dates[0] ?? null), week: null } : { day: null, week: weekOf(dates[0] ?? today) })}
            />
          )}
          <Switch label="View" name="view" of={[["picture", "Picture"], ["table", "Table"]]} />
        </>
      }
    >
      {zone.value === "schedule" && <p class="line" role="note">Days and hours are those of {zoneName}: here many schedules meet, so there is no zone of “the schedule”.</p>}
      {data?.forecast && !data.forecast.complete && <p class="line warn" role="note">Not all could be counted in time: there are more starts.</p>}
      {data?.forecast?.skips.map(({ schedule, start, until, by, note }) => (
        <p class="line" role="note">
          Not counted: {schedule}, skipped {start === until ? "at" : "until"} <Instant at={until} date="always" /> by {by}
          {note && `: ${note}`}.
        </p>
      ))}
      {data?.forecast && data.forecast.unknown.length > 0 && <p class="line warn" role="note">Not counted, because their plan times cannot be computed here: {data.forecast.unknown.join(", ")}.</p>}
      {loaded.refusal && <Problem refusal={loaded.refusal} retry={loaded.refresh} />}
      {!scene ? (
        !loaded.refusal && <Loading word="Counting" />
      ) : (
        <>
          {scene.starts === 0 && (
            <Empty title={`Nothing ${end > now() ? "is planned" : "has fired"} ${isDay ? "on this day" : "in this week"}.`} {...(end > now() && { command: "mainspring schedule create nightly hello --daily 02:00 --enable" })}>
              Here every start of every schedule would be a shade of its quarter of an hour.
            </Empty>
          )}
          <div class={slot ? "calendar has-cell" : "calendar"}>
            <div class="calendar-main figure">
              {isTable ? <WeekTable scene={scene} open={choose} /> : <Week scene={scene} open={open} choose={choose} />}
              {!isTable && <Legend scene={scene} source={data?.fired?.source ?? null} />}
            </div>
            {slot && <CellPanel key={slot.at} slot={slot} zoneName={zoneName} slots={slots} close={() => choose(null)} />}
          </div>
        </>
      )}
    </Page>
  );
}

/** The line that matters: the busiest second, beside the slots of the fleet. */
function Peak({ scene, slots, choose }: { scene: Scene; slots: number | null; choose: (slot: Slot) => void }) {
  const { peak } = scene;
  const starts = many(scene.starts, "start");
  if (!peak?.peak) return <span class="figure">{starts}</span>;
  const isMore = slots !== null && peak.peak > slots;
  return (
    <span class="figure">
      {starts} ·{" "}
      <button type="button" class="link" onClick={() => choose(peak)}>
        peak {many(peak.peak, "start")} in one second
      </button>
      {slots !== null && <span class={isMore ? "tone-warn" : ""}>, {many(slots, "slot")}</span>} · {slotWords(peak, scene.zone)}
    </span>
  );
}
