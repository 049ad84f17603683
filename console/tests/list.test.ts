import assert from "node:assert/strict";
import { test } from "node:test";
import { cameTo, joined, MOST_FRESH, patched } from "../src/core/list";

interface Row {
  id: number;
  state: string;
}
const id = (row: Row) => row.id;
const rows = (...ids: number[]): Row[] => ids.map((one) => ({ id: one, state: "pending" }));

test("a part is joined without showing a row twice", () => {
  assert.deepEqual(joined(rows(5, 4, 3), rows(3, 2), id).map(id), [5, 4, 3, 2]);
});

test("rows change in place: the same order, the same objects where nothing changed", () => {
  const before = rows(5, 4, 3);
  const after = patched(before, new Map([[4, { id: 4, state: "running" }]]), id);
  assert.deepEqual(after.map((row) => row.state), ["pending", "running", "pending"]);
  assert.deepEqual(after.map(id), [5, 4, 3]);
  assert.ok(after[0] === before[0] && after[2] === before[2]);
  assert.ok(patched(before, new Map([[9, { id: 9, state: "running" }]]), id) === before);
});

test("what is not there is counted once and never inserted", () => {
  const shown = rows(5, 4);
  let fresh: ReadonlySet<string | number> = new Set();
  fresh = cameTo(fresh, shown, rows(7, 5), id, () => true);
  fresh = cameTo(fresh, shown, rows(7, 6), id, () => true);
  assert.deepEqual([...fresh], [7, 6]);
  assert.deepEqual([...cameTo(fresh, shown, rows(8), id, () => false)], [7, 6]);
});

test("the count of what is new is bounded, however long nobody looks", () => {
  let fresh: ReadonlySet<string | number> = new Set();
  for (let part = 0; part < 30; part += 1) fresh = cameTo(fresh, [], rows(...Array.from({ length: 100 }, (_, place) => part * 100 + place)), id, () => true);
  assert.equal(fresh.size, MOST_FRESH);
});
