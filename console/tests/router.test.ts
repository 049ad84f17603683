import assert from "node:assert/strict";
import { test } from "node:test";
import { cli, curl, listCommand, quote } from "../src/core/commands";
import { parse } from "../src/core/filter";
import { link, match, search, withQuery } from "../src/core/router";

test("names in a path are decoded, and a broken one fits nothing", () => {
  assert.deepEqual(match("schedules/:name/at/:time", "schedules/a%2Fb/at/2026"), { name: "a/b", time: "2026" });
  assert.equal(match("tasks/:id", "tasks/"), null);
  assert.equal(match("tasks/:id", "tasks/%"), null);
  assert.equal(match("tasks", "jobs"), null);
});

test("names in a link are encoded, and what is empty is left out of a query", () => {
  assert.equal(link`schedules/${"a/b c"}`, "schedules/a%2Fb%20c");
  assert.equal(withQuery("tasks", { filter: "state:failed job:x", page: null }), "tasks?filter=state%3Afailed+job%3Ax");
  assert.equal(search({ a: [1, 2], b: "", c: false, d: 0 }), "a=1&a=2&d=0");
});

test("a list is given as a command", () => {
  const { params } = parse("state:failed,lost job:my-* late>1s args.shop=7 created>2026-11-17", 0);
  assert.equal(listCommand(params), "mainspring task list --state failed --state lost --job 'my-*' --late-over 1s --since 2026-11-17T00:00:00.000Z --arg shop=7");
  assert.equal(listCommand(parse("17", 0).params), "mainspring task show 17");
  assert.equal(cli("task", "retry", 17), "mainspring task retry 17");
});

test("words for a shell cannot break out", () => {
  assert.equal(quote("it's; rm -rf"), `'it'\\''s; rm -rf'`);
  assert.equal(quote("$(x)"), "'$(x)'");
  assert.equal(curl("POST /tasks/{id}/cancel", { id: 17 }, { kill: true }), `curl -X POST -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d '{"kill":true}' http://localhost/api/v1/tasks/17/cancel`);
});
