import assert from "node:assert/strict";
import { test } from "node:test";
import { Output, textOf } from "../src/core/output";
import type { PieceView } from "../src/core/schema";

const piece = (number: number, text: string, given: Partial<PieceView> = {}): PieceView => ({ token: 5, number, stream: "stdout", at: "2026-11-17T09:00:00Z", text, base64: null, ...given });
const texts = (output: Output) => output.lines.map((line) => (line.stream === "attempt" ? `-- ${line.token}` : textOf(line)));

test("lines go on across pieces, each stream in its own", () => {
  const output = new Output();
  output.add([piece(1, "one\ntw"), piece(2, "o\nthree"), piece(3, "oops\n", { stream: "stderr" }), piece(4, " more\n")]);
  assert.deepEqual(texts(output), ["one", "two", "three", "oops", " more"]);
  assert.deepEqual(output.lines.map((line) => line.stream), ["stdout", "stdout", "stdout", "stderr", "stdout"]);
});

test("empty lines are lines", () => {
  const output = new Output();
  output.add([piece(1, "a\n\n\nb\n")]);
  assert.deepEqual(texts(output), ["a", "", "", "b"]);
});

test("a piece that comes twice is there once", () => {
  const output = new Output();
  output.add([piece(1, "a\n"), piece(2, "b\n")]);
  output.add([piece(2, "b\n"), piece(1, "a\n"), piece(3, "c\n")]);
  assert.deepEqual(texts(output), ["a", "b", "c"]);
  assert.equal(output.last, "5.3");
});

test("attempts are marked", () => {
  const output = new Output();
  output.add([piece(1, "a\n"), piece(1, "b\n", { token: 9 })]);
  assert.deepEqual(texts(output), ["a", "-- 9", "b"]);
});

test("a character that is cut between two pieces is whole again", () => {
  const output = new Output();
  const [head, tail] = [btoa("\xe2\x82"), btoa("\xac\n")];
  output.add([piece(1, "", { text: null, base64: head }), piece(2, "", { text: null, base64: tail })]);
  assert.deepEqual(texts(output), ["€"]);
});

test("the window is bounded: the oldest falls out, and it is said", () => {
  const output = new Output(10_000);
  let dropped = 0;
  for (let number = 1; number <= 500; number += 1) dropped += output.add([piece(number, `line ${number}\n`)]).length;
  assert.ok(output.size <= 10_000 && output.hasEarlier);
  assert.equal(dropped + output.lines.length, 500);
  assert.equal(textOf(output.lines.at(-1)!), "line 500");
});

test("a million empty lines are bounded too", () => {
  const output = new Output();
  for (let number = 1; number <= 100; number += 1) output.add([piece(number, "\n".repeat(10_000))]);
  assert.ok(output.lines.length < 150_000);
});

test("a line without an end is broken", () => {
  const output = new Output();
  output.add([piece(1, "x".repeat(50_000)), piece(2, "y".repeat(50_000))]);
  assert.ok(output.lines.every((line) => line.raw.length <= 8_000));
  assert.equal(output.lines.reduce((sum, line) => sum + line.raw.length, 0), 100_000);
});

test("what is earlier comes before, and what is too much falls out at the end", () => {
  const output = new Output(4_000);
  const pieces = Array.from({ length: 100 }, (_, place) => piece(place + 1, `line ${place + 1}\n`));
  output.add(pieces.slice(60));
  const first = output.lines[0]?.key;
  const came = output.addEarlier(pieces.slice(20, 60));
  assert.equal(came, 40);
  assert.equal(output.lines[came]?.key, first, "lines keep their names");
  assert.equal(output.first, "5.21");
  assert.ok(!output.hasLater);
  output.addEarlier(pieces.slice(0, 20));
  assert.ok(output.hasLater && output.size <= 4_000);
  assert.equal(textOf(output.lines[0]!), "line 1");
  output.add(pieces); // reading on
  assert.equal(output.last, "5.100");
});

test("a line that was cut where the window began is one again", () => {
  const output = new Output();
  output.add([piece(2, "ond\nthird\n")]);
  output.addEarlier([piece(1, "first\nsec")]);
  assert.deepEqual(texts(output), ["first", "second", "third"]);
});
