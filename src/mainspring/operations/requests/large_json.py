"""Large JSON: decoded and checked in steps of a fraction of a millisecond, for an event loop that yields between them.

A thread would not do: one call of a decoder in C keeps the interpreter's lock until it has read all of its text, 80 ms
for 1 MB of short lists. So one pass over strings and brackets finds where the text can be cut, and each part is decoded
by itself, the innermost first. Knows no I/O: functions here are generators that yield between two steps.
Next: model/tasks/payload.py
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.tasks.payload import MAX_DEPTH, check_nul, check_value, decode_part, too_deep
from mainspring.model.words.numbers import is_exact

T = TypeVar("T")
Steps = Generator[None, None, T]

PART = 8 * 1024  # characters that are decoded at once: 2 ms, if they are all brackets
WINDOW = 32 * 1024  # characters that are searched at once
TOKENS = 500  # strings and brackets that are looked at in a step
ITEMS = 1_000  # values that are looked at in a step
AT_ONCE = 1024 * 1024  # characters whose syntax is checked at once, in 2 ms; in a longer text, part by part

# A string or a bracket. Group 1 is there if the string ends; nothing is tried twice where it does not.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:(")|)|[\[\]{}]', re.DOTALL)
_REST_OF_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*(?:(")|)', re.DOTALL)
# What is no escape, a pair of surrogates, half of one (group 1), and other escapes.
_ESCAPES = re.compile(r"[^\\]+|\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]|(\\u[dD][89a-fA-F])|\\.?", re.DOTALL)
_SPACE = " \t\n\r"  # that may stand between values
_PLACEHOLDER = "NaN"  # for a part that is decoded already: it is no JSON, so the text cannot hold it


def at_once(steps: Steps[T]) -> T:
    """What it returns, without a rest between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: T = ended.value
            return found


def decode_in_steps(text: str, what: str, at_once: int = AT_ONCE) -> Steps[Any]:
    """As payload.decode; msgspec.DecodeError if it is not JSON, which need not be found before some of it was read.

    A text of more than `at_once` characters must be an object or a list.
    """
    if len(text) > at_once:
        return (yield from _Decoder(text, what, is_checked=False).run())
    try:
        msgspec.json.decode(text, type=msgspec.Raw)  # checks the syntax and makes nothing: 2 ms for 1 MB
    except RecursionError:
        raise too_deep(what) from None
    except msgspec.DecodeError:
        yield from check_unreadable(text, what)
        raise
    yield
    return (yield from _Decoder(text, what, is_checked=True).run())


def check_unreadable(text: str, what: str) -> Steps[None]:
    """Of what is no JSON, or no decoder reads: ValidationError if it is for a rule that it breaks."""
    if "\\ud" in text or "\\uD" in text:
        yield from _check_surrogates(text, what)
    yield from _check_depth(text, what)


def _check_surrogates(text: str, what: str) -> Steps[None]:
    for number, found in enumerate(_ESCAPES.finditer(text)):
        if found.lastindex is not None:
            raise ValidationError(f"{what}: text must not hold half a surrogate pair; it is no character", field=what)
        if number % TOKENS == 0:
            yield


def _check_depth(text: str, what: str) -> Steps[None]:
    depth = 0
    for number, (start, end) in enumerate(_tokens(text)):
        character = text[start]
        if character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise too_deep(what)
        elif character in "]}":
            depth -= 1
        if number % TOKENS == 0 or end - start > PART:
            yield


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    """Where each string and each bracket begins and ends; what is longer than a window comes in several parts.

    Where a window ends with something else, that is a token, too.
    """
    at, string = 0, None
    while at < len(text):
        limit = at + WINDOW
        if string is not None:
            rest = _REST_OF_STRING.match(text, at, limit)
            assert rest is not None  # it matches nothing, too
            if rest.end() == at:
                return  # a backslash is the last character
            at = rest.end()
            yield string, at
            string = string if rest.lastindex is None else None
            continue
        for found in _TOKEN.finditer(text, at, limit):
            start, at = found.span()
            yield start, at
            if found.lastindex is None and text[start] == '"':
                string = start  # it does not end within the window
                break
        else:
            limit = min(limit, len(text))
            if at < limit:
                yield at, limit
            at = limit


