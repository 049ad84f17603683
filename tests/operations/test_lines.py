"""NDJSON as it arrives: chunks, line numbers, and each bad line with its own error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.api import bodies
from mainspring.errors import MainspringError
from mainspring.operations.requests import lines
from mainspring.operations.requests.large_json import at_once
from mainspring.operations.requests.lines import Chunk, Lines, Read, read


def chunks_of(*parts: bytes) -> list[Chunk]:
    given = Lines()
    for part in parts:
        given.feed(part)
    given.end()
    found = []
    while given.has_lines:
        found.append(given.take())
    return found


def read_lines(*given: str | bytes, key: str | None = None) -> Read:
    encoded = [line if isinstance(line, bytes) else line.encode() for line in given]
    [chunk] = chunks_of(b"\n".join(encoded))
    return at_once(read(chunk, key))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_however_they_arrive(size: int) -> None:
    whole = b'{"job":"a"}\r\n\n  {"job":"b"}\n{"job":"c"}'
    [chunk] = chunks_of(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert chunk == Chunk(1, [b'{"job":"a"}', None, b'{"job":"b"}', b'{"job":"c"}'])


def test_a_chunk_is_full_with_its_lines_or_its_bytes() -> None:
    assert [(chunk.first, chunk.last) for chunk in chunks_of(b"{}\n" * 2500)] == [(1, 1000), (1001, 2000), (2001, 2500)]
    large = b'"' + b"x" * 400_000 + b'"\n'
    assert [(chunk.first, chunk.last) for chunk in chunks_of(large * 5)] == [(1, 3), (4, 5)]


def test_a_line_that_is_too_long_is_not_kept_and_those_around_it_are_read() -> None:
    given = Lines()
    given.feed(b'{"job":"a"}\n')
    for _ in range(100):
        given.feed(b"x" * 65536)
        assert sum(map(len, given._rest)) <= lines.LONGEST + 65536
    given.feed(b'\n{"job":"b"}\n')
    found = at_once(read(given.take(), None))
    assert [(number, task.job) for number, task in zip(found.numbers, found.tasks, strict=True)] == [(1, "a"), (3, "b")]
    assert "over 1 MB" in found.refused[2].message
    assert found.refused[2].code == "too_large"


BAD: list[tuple[str | bytes, str]] = [
    ('{"job": "a"', "line"),
    ("nothing", "line"),
    ("[]", "line"),
    ('{"jobb": "a"}', "jobb"),
    ("{}", "job"),
    ('{"job": 3}', "job"),
    ('{"job": "a", "job": "b"}', "line"),
    ('{"job": "a", "args": {"x": 1, "x": 2}}', "line"),
    ('{"job": "a", "args": {"x": {"y": 1, "\\u0079": 2}}}', "line"),
    ('{"job": "a", "args": {"x": 9007199254740993}}', "line"),
    ('{"job": "a", "args": {"x": 1e999}}', "line"),
    ('{"job": "a", "args": {"x": NaN}}', "line"),
    ('{"job": "a", "args": {"x": "\\u0000"}}', "line"),
    ('{"job": "a", "args": {"x": "\\ud800"}}', "line"),
    ('{"job": "a", "args": {"x": ' + "[" * 70 + "]" * 70 + "}}", "line"),
    (b'{"job": "a\xff"}', "line"),
    ('{"job": "a"} {"job": "b"}', "line"),
    ('{"job": "a"},{"job": "b"}', "line"),
    ('{"job": "a", "run_at": "2026-11-15T09:00:00"}', "run_at"),
    ('{"job": "a", "if_exists": "maybe"}', "if_exists"),
]


@pytest.mark.parametrize(("line", "field"), BAD)
def test_a_bad_line_is_refused_and_its_neighbours_are_read(line: str | bytes, field: str) -> None:
    found = read_lines('{"job": "before"}', line, '{"job": "behind"}')
    assert [task.job for task in found.tasks] == ["before", "behind"]
    assert (found.numbers, [*found.refused]) == ([1, 3], [2])
    assert found.refused[2].field == field, found.refused[2].message


@pytest.mark.parametrize("line", [line for line, _ in BAD])
async def test_a_line_that_is_not_json_is_refused_with_the_code_of_such_a_body(line: str | bytes) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    refused = read_lines(data).refused[1]
    assert refused.code == await code_of_body(data), refused.message


async def code_of_body(data: bytes) -> str:
    """The code with which the same is refused as a body; `validation` if it is JSON, and no task."""
    try:
        await bodies.as_json(data)
    except MainspringError as error:
        return error.code
    return "validation"


def test_an_object_over_several_lines_is_no_task() -> None:
    found = read_lines('{"job": "a", "args": {"x": [1,', "2]}}", '{"job": "b"}', '{"job": "c"}')
    assert ([task.job for task in found.tasks], [*found.refused]) == (["b", "c"], [1, 2])


@pytest.mark.parametrize(
    "args", [{}, {"a:b": "c:d", "e": [1, 2.5, None, True, {"ü": 'ß\n"'}]}, {"x": "1" * 15}, {"path": "C:\\temp\\user"}]
)
def test_arguments_arrive_as_they_were_sent(args: Any) -> None:
    found = read_lines(*[json.dumps({"job": "a", "args": args}, ensure_ascii=False)] * 2)
    assert [task.args for task in found.tasks] == [args, args]


def test_each_line_gets_a_key_of_its_own_unless_it_has_one() -> None:
    found = read_lines('{"job": "a"}', "", '{"job": "a", "key": "mine"}', '{"job": "a"}', key="K")
    assert [task.key for task in found.tasks] == ["K:1", "mine", "K:4"]


@pytest.mark.parametrize(
    ("lines", "is_plain"),
    [
        (['{"job": "a", "args": {"x": 1}}', '{"job": "a"}'], True),
        (['{"job": "a", "priority": "high"}', '{"job": "a", "priority": "high"}'], True),
        (['{"job": "a"}', '{"job": "b"}'], False),
        (['{"job": "a"}', '{"job": "a", "priority": 3}'], False),
        (['{"job": "a", "priority": "highest"}'], False),
        (['{"job": "a\\u0007"}'], False),
        (['{"job": "a", "delay": 1}'], False),
        (['{"job": "a", "run_at": "2026-11-15T09:00:00Z"}'], False),
        (['{"job": "a", "key": "k"}'], False),
        (['{"job": "a", "after": [1]}'], False),
        (['{"job": "a", "concurrency_key": "k"}'], False),
        (['{"job": "a", "require_agents": true}'], False),
    ],
)
def test_tasks_that_differ_only_in_their_arguments_are_plain(lines: list[str], is_plain: bool) -> None:
    found = read_lines(*lines)
    assert (found.plain is not None) == is_plain
    if found.plain is not None:
        assert [json.loads(args) for args in found.plain.args] == [task.args for task in found.tasks]
    assert read_lines(*lines, key="K").plain is None


@pytest.mark.parametrize("levels", [65, 1_000, 100_000])
@pytest.mark.parametrize("end", ["]", ""], ids=["closed", "cut off"])
def test_great_depth_is_told_with_the_limit(levels: int, end: str) -> None:
    line = '{"job": "a", "args": {"x": ' + "[" * levels + end * levels + "}}"
    found = read_lines('{"job": "before"}', line)
    assert (found.refused[2].code, found.refused[2].message) == (
        "validation",
        "line: JSON nested deeper than 64 levels",
    )


def test_large_lines_are_read_among_small_ones() -> None:
    large = {"rows": [{"id": number, "text": "é"} for number in range(5_000)]}
    given = [{"job": "a", "args": {"n": n}} for n in range(100)]
    given[50] = {"job": "a", "args": large}
    found = read_lines(*map(json.dumps, given))
    assert [task.args for task in found.tasks] == [one["args"] for one in given]
    assert found.plain is not None
    assert json.loads(found.plain.args[50]) == large
