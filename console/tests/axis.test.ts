// Axes of charts: labels on round times, scales that end on round numbers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { axis, roundAbove } from "../src/core/axis";
import { offsetAt } from "../src/core/time";

const HOUR = 3_600_000;

test("labels stand on round times of the zone, on both sides of a clock change", () => {
  const change = Date.parse("2026-03-29T01:00:00Z"); // 02:00 becomes 03:00
  const offset = (at: number) => (at < change ? HOUR : 2 * HOUR);
  const shown = axis(change - 6 * HOUR, change + 6 * HOUR, 400, offset).map(({ at }) => new Date(at + offset(at)).toISOString().slice(11, 16));
  assert.deepEqual(shown, ["21:00", "00:00", "03:00", "06:00", "09:00"]);
});

test("days begin at midnight of the zone, before and after its clocks change", () => {
  const from = Date.parse("2026-10-22T12:00:00Z");
  const offset = (at: number) => offsetAt(at, "Europe/Paris"); // back on 25 October
  const days = axis(from, from + 7 * 24 * HOUR, 480, offset);
  assert.ok(days.length >= 3);
  for (const { at, step } of days) assert.equal((at + offset(at)) % step, 0, new Date(at).toISOString());
});

test("a range of nothing has labels that end", () => {
  assert.ok(axis(0, 0, 480, () => 0).length <= 60);
});

test("labels are never closer than they are wide", () => {
  for (const hours of [0.1, 1, 6, 24, 168, 720])
    for (const [place, { at }] of axis(0, hours * HOUR, 480, () => 0).entries()) if (place) assert.ok(at >= 0 && axis(0, hours * HOUR, 480, () => 0).length <= 7);
});

test("a scale ends on a round number at or above the largest value", () => {
  assert.deepEqual([[0], [null, 3], [10], [11], [41], [99, 100], [5001]].map(roundAbove), [1, 4, 10, 20, 50, 100, 10000]);
});

test("labels over a clock change are round in every zone and at every step", () => {
  for (const [zone, change] of [["Europe/Paris", "2026-03-29T01:00:00Z"], ["Europe/Paris", "2026-10-25T01:00:00Z"], ["Australia/Lord_Howe", "2026-10-03T15:30:00Z"]] as const)
    for (const hours of [1, 6, 12, 24, 72, 168]) {
      const middle = Date.parse(change);
      const offset = (at: number) => offsetAt(at, zone);
      const found = axis(middle - (hours / 2) * HOUR, middle + (hours / 2) * HOUR, 480, offset);
      assert.ok(found.length >= 2, `${zone} ${hours} h`);
      for (const [place, { at, step }] of found.entries()) {
        assert.equal((at + offset(at)) % step, 0, `${zone} ${hours} h ${new Date(at).toISOString()}`);
        if (place) assert.ok(at > (found[place - 1]?.at ?? 0));
      }
    }
});
