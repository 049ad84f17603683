import assert from "node:assert/strict";
import { test } from "node:test";
import { grouped } from "../src/core/failures";
import { layout } from "../src/core/layers";
import { policies, rateOf, runOf } from "../src/core/policies";

/** Without the places of lines. */
const layers = (...given: Parameters<typeof layout>) => layout(...given).layers.map((layer) => layer.filter((id) => id > 0));

test("a task is one layer below the lowest of those that it runs after", () => {
  const edges = [[1, 2], [1, 3], [2, 4], [3, 4], [1, 4], [4, 5]].map(([parent, child]) => ({ parent: parent!, child: child! }));
  assert.deepEqual(layers([1, 2, 3, 4, 5, 6], edges), [[1, 6], [2, 3], [4], [5]]);
  assert.deepEqual(layers([], []), []);
});

test("a line that spans layers has a place of its own in each between", () => {
  const { layers: found, lines } = layout([1, 2, 3], [{ parent: 1, child: 2 }, { parent: 2, child: 3 }, { parent: 1, child: 3 }]);
  assert.deepEqual(lines, [[1, 2], [2, 3], [1, -1, 3]]);
  assert.deepEqual(found.map((layer) => [...layer].sort((a, b) => a - b)), [[1], [-1, 2], [3]]);
});

test("siblings stand below their parents, so that lines do not cross", () => {
  const edges = [[1, 11], [2, 10]].map(([parent, child]) => ({ parent: parent!, child: child! }));
  assert.deepEqual(layers([1, 2, 10, 11], edges), [[1, 2], [11, 10]]);
});

test("edges to tasks that are not shown, and circles, do no harm", () => {
  assert.deepEqual(layers([1], [{ parent: 9, child: 1 }]), [[1]]);
  assert.equal(layers([1, 2], [{ parent: 1, child: 2 }, { parent: 2, child: 1 }]).flat().length, 2);
});

test("errors that differ by numbers and hashes only are one", () => {
  const failed = (id: number, error: string, error_code = "handler_error") => ({ id, error, error_code, finished_at: null });
  const found = grouped([failed(1, "shop 7 does not answer\nTraceback"), failed(3, "shop 12 does not answer"), failed(2, "no money")]);
  assert.deepEqual(found.map(({ text, tasks }) => [text, tasks.map(({ id }) => id)]), [["shop 12 does not answer", [3, 1]], ["no money", [2]]]);
  assert.equal(grouped([failed(1, "x"), failed(2, "x", "timeout")]).length, 2);
});

test("policies are said in words", () => {
  const words = Object.fromEntries(
    policies({
      run: { type: "python", handler: "report", chunk: 50 },
      retry: { retries: 2, backoff: "fixed", delay: 10, retry_on: ["TimeoutError"] },
      timeout: 600,
      requires: { app: "shop" },
      expires: 3600,
      keep_failed: 86400,
    }),
  );
  assert.equal(words.Retries, "2 more attempts, each after 10 s, only after TimeoutError");
  assert.equal(words.Timeout, "an attempt is stopped after 10 min");
  assert.equal(words.Placement, "on one agent, with app=shop");
  assert.equal(words.Expiry, "skipped if it has not started 1 h after its time");
  assert.equal(words.Retention, "kept 1 d if it failed");
  assert.equal(words.Chunk, "one call takes up to 50 tasks");
  assert.equal(words.Priority, "normal (5)");
});

test("what a job runs is one line", () => {
  assert.equal(runOf({ run: { type: "command", argv: ["sh", "-c", "echo hi"] } }), "sh -c 'echo hi'");
  assert.equal(runOf({ run: { type: "python", handler: "report", arguments: [{ name: "shop" }, { name: "day" }] } }), "report(shop, day)");
  assert.equal(rateOf({ rate: { count: 100, per: 60, burst: 5, per_key: true } }), "100 starts a minute, up to 5 at once after a pause, for each key");
});