class _Container:
    """A list or an object that is being read."""

    __slots__ = ("cuts", "decoded", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.cuts = [start + 1]  # where its parts begin: behind its bracket, and behind some of its commas
        self.decoded: list[tuple[int, int, Any]] = []  # containers in it that were too large for a part


class _Decoder:
    """Reads JSON. If its syntax `is_checked`, that need not be done again.

    Else it is checked here: each part by its decoder, and between parts what holds them together, brackets and commas.
    """

    def __init__(self, text: str, what: str, *, is_checked: bool) -> None:
        self._text = text
        self._what = what
        self._is_checked = is_checked

    def run(self) -> Steps[Any]:
        text, what = self._text, self._what
        open: list[_Container] = []
        whole = _Container(-1)
        read_to = 0  # the end of the token before
        for number, (start, end) in enumerate(_tokens(text)):
            character = text[start]
            if open and end - open[-1].cuts[-1] > PART:
                self._cut(open[-1], read_to, start if character in '"[]{}' else end)
            read_to = end
            if character in "[{":
                if len(open) == MAX_DEPTH:
                    raise too_deep(what)
                open.append(_Container(start))
            elif character in "]}":
                if not open or text[open[-1].start] + character not in ("[]", "{}"):
                    raise msgspec.DecodeError(f"JSON is malformed: unexpected {character} (character {start})")
                closed = open.pop()
                if end - closed.start > PART:
                    value = yield from self._decoded(closed, end, depth=len(open) + 1)
                    (open[-1] if open else whole).decoded.append((closed.start, end, value))
            if number % TOKENS == 0 or end - start > PART:
                yield
        if open:
            raise msgspec.DecodeError("Input data was truncated")
        if not whole.decoded:
            if not self._is_checked and len(text := text.strip()) > PART:
                raise msgspec.DecodeError("JSON is malformed: neither an object nor a list")
            return (yield from _part([text], what, 1))
        start, end, value = whole.decoded[0]
        if not self._is_checked and (text[:start] + text[end:]).strip(_SPACE):
            raise msgspec.DecodeError("JSON is malformed: trailing characters")
        return value

    def _cut(self, container: _Container, start: int, end: int) -> None:
        """Between `start` and `end` is no string and no bracket: commas there are those of the container."""
        while end - container.cuts[-1] > PART:
            comma = self._text.find(",", max(start, container.cuts[-1] + PART), end)
            if comma < 0:
                return
            container.cuts.append(comma + 1)

    def _decoded(self, container: _Container, end: int, depth: int) -> Steps[Any]:
        is_list = self._text[container.start] == "["
        items: list[Any] = []
        members: dict[str, Any] = {}
        inner = iter(container.decoded)
        following = next(inner, None)
        for place, start in enumerate(container.cuts):
            is_last = place + 1 == len(container.cuts)
            until = end - 1 if is_last else container.cuts[place + 1] - 1
            pieces, values, at = [], [], start
            while following is not None and following[0] < until:
                pieces.append(self._text[at : following[0]])
                values.append(following[2])
                at = following[1]
                following = next(inner, None)
            pieces.append(self._text[at:until])
            if len(container.cuts) > 1 and not values and not pieces[0].strip(_SPACE):
                raise msgspec.DecodeError(f"JSON is malformed: a comma too much (character {until})")
            part = yield from _part(pieces, self._what, depth, values, "[]" if is_list else "{}")
            if is_list:
                items += part
            else:
                repeated = members.keys() & part.keys()
                if repeated:
                    raise ValidationError(
                        f"{self._what}: the key {shown(min(repeated))} appears twice", field=self._what
                    )
                members |= part
            yield
        return items if is_list else members


def _part(pieces: list[str], what: str, depth: int, inner: Sequence[Any] = (), brackets: str = "") -> Steps[Any]:
    """What stands in the text. Between two pieces there is one of the inner values, which were checked already."""
    text = "null".join(pieces).join(brackets) if brackets else pieces[0]
    msgspec.json.decode(text)  # refuses numbers that are too large, which the next one reads as infinity
    yield
    value = decode_part(text, what)
    yield
    check_value(value, what, depth)
    check_nul(text, what)
    return decode_part(_PLACEHOLDER.join(pieces).join(brackets), what, inner) if inner else value


# ── values ──────────────────────────────────────────────────────────────────────────────────────


def is_plain_in_steps(value: Any) -> Steps[bool]:
    """Whether it is made of JSON's own types and keeps the rules: payload.encode would take it as it is."""
    level, seen = [value], 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            is_dict = type(container) is dict
            if not is_dict and type(container) is not list:
                return False
            seen += 1
            if seen % ITEMS == 0:
                yield
            for item in container:
                if is_dict:
                    if type(item) is not str:
                        return False
                    item = container[item]
                kind = type(item)
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is int:
                    if not is_exact(item):
                        return False
                elif kind is float:
                    if item - item != 0.0:  # not finite
                        return False
                elif kind is not str and kind is not bool and item is not None:
                    return False
                seen += 1
                if seen % ITEMS == 0:
                    yield
        if not below:
            return True
        level = below
        yield
    return False
