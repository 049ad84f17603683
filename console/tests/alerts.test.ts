import assert from "node:assert/strict";
import { test } from "node:test";
import { mutedBy, subjectLink } from "../src/core/alerts";
import type { MuteView } from "../src/core/schema";

const mute = (id: number, rules: string[], subjects: string[]): MuteView => ({ id, rules, subjects, until: "", note: "", created_by: "", created_at: "" });

test("a mute is of its rules and its subjects; none is all", () => {
  const of = (rule: string, subject: string, ...mutes: MuteView[]) => mutedBy(mutes, { rule, subject })?.id ?? null;
  assert.equal(of("failed", "job:report", mute(1, ["failed"], [])), 1);
  assert.equal(of("failed", "job:report", mute(1, ["late"], [])), null);
  assert.equal(of("failed", "job:report", mute(1, ["failed"], ["job:mail"])), null);
  assert.equal(of("failed", "job:a.b", mute(1, [], ["job:a*"])), 1);
  assert.equal(of("failed", "job:axb", mute(1, [], ["job:a.b"])), null, "a dot is a dot");
  assert.equal(of("x", "job:a", mute(1, ["*"], []), mute(2, ["x"], [])), 2);
});

test("a subject leads to its page", () => {
  assert.equal(subjectLink("job:a/b"), "jobs/a%2Fb");
  assert.equal(subjectLink("schedule:x:y"), "schedules/x%3Ay");
  assert.equal(subjectLink("cluster"), null);
});
