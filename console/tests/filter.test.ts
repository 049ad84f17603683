import assert from "node:assert/strict";
import { test } from "node:test";
import { asFilter, duration, fits, instantOf, lastWord, like, parse, quoted, toggle, words } from "../src/core/filter";
import type { TaskSummary } from "../src/core/schema";

const NOW = Date.parse("2026-11-17T12:00:00Z");
const params = (text: string, zone = "UTC") => parse(text, NOW, zone).params;

test("words are split at spaces but not within quotes", () => {
  assert.deepEqual(words('state:failed  job:"my report" args.shop=7'), ["state:failed", "job:my report", "args.shop=7"]);
  assert.deepEqual(words('job:"unfinished wor'), ["job:unfinished wor"]);
  assert.deepEqual(words("  "), []);
});

test("words become the parameters of the API", () => {
  assert.deepEqual(params("state:failed,lost job:report late>1s"), { state: ["failed", "lost"], job: ["report"], late_over: ["1s"] });
  assert.deepEqual(params("state:failed state:lost"), { state: ["failed", "lost"] });
  assert.deepEqual(params("#17 18"), { id: ["17", "18"] });
});

test("arguments keep their type, and signs within values are values", () => {
  assert.deepEqual(JSON.parse(String(params("args.shop=7 args.ok:true args.name=x=y args.deep.er=a:b").args)), { shop: 7, ok: true, name: "x=y", "deep.er": "a:b" });
});

test("what cannot be read is said, and what is being typed is not", () => {
  assert.equal(parse("report", NOW).faults.length, 1);
  assert.equal(parse("colour:red", NOW).faults.length, 1);
  assert.equal(parse("state>failed", NOW).faults.length, 1);
  assert.equal(parse("late<1s", NOW).faults.length, 1);
  assert.equal(parse("created>yesterday", NOW).faults.length, 1);
  assert.deepEqual(parse("state: late>", NOW).faults, []);
});

test("times are spans, clock times of the zone, or instants", () => {
  assert.equal(instantOf("2h", NOW, "UTC"), NOW - 7_200_000);
  assert.equal(instantOf("+30m", NOW, "UTC"), NOW + 1_800_000);
  assert.equal(instantOf("09:00", NOW, "Europe/Berlin"), Date.parse("2026-11-17T08:00:00Z"));
  assert.equal(instantOf("2026-07-01", NOW, "Europe/Berlin"), Date.parse("2026-06-30T22:00:00Z"));
  assert.equal(instantOf("2026-07-01T10:30:15+05:30", NOW, "UTC"), Date.parse("2026-07-01T05:00:15Z"));
  assert.equal(instantOf("soon", NOW, "UTC"), null);
  assert.equal(instantOf("", NOW, "UTC"), null);
  assert.deepEqual(params("due<2026-11-18"), { run_before: ["2026-11-18T00:00:00.000Z"] });
});

test("half a state is being typed, and another word is a fault", () => {
  assert.deepEqual(parse("state:failed,lo job:x", NOW).params, { state: ["failed"], job: ["x"] });
  assert.deepEqual(parse("state:failed,lo", NOW).faults, []);
  assert.deepEqual(parse("state:faild", NOW), { params: {}, faults: ["“faild” is no state"], ids: [] });
  assert.deepEqual(params("job:a,b"), { job: ["a", "b"] });
});

test("clock times are right on the day that clocks change", () => {
  assert.equal(instantOf("2026-10-25T12:00", NOW, "Europe/Berlin"), Date.parse("2026-10-25T11:00:00Z"));
  assert.equal(instantOf("2026-03-29T04:00", NOW, "Europe/Berlin"), Date.parse("2026-03-29T02:00:00Z"));
});

test("a word is added, taken out, and quoted where it must be", () => {
  assert.equal(toggle("", "state", "failed"), "state:failed");
  assert.equal(toggle("job:x state:failed", "state", "lost"), "state:failed,lost job:x");
  assert.equal(toggle("state:failed,lost", "state", "failed"), "state:lost");
  assert.equal(toggle("state:failed", "state", "failed"), "");
  assert.equal(toggle('job:"my report"', "state", "lost"), 'state:lost job:"my report"');
  assert.equal(quoted("job:my report"), 'job:"my report"');
});

test("the last word is what is completed", () => {
  assert.deepEqual(lastWord("state:failed jo"), ["state:failed ", "jo"]);
  assert.deepEqual(lastWord('job:"my rep'), ["", 'job:"my rep']);
  assert.deepEqual(lastWord("state:failed "), ["state:failed ", ""]);
});

test("an action gets numbers, objects and single instants", () => {
  assert.deepEqual(asFilter(params("#17 batch:3 job:x late>1s args.a=1")), { id: [17], batch: [3], job: ["x"], late_over: "1s", args: { a: 1 } });
});

const task = (given: Partial<TaskSummary>): TaskSummary =>
  ({ id: 1, job: "report", state: "pending", priority: 5, run_at: "2026-11-17T11:00:00Z", created_at: "2026-11-17T11:00:00Z", started_at: null, finished_at: null, lateness_ms: null, error_code: null, key: null, concurrency_key: null, schedule: null, scope: null, parent: null, batch: null, agent: null, only_on: null, tags: [], ...given }) as TaskSummary;

test("a task that changed fits the filter or does not", () => {
  const fit = (text: string, given: Partial<TaskSummary>) => fits(task(given), params(text));
  assert.ok(fit("", {}));
  assert.ok(fit("state:pending,failed", {}));
  assert.ok(!fit("state:failed", {}));
  assert.ok(fit("job:rep*", {}) && !fit("job:rep", {}) && !fit("job:x*", {}));
  assert.ok(fit("priority:normal", {}) && fit("priority:5", {}) && !fit("priority:high", {}));
  assert.ok(fit("tag:nightly", { tags: ["nightly"] }) && !fit("tag:nightly", {}));
  assert.ok(fit("late>1s", { lateness_ms: 1001 }) && !fit("late>1s", { lateness_ms: 1000 }));
  assert.ok(fit("created>2h", {}) && !fit("created>30m", {}) && !fit("finished>2h", {}));
  assert.ok(!fit("schedule:daily", {}) && fit("schedule:daily", { schedule: "daily" }));
  assert.ok(!fit("", { parent: 7 }) && fit("parent:7", { parent: 7 }), "runs of a broadcast are left out else");
  assert.ok(fit("args.shop=7", {}), "it may: arguments are not told");
});

test("patterns take * and nothing else", () => {
  assert.ok(like("a*c", "abc") && like("*", "") && !like("a.c", "abc") && !like("a*", "ba"));
  assert.equal(duration("250ms"), 0.25);
  assert.equal(duration("1h"), 3600);
  assert.equal(duration("x"), 0);
});
