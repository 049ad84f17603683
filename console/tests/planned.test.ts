// What planned versus fired draws: each sign where it belongs, bins where there are too many, and quickly.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Line, Mark, TaskSummary } from "../src/core/schema";
import { build, gantt, hit, instant, latenessAt, MOST, names, neighbour } from "../src/pictures/planned_scene";
import type { Item, Scene } from "../src/pictures/planned_scene";

const NOON = Date.parse("2026-11-17T12:00:00Z");
const MINUTE = 60_000;
const iso = (at: number): string => new Date(at).toISOString();

const line = (more: Partial<Line>): Line => ({
  schedule: "report", marks: [], bins: [], bin_seconds: null, skips: [], timezone: "Europe/Paris", slo: null, missed: [], missed_to: null, coming: [], coming_to: null, changes: [], ...more,
});
const mark = (minutes: number, more: Partial<Mark> = {}): Mark => ({
  plan_time: iso(NOON + minutes * MINUTE), scope: "", origin: "plan", decision: "planned", skipped_by: null, task_id: 7, state: "succeeded",
  started_at: iso(NOON + minutes * MINUTE + 2), lateness_ms: 2, finished_at: iso(NOON + minutes * MINUTE + 30_000), note: null, ...more,
});
const skipped = (minutes: number, decision: string): Mark => mark(minutes, { decision, task_id: null, state: null, started_at: null, lateness_ms: null, finished_at: null });
const view = { from: NOON - 30 * MINUTE, to: NOON + 30 * MINUTE, width: 1200, now: NOON + 10 * MINUTE };
const drawn = (lines: Line[], more = {}): Scene => build(lines, { ...view, ...more });
const of = (scene: Scene, is: Item["is"], row = 0): Item[] => scene.rows[row]?.items.filter((item) => item.is === is) ?? [];

test("each plan time has its sign", () => {
  const scene = drawn([
    line({
      marks: [mark(-20), skipped(-10, "overlap"), mark(0, { state: "failed" }), mark(5, { state: "running", finished_at: null }), mark(8, { state: "pending", started_at: null, lateness_ms: null, finished_at: null })],
      missed: [{ plan_time: iso(NOON - 15 * MINUTE), scope: "" }],
      coming: [{ plan_time: iso(NOON + 20 * MINUTE), note: null, skipped_by: null }, { plan_time: iso(NOON + 25 * MINUTE), note: null, skipped_by: "ann: release night" }],
    }),
  ]);
  const signs = of(scene, "tick").sort((a, b) => a.at - b.at).map((item) => [(item.at - NOON) / MINUTE, item.look, item.letter, item.means]);
  assert.deepEqual(signs, [
    [-20, "fired", undefined, "fired"],
    [-15, "missed", undefined, "missed"],
    [-10, "skipped", "o", "skipped: overlap"],
    [0, "fired", undefined, "fired"],
    [5, "fired", undefined, "fired"],
    [8, "planned", undefined, "planned, has not started"],
    [20, "coming", undefined, "to come"],
    [25, "skipped", "s", "to be skipped: ann: release night"],
  ]);
  assert.deepEqual(of(scene, "bar").map((item) => item.look), ["good", "bad", "busy"]);
});

test("every reason has a letter of its own", () => {
  const reasons = ["overlap", "paused", "misfire", "coalesced", "queue_full", "skipped", "no_scopes"];
  const scene = drawn([line({ marks: reasons.map((reason, number) => skipped(number, reason)) })]);
  assert.deepEqual(of(scene, "tick").map((item) => item.letter), ["o", "p", "m", "c", "q", "s", "n"]);
});

test("times are where the scale puts them, and the line is as long as the lateness", () => {
  const late = 5 * MINUTE;
  const scene = drawn([line({ marks: [mark(0, { started_at: iso(NOON + late), lateness_ms: late, finished_at: iso(NOON + 2 * late) })], slo: 2 })]);
  const minute = scene.plot / 60;
  const round = (x: number | undefined) => Math.round((x ?? 0) * 1000) / 1000;
  const [tick] = of(scene, "tick");
  const [bar] = of(scene, "bar");
  const [joins] = of(scene, "line");
  assert.equal(scene.plot, 1200 - names(1200) - 150);
  assert.equal(round(tick?.x), round(30 * minute));
  assert.deepEqual([round(bar?.x), round(bar?.to)], [round(35 * minute), round(40 * minute)]);
  assert.deepEqual([joins?.x, joins?.to], [tick?.x, bar?.x]);
  assert.ok((tick?.y ?? 0) + (tick?.height ?? 0) <= (joins?.y ?? 0) && (joins?.y ?? 0) < (bar?.y ?? 0));
  const [dot] = of(scene, "dot");
  assert.equal(dot?.look, "bad", "beyond its objective");
  assert.equal(dot?.x, latenessAt(late, 150));
  assert.ok((of(scene, "slo")[0]?.x ?? 999) < (dot?.x ?? 0));
});

test("instants are read as Date.parse reads them, however they are written", () => {
  for (const text of ["2026-11-17T12:00:00Z", "2026-11-17T12:59:59.999Z", "2026-11-17T12:07:08.000123Z", "2026-11-17T13:00:00.5Z", "2026-11-17T13:00:00.041+01:00", "2024-02-29T23:59:59.123456Z", "2026-11-17T12:00:00Z"])
    assert.equal(instant(text), Date.parse(text), text);
});

