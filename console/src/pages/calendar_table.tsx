// The week as a table: hours below each other, days side by side. The same numbers as the picture, in words.

import { count, wall } from "../core/time";
import { Glyph } from "../parts/icons";
import { NONE } from "../parts/show";
import { dayWords, slotWords } from "../pictures/week";
import { isHerd } from "../pictures/week_scene";
import type { Scene, Slot } from "../pictures/week_scene";

const HOURS = Array.from({ length: 24 }, (_, hour) => hour);

export function WeekTable({ scene, open }: { scene: Scene; open: (slot: Slot) => void }) {
  return (
    <div class="table-box week-table">
      <p class="table-note">
        <Glyph name="triangle" /> a herd: so many starts within one second of the hour. Days and hours are those of {scene.zone}.
      </p>
      <table aria-label={`Starts by hour, ${scene.zone}`}>
        <thead>
          <tr>
            <th scope="col">Hour</th>
            {scene.days.map((day) => (
              <th key={day.date} scope="col" class="right">
                {dayWords(day.date)}
                <span class="quiet">{count(day.starts)}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {HOURS.map((hour) => (
            <tr key={hour}>
              <th scope="row">{String(hour).padStart(2, "0")}:00</th>
              {scene.days.map((day, place) => (
                <td key={day.date} class="right">
                  <Hour scene={scene} day={place} hour={hour} open={open} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Hour({ scene, day, hour, open }: { scene: Scene; day: number; hour: number; open: (slot: Slot) => void }) {
  const own = scene.slots.filter((slot) => slot.day === day && Math.floor(slot.row / 4) === hour);
  const isTorn = scene.days[day]?.torn.some((row) => Math.floor(row / 4) === hour);
  const passes = [own.filter((slot) => !slot.pass), own.filter((slot) => slot.pass)].filter((slots) => slots.length);
  return (
    <>
      {passes.map((slots, pass) => (
        <Pass key={pass} slots={slots} open={open} zone={scene.zone} isDoubled={passes.length > 1} />
      ))}
      {isTorn && <span class="tone-warn">{own.length ? "partly left out" : "no such hour"}</span>}
    </>
  );
}

function Pass({ slots, open, zone, isDoubled }: { slots: Slot[]; open: (slot: Slot) => void; zone: string; isDoubled: boolean }) {
  const first = slots[0];
  if (!first) return null;
  const starts = slots.reduce((sum, slot) => sum + (slot.shares ? 0 : slot.starts), 0);
  const worst = slots.reduce((most, slot) => ((slot.peak ?? 0) > (most.peak ?? 0) ? slot : most), first);
  return (
    <span class="week-hour">
      {isDoubled && <span class="tone-warn">{wall(first.at, zone).offset} </span>}
      {starts ? count(starts) : NONE}
      {isHerd(worst) && (
        <button type="button" class="link" aria-label={`herd of ${worst.peak}, ${slotWords(worst, zone)}`} onClick={() => open(worst)}>
          <Glyph name="triangle" />
          {count(worst.peak ?? 0)}
        </button>
      )}
    </span>
  );
}
