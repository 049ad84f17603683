// A spec as text and back; cron and phrases, both ways.
import assert from "node:assert/strict";
import { test } from "node:test";
import { asPhrase, draftOf, readWhen, short, specOf, whenOf } from "../src/core/spec";

test("a spec survives its form", () => {
  const spec = { job: "hello", daily: "09:00", tz: "Europe/Paris", overlap: "skip", jitter: 30, calendars: ["holidays"], slo: { lateness: 2, target: 0.99 }, args: { shop: 7 }, max_runs: 3, anchor: "x" } as never;
  const back = specOf(draftOf(spec), spec);
  assert.deepEqual(back, { job: "hello", daily: "09:00", tz: "Europe/Paris", overlap: "skip", jitter: "30s", calendars: ["holidays"], slo: { lateness: "2s", target: 0.99 }, args: { shop: 7 }, max_runs: 3 } as never);
});

test("what is emptied is left out, and what the form has not is kept", () => {
  const spec = { job: "hello", cron: "0 9 * * *", overlap: "skip", max_per_tick: 5 } as never;
  assert.deepEqual(specOf({ ...draftOf(spec), overlap: "" }, spec), { job: "hello", cron: "0 9 * * *", max_per_tick: 5 } as never);
});

test("arguments that are no JSON name their field", () => {
  let field = "";
  try {
    specOf({ when: "hourly", args: "{" }, {});
  } catch (error) {
    field = (error as { field: string }).field;
  }
  assert.equal(field, "args");
});

test("when is read in any form", () => {
  assert.deepEqual(readWhen("daily at 09:00"), { daily: "at 09:00" });
  assert.deepEqual(readWhen("Every 5m"), { every: "5m" });
  assert.deepEqual(readWhen("hourly"), { cron: "0 * * * *" });
  assert.deepEqual(readWhen("2026-12-24T18:00"), { once: "2026-12-24T18:00" });
  assert.deepEqual(readWhen(" 0 9 * * * "), { cron: "0 9 * * *" });
  assert.equal(whenOf({ every: 5400 } as never), "every 1h30m");
});

test("cron that a phrase can say is said by it", () => {
  assert.equal(asPhrase("0 9 * * *"), "daily at 09:00");
  assert.equal(asPhrase("30 9,17 * * *"), "daily at 09:30, 17:30");
  assert.equal(asPhrase("0 9 * * 1-5"), "weekly on mon-fri at 09:00");
  assert.equal(asPhrase("0 9 * * MON,THU"), "weekly on mon, thu at 09:00");
  assert.equal(asPhrase("0 18 L * *"), "monthly on the last day at 18:00");
  assert.equal(asPhrase("*/5 * * * *"), "every 5m");
  for (const other of ["H 9 * * *", "0 9 1 1 *", "0 9 1 * MON", "0 9 * * MON#1", "*/7 * * * *", "0 9 31 * *"]) assert.equal(asPhrase(other), null, other);
});

test("durations are short", () => {
  assert.deepEqual([5400, 30, 86400, 0.5].map(short), ["1h30m", "30s", "1d", "0.5s"]);
});
