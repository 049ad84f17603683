// State outside components. That components follow it is seen in a browser: tests/console/test_live.py and all others.

import assert from "node:assert/strict";
import { test } from "node:test";
import { signal } from "../src/core/signals";

test("a listener is told now and after each change, until it stops", () => {
  const given = signal(1);
  const heard: number[] = [];
  const stop = given.subscribe((value) => heard.push(value));
  given.value = 2;
  given.value = 2; // no change
  stop();
  given.value = 3;
  assert.deepEqual(heard, [1, 2]);
  assert.equal(given.peek(), 3);
});

test("one that stops while all are told does not keep the others from it", () => {
  const given = signal(NaN);
  const heard: string[] = [];
  const stop = given.subscribe((value) => value === 1 && stop());
  given.subscribe((value) => heard.push(String(value)));
  given.value = NaN; // the same
  given.value = 1;
  given.value = 2;
  assert.deepEqual(heard, ["NaN", "1", "2"]);
});
