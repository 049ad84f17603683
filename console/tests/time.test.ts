import assert from "node:assert/strict";
import { test } from "node:test";
import { steps } from "../src/core/phases";
import { bytes, milliseconds, percent, relative, shown, span, wall, zoneFor } from "../src/core/time";

const AT = Date.parse("2026-11-17T08:00:00.250Z");

test("an instant shows its offset, and its date unless it is today's", () => {
  assert.deepEqual(wall(AT, "Europe/Berlin"), { date: "2026-11-17", time: "09:00:00", offset: "+01:00" });
  assert.equal(wall(AT, "UTC").offset, "Z");
  assert.equal(shown(AT, "Europe/Berlin", AT), "09:00:00 +01:00");
  assert.equal(shown(AT, "Europe/Berlin", AT + 86_400_000), "2026-11-17 09:00:00 +01:00");
  assert.equal(shown(AT, "UTC", AT, { ms: true }), "08:00:00.250 Z");
});

test("the same wall time twice has two offsets", () => {
  const [first, second] = [Date.parse("2026-10-25T00:30:00Z"), Date.parse("2026-10-25T01:30:00Z")];
  assert.equal(shown(first, "Europe/Berlin", first), "02:30:00 +02:00");
  assert.equal(shown(second, "Europe/Berlin", second), "02:30:00 +01:00");
});

test("spans have units, and no more precision than they have", () => {
  assert.deepEqual([0.00031, 0.012, 0.8, 1, 9.94, 59.7, 3725, 90_000, 86_400].map((value) => span(value)), ["0.31 ms", "12.0 ms", "800 ms", "1 s", "9.9 s", "1 min", "1 h 2 min", "1 d 1 h", "1 d"]);
  assert.equal(milliseconds(0), "0 ms");
  assert.equal(relative(AT + 240_000, AT), "in 4 min");
  assert.equal(relative(AT - 12_000, AT), "12 s ago");
});

test("a share is never rounded up to the whole", () => {
  assert.equal(percent(0.99999), "99.99 %");
  assert.equal(percent(1), "100 %");
  assert.equal(percent(0.758), "75 %");
  assert.equal(percent(0), "0 %");
  assert.equal(bytes(1_234_567), "1.2 MB");
});

test("the switch decides the zone", () => {
  assert.equal(zoneFor("utc", "Asia/Tokyo"), "UTC");
  assert.equal(zoneFor("schedule", "Asia/Tokyo"), "Asia/Tokyo");
});

test("phases are steps in the order of their times, a millisecond seen beside a day", () => {
  const phases = [
    { name: "created", at: "2026-11-16T08:00:00Z", late: null },
    { name: "due", at: "2026-11-17T08:00:00Z", late: null },
    { name: "armed", at: "2026-11-17T07:59:57Z", late: -3 },
    { name: "started", at: "2026-11-17T08:00:00.002Z", late: 0.002 },
  ];
  const found = steps(phases, Date.parse("2026-11-17T08:00:10Z"));
  assert.deepEqual(found.map((step) => step.name), ["created", "armed", "due", "fired", "now"]);
  assert.ok(found[3]!.to - found[3]!.from > 0.02, "two milliseconds can be seen");
  assert.ok(Math.abs(found[4]!.to - 1) < 1e-9 && found.every((step) => step.from <= step.to));
});