test("lateness is on a log axis from 0.1 ms to 5 min", () => {
  assert.equal(latenessAt(0.05, 150), latenessAt(0.1, 150));
  assert.equal(latenessAt(1e9, 150), latenessAt(300_000, 150));
  const steps = [1, 10, 100, 1000].map((ms) => latenessAt(ms, 150));
  const apart = steps.slice(1).map((x, place) => x - (steps[place] ?? 0));
  assert.ok(apart.every((one) => Math.abs(one - (apart[0] ?? 0)) < 1e-9));
});

test("scopes of one plan time share a tick; one that was skipped shows", () => {
  const scene = drawn([line({ marks: [mark(0, { scope: "eu" }), { ...skipped(0, "queue_full"), scope: "us" }] })]);
  assert.deepEqual(of(scene, "tick").map((item) => [item.letter, item.of.length]), [["q", 2]]);
});

test("runs that overlap are drawn beside each other", () => {
  const scene = drawn([line({ marks: [mark(0, { finished_at: iso(NOON + 9 * MINUTE) }), mark(5, { finished_at: iso(NOON + 6 * MINUTE) })] })]);
  const [first, second] = of(scene, "bar");
  assert.ok((first?.y ?? 0) + (first?.height ?? 0) <= (second?.y ?? 0));
});

test("clock changes are drawn: a torn line, and an hour that comes twice", () => {
  const at = iso(NOON);
  const [gap] = of(drawn([line({ changes: [{ at, seconds: 3600, said: "clocks go forward" }] })]), "change");
  const [fold] = of(drawn([line({ changes: [{ at, seconds: -3600, said: "clocks go back" }] })]), "change");
  assert.deepEqual([gap?.look, (gap?.to ?? 0) - (gap?.x ?? 0)], ["gap", 0]);
  assert.equal(fold?.look, "fold");
  assert.ok(Math.abs(((fold?.x ?? 0) + (fold?.to ?? 0)) / 2 - (gap?.x ?? 0)) < 1e-6);
});

test("above so many marks a row is drawn in bins, and says so", () => {
  const marks = Array.from({ length: MOST + 1 }, (_, number) => mark(number / 50));
  const scene = drawn([line({ marks }), line({ bins: [{ start: iso(NOON), plan_times: 9, tasks: 6 }], bin_seconds: 60, missed_to: iso(NOON) })]);
  assert.equal(of(scene, "tick").length, 0);
  assert.equal(of(scene, "bin").flatMap((item) => item.of).reduce((sum, bin) => sum + ("plan_times" in bin ? bin.plan_times : 0), 0), MOST + 1);
  assert.match(scene.rows[0]?.note ?? "", /2,001 plan times, counted in bins/);
  assert.equal(of(scene, "bin", 1)[0]?.means, "9 plan times, 3 of them skipped");
});

test("what is nearest is found, also after a pan, and by its neighbours", () => {
  const scene = drawn([line({ marks: [mark(-10), skipped(0, "paused"), mark(10)] })]);
  const x = scene.plot / 2;
  assert.equal(hit(scene, x + 4, 8)?.letter, "p");
  assert.equal(hit(scene, x + 104, 8, 100)?.letter, "p");
  assert.equal(hit(scene, x + 4, 8, 100), null, "where it was before the pan");
  assert.equal(hit(scene, x + 60, 8), null);
  assert.equal(neighbour(scene.rows[0], NOON, 1)?.at, NOON + 10 * MINUTE);
  assert.equal(neighbour(scene.rows[0], NOON, -1)?.at, NOON - 10 * MINUTE);
  assert.equal(neighbour(scene.rows[0], NOON + 10 * MINUTE, 1), null);
});

test("runs of an agent have as many lanes as ran at once", () => {
  const run = (id: number, from: number, to: number | null) => ({ id, agent: "web-1", job: "hello", state: to === null ? "running" : "succeeded", started_at: iso(NOON + from * MINUTE), finished_at: to === null ? null : iso(NOON + to * MINUTE) }) as TaskSummary;
  const scene = gantt(["web-1", "web-2"], [run(1, 0, 5), run(2, 1, 2), run(3, 3, null)], view);
  assert.deepEqual(scene.rows.map((row) => row.items.length), [3, 0]);
  assert.equal(new Set(of(scene, "bar").map((item) => item.y)).size, 2);
});

test("few agents have higher rows, so that runs beside each other can be told apart", () => {
  const runs = Array.from({ length: 12 }, (_, id) => ({ id, agent: "web-1", job: "hello", state: "running", started_at: iso(NOON + id * 1000), finished_at: null }) as TaskSummary);
  const alone = gantt(["web-1"], runs, view);
  assert.ok(of(alone, "bar").every((item) => item.height >= 9));
  const many = gantt(Array.from({ length: 40 }, (_, number) => `web-${number}`), runs, view);
  assert.equal(many.row, drawn([line({})]).row, "as high as those of schedules");
});

test("a row without marks says so", () => {
  assert.equal(drawn([line({})]).rows[0]?.note, "nothing in this range");
  assert.equal(drawn([line({ marks: [mark(0)] })]).rows[0]?.note, null);
});

test("50 rows of 2,000 marks are laid out within what one picture may take", () => {
  const lines = Array.from({ length: 50 }, () => line({ marks: Array.from({ length: MOST }, (_, number) => mark(number * 0.03 - 30)) }));
  drawn(lines); // reads the instants
  const began = performance.now();
  const scene = drawn(lines, { width: 1201 });
  console.log(`# laid out in ${(performance.now() - began).toFixed(1)} ms`);
  const items = scene.rows.reduce((sum, row) => sum + row.items.length, 0);
  assert.ok(items < 50 * 1200 * 4, "no more than the pixels can show");
});
