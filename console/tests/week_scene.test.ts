import assert from "node:assert/strict";
import { test } from "node:test";
import { boxOf, fill, frameOf, layOut, marks, midnight, mondayOf, next, plusDays, QUARTER, shade, slotAt, weekOf } from "../src/pictures/week_scene";
import type { Slot } from "../src/pictures/week_scene";

const days = (monday: string) => Array.from({ length: 7 }, (_, day) => plusDays(monday, day));

test("weeks are those of ISO 8601", () => {
  for (const [date, week] of [["2026-11-17", "2026-W47"], ["2027-01-01", "2026-W53"], ["2027-01-04", "2027-W01"], ["2024-12-30", "2025-W01"]] as const) {
    assert.equal(weekOf(date), week);
    assert.equal(weekOf(mondayOf(week) ?? ""), week);
  }
  assert.equal(mondayOf("2026-W47"), "2026-11-16");
  assert.equal(mondayOf("2026-W60"), null);
  assert.equal(mondayOf("soon"), null);
});

test("a day begins at midnight by the clocks of its zone, or with its first instant", () => {
  assert.equal(new Date(midnight("2026-11-17", "Europe/Berlin")).toISOString(), "2026-11-16T23:00:00.000Z");
  assert.equal(new Date(midnight("2026-11-17", "Asia/Kolkata")).toISOString(), "2026-11-16T18:30:00.000Z");
  assert.equal(new Date(midnight("2027-03-14", "America/Havana")).toISOString(), "2027-03-14T05:00:00.000Z");
});

test("an hour that the clocks leave out is torn, one that comes twice has two passes", () => {
  const march = layOut(days("2027-03-22"), "Europe/Berlin", 0);
  assert.equal(march.slots.length, 7 * 96 - 4);
  assert.deepEqual(march.days.map((day) => day.torn), [[], [], [], [], [], [], [8, 9, 10, 11]]);
  const october = layOut(days("2026-10-19"), "Europe/Berlin", 0);
  assert.equal(october.slots.length, 7 * 96 + 4);
  const twice = october.slots.filter((slot) => slot.isDoubled);
  assert.deepEqual(twice.map(({ row, pass }) => [row, pass]), [8, 9, 10, 11].map((row) => [row, 0]).concat([8, 9, 10, 11].map((row) => [row, 1])));
  assert.equal(layOut(days("2027-03-29"), "Australia/Lord_Howe", 0).slots.filter((slot) => slot.isDoubled).length, 4, "half an hour");
});

test("sums are those of what was given, each once", () => {
  const empty = layOut(days("2026-11-16"), "UTC", midnight("2026-11-18", "UTC"));
  const at = midnight("2026-11-17", "UTC");
  const known = new Map([[at, { starts: 40, peak: null, peakAt: null }], [at + 5 * 86_400_000, { starts: 7, peak: 3, peakAt: null }]]);
  const scene = fill(empty, known, 4 * QUARTER);
  assert.deepEqual([scene.starts, scene.most, scene.peak?.starts], [47, 40, 7]);
  assert.deepEqual(scene.slots.filter((slot) => slot.starts).map((slot) => slot.shares), [false, true, true, true, false]);
  assert.equal(fill(empty, new Map()).peak, null);
});

test("the scale is logarithmic, and what is there is seen", () => {
  assert.equal(shade(0, { least: 1, most: 1000 }), 0);
  assert.equal(shade(1, { least: 1, most: 100_000 }), 0.1);
  assert.equal(shade(1000, { least: 1, most: 1000 }), 1);
  assert.ok(Math.abs(shade(100, { least: 1, most: 10_000 }) - 0.55) < 0.01);
  assert.ok(shade(15_000, { least: 15_000, most: 28_000 }) > 0.5, "what is nearly equal looks so");
  assert.deepEqual(marks({ least: 1, most: 2500 }), [1, 10, 100, 1000, 2500]);
  assert.deepEqual(marks({ least: 15_000, most: 28_000 }), [5000, 10_000, 20_000, 28_000]);
});

test("a point finds its slot, and arrows lead over what is torn", () => {
  const scene = layOut(days("2027-03-22"), "Europe/Berlin", 0);
  for (const isDay of [false, true]) {
    const frame = frameOf(isDay, 748, 1000);
    const slot = scene.slots[isDay ? 9 : 200] as Slot;
    const box = boxOf(frame, slot.day, slot.row, slot.pass, slot.isDoubled);
    assert.equal(slotAt(scene, frame, box.x + 1, box.y + 1)?.row, slot.row);
  }
  const frame = frameOf(false, 748, 1000);
  const before = scene.slots.find((slot) => slot.day === 6 && slot.row === 7) as Slot;
  assert.equal(next(scene, frame, before, "ArrowDown").row, 12);
  assert.deepEqual([next(scene, frame, before, "ArrowLeft").day, next(scene, frame, before, "ArrowLeft").row], [5, 7]);
  assert.equal(next(scene, frame, before, "ArrowRight"), before);
  assert.equal(next(scene, frame, before, "End").row, 95);
  assert.equal(next(scene, frame, before, "Home").row, 0);
});
