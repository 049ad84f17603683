import assert from "node:assert/strict";
import { test } from "node:test";
import { linksIn, NONE, plain, seen, styleAfter, styled } from "../src/core/ansi";

const ESC = "\x1b";
const cut = (text: string) => styled(text, NONE).pieces.map(({ text, classes }) => [text, classes]);

test("colours and weights become classes of the allow-list", () => {
  assert.deepEqual(cut(`${ESC}[1;31mbad${ESC}[0m fine`), [["bad", "bold fg-1"], [" fine", ""]]);
  assert.deepEqual(cut(`${ESC}[92;44mx${ESC}[39;49my`), [["x", "fg-2 bg-4"], ["y", ""]]);
  assert.deepEqual(cut(`${ESC}[38;5;196mred${ESC}[38;2;10;250;10mgreen`), [["red", "fg-1"], ["green", "fg-2"]]);
  assert.deepEqual(cut(`${ESC}[38:2:250:10:10mx`), [["x", "fg-1"]]);
});

test("nothing but the allow-list comes out, whatever goes in", () => {
  const allowed = /^(?:(?:bold|dim|italic|underline|inverse|strike|fg-[0-7]|bg-[0-7])(?: |$))*$/;
  for (let code = 0; code < 300; code += 1) for (const { classes } of styled(`${ESC}[${code}mx${ESC}[38;5;${code}my${ESC}[${code};${code};${code}mz`, NONE).pieces) assert.ok(allowed.test(classes), classes);
});

test("other sequences are left out, also where they are cut off", () => {
  assert.equal(plain(`a${ESC}[2Kb${ESC}[10;3Hc`), "abc");
  assert.equal(plain(`${ESC}]0;title\x07x${ESC}]8;;https://a.b${ESC}\\link${ESC}]8;;${ESC}\\`), "xlink");
  assert.equal(plain(`x${ESC}[31`), "x");
  assert.equal(plain(`x${ESC}`), "x");
  assert.equal(plain("<b>&amp;</b>"), "<b>&amp;</b>");
});

test("a style holds on the next line", () => {
  const after = styleAfter(`${ESC}[33mbegins`, NONE);
  assert.deepEqual(styled("goes on", after).pieces, [{ text: "goes on", classes: "fg-3" }]);
});

test("a line is seen as a terminal leaves it", () => {
  assert.equal(seen("10 %\r20 %\r30 %"), "30 %");
  assert.equal(seen("windows\r"), "windows");
  assert.equal(seen("a\tb\x00"), "a    b\u2400");
});

test("links are http and https only", () => {
  const found = (text: string) => linksIn(text).map(([from, upto]) => text.slice(from, upto));
  assert.deepEqual(found("see https://a.b/c?d=1, or (http://x.y)."), ["https://a.b/c?d=1", "http://x.y"]);
  assert.deepEqual(found("javascript://alert(1) data://x file:///etc"), []);
});
