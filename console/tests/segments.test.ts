import assert from "node:assert/strict";
import { test } from "node:test";
import type { MoveView, ServerView } from "../src/core/schema";
import { badges, ownersAt, ownersNow } from "../src/pictures/segment_map";

const servers = [{ id: "a", segments: [0, 1, 2] }, { id: "b", segments: [3] }] as unknown as ServerView[];
const move = (seconds: number, segments: number[], from: string | null, to: string | null) => ({ at: new Date(seconds * 1000).toISOString(), segments, old_owner: from, new_owner: to }) as unknown as MoveView;

test("the past is the present with the moves since taken back", () => {
  const now = ownersNow(servers);
  assert.deepEqual(now.slice(0, 5), ["a", "a", "a", "b", null]);
  const moves = [move(3000, [2], "b", "a"), move(2000, [2, 3], "dead", "b"), move(1000, [0, 1, 2, 3], null, "a")]; // the newest first
  assert.deepEqual(ownersAt(now, moves, 3_000_000).owners.slice(0, 4), ["a", "a", "a", "b"]);
  assert.deepEqual(ownersAt(now, moves, 2_999_999).owners.slice(0, 4), ["a", "a", "b", "b"]);
  assert.deepEqual(ownersAt(now, moves, 1_500_000).owners.slice(0, 4), ["a", "a", "dead", "dead"]);
  assert.deepEqual(ownersAt(now, moves, 0).owners.slice(0, 4), [null, null, null, null]);
});

test("what has just moved is marked for a minute", () => {
  const moves = [move(100, [7], "a", "b")];
  assert.deepEqual([...ownersAt([], moves, 100_000).moved], [7]);
  assert.deepEqual([...ownersAt([], moves, 161_000).moved], []);
});

test("owners differ by letter, and by colour or pattern", () => {
  const found = [...badges(Array.from({ length: 30 }, (_, place) => `server-${place}`)).values()];
  assert.deepEqual([found[0]?.letter, found[25]?.letter, found[26]?.letter], ["A", "Z", "AA"]);
  assert.equal(new Set(found.slice(0, 16).map(({ style }) => style)).size, 16);
});
