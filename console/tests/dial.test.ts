import assert from "node:assert/strict";
import { test } from "node:test";
import { dial, LANES, needle, order, point, turn } from "../src/pictures/dial_scene";
import type { Dot, Mark, Watched } from "../src/pictures/dial_scene";

const NOW = Date.UTC(2026, 10, 17, 9, 0, 0);
const agent = (given: Partial<Watched> = {}): Watched => ({
  name: "web-1",
  status: "active",
  slots: 8,
  running: 2,
  armed: given.tasks?.length ?? 0,
  skew: 0.0004,
  roundTrip: 0.002,
  lead: 5,
  leaseUntil: NOW + 15_000,
  tasks: [],
  asOf: NOW,
  fired: [],
  ...given,
});
const at = (...seconds: number[]) => seconds.map((one, id) => ({ id, job: `job-${id}`, at: NOW + one * 1000 }));
const dots = (marks: Mark[]) => marks.filter((mark): mark is Dot => mark.kind === "dot");
const angle = ({ x, y }: { x: number; y: number }) => Math.atan2(x, -y); // clockwise from twelve

test("a dot moves clockwise and meets twelve o'clock at its instant", () => {
  const tasks = at(4);
  let before = -Infinity;
  for (let left = 4000; left > 0; left -= 50) {
    const [found] = dots(dial(agent({ tasks }), NOW + 4000 - left).marks).map(angle);
    assert.ok((found ?? NaN) > before, `it moves on with ${left} ms left`);
    before = found ?? NaN;
  }
  // 100 ms before its instant it is within four degrees of twelve, and at its instant it flashes there
  assert.ok(before > -Math.PI / 45);
  const [flash] = dial(agent({ tasks }), NOW + 4000).marks;
  assert.equal(flash?.kind, "flash");
  assert.deepEqual(point(0), { x: -0, y: -1 });
  assert.equal(dial(agent({ tasks }), NOW + 4701).marks.length, 0, "and then it is gone");
});

test("the scale is that of a minute: near twelve wide, at its end full round", () => {
  assert.equal(turn(0), 0);
  assert.equal(turn(60), 1);
  assert.ok(turn(5) > 0.25 && turn(5) < 0.3);
  assert.equal(turn(600), 1);
  assert.equal(dots(dial(agent({ tasks: at(61) }), NOW).marks).length, 0);
});

test("what is still armed after its instant is held up, and waits at twelve", () => {
  const late = dial(agent({ tasks: at(-3), asOf: NOW - 100 }), NOW);
  assert.deepEqual(dots(late.marks).map((dot) => [dot.isLate, Math.abs(angle(dot))]), [[true, 0]]);
  assert.deepEqual([late.next, late.late], [null, 3]);
  assert.equal(dots(dial(agent({ tasks: at(-3), asOf: NOW - 2900 }), NOW).marks).length, 0, "not if nothing has been heard since");
});

test("tasks of one instant stand side by side, and those beyond are counted", () => {
  const found = dial(agent({ tasks: at(2, 2, 2.05, 2, 2, 2, 5) }), NOW);
  assert.deepEqual(dots(found.marks).map(({ lane }) => lane), [0, 1, 2, 3, 0]);
  assert.equal(found.more, 6 - LANES);
  assert.equal(found.next?.left, 2);
});

test("a lost agent counts down its lease, fires nothing and has no needle", () => {
  const found = dial(agent({ status: "disconnected", tasks: at(-0.1, 3) }), NOW);
  assert.deepEqual([found.look, found.lease, found.needle], ["lost", 15, null]);
  assert.ok(found.marks.every(({ kind }) => kind !== "flash"));
});

test("recorded starts leave a trace for a minute, clockwise of twelve", () => {
  const fired = [{ id: 1, at: NOW - 1000 }, { id: 2, at: NOW - 61_000 }];
  const [trace, ...others] = dial(agent({ fired }), NOW).marks;
  assert.ok(trace?.kind === "trace" && angle(trace) > 0);
  assert.equal(others.length, 0);
});

test("the needle shows which way a clock is wrong, and warns", () => {
  assert.equal(needle(null, null), null);
  assert.deepEqual([needle(0, 0)?.at, needle(0.4, 0)?.tone, needle(-2, 0)?.tone], [0, "warn", "bad"]);
  assert.ok((needle(-0.01, 0)?.at ?? 0) < 0);
});

test("agents are ordered by load, skew or next fire; equal ones by name", () => {
  const all = [agent({ name: "n-10" }), agent({ name: "n-2", running: 8, tasks: at(9) }), agent({ name: "n-1", skew: -1, tasks: at(-1, 3) })];
  assert.deepEqual(order(all, "name", NOW), ["n-1", "n-2", "n-10"]);
  assert.deepEqual(order(all, "load", NOW), ["n-2", "n-1", "n-10"]);
  assert.deepEqual(order(all, "skew", NOW), ["n-1", "n-2", "n-10"]);
  assert.deepEqual(order(all, "next", NOW), ["n-1", "n-2", "n-10"]);
});

test("500 agents with 20 dots each are computed in a frame", () => {
  const many = Array.from({ length: 500 }, (_, number) => agent({ name: `n-${number}`, tasks: at(...Array.from({ length: 20 }, (_, place) => place * 3)) }));
  assert.equal(many.map((one) => dots(dial(one, NOW).marks).length).reduce((all, one) => all + one), 500 * 19);
});
