"""Lines: NDJSON, cut into chunks as it arrives, and read as new tasks.

A chunk is full with 1,000 lines or 1 MB. Most lines keep all rules of model/tasks/payload.py at first sight, and are
read by the hundred; others are read one by one, so that each gets its own error. Knows no I/O: reading is a generator
that yields between its steps, as operations/requests/large_json.py.
Next: operations/requests/new_tasks.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from mainspring.errors import MainspringError, Malformed, TooLarge, ValidationError
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.payload import MAX_DEPTH, UNREADABLE
from mainspring.model.words.names import check_name, unknown
from mainspring.model.words.numbers import check_id
from mainspring.operations.requests.large_json import Steps, decode_in_steps
from mainspring.operations.requests.large_values import HUGE, LargeValue, encode_in_steps
from mainspring.operations.requests.new_tasks import NewTask

LINES, BYTES = 1000, 1024 * 1024  # of a chunk
LONGEST = 1024 * 1024  # bytes of a line
AT_ONCE = 32 * 1024  # bytes of lines that are read in one piece: 1 ms

_TOO_LONG = b"(too long)"  # this very object stands for a line that was; a blank line is None
_SUSPECT = re.compile(rb"[0-9]{16}|\\u|[eE][+-]?[0-9]{3}")  # numbers that lose digits, and all that an escape may hide
_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()


class Chunk(NamedTuple):
    first: int  # the number of its first line, from 1
    lines: list[bytes | None]  # without those that are blank

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


class Lines:
    """Bytes → chunks of whole lines."""

    def __init__(self) -> None:
        self._lines: list[bytes | None] = []
        self._first = 1
        self._bytes = 0
        self._rest: list[bytes] = []  # of the line that has not ended
        self._rest_bytes = 0

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    @property
    def is_full(self) -> bool:
        return len(self._lines) >= LINES or self._bytes >= BYTES

    def feed(self, data: bytes) -> None:
        """What is beyond LONGEST of a line is not kept."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._keep(part)
            self._end_line()
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if part and self._rest_bytes <= LONGEST:
            self._rest.append(part)
            self._rest_bytes += len(part)

    def _end_line(self) -> None:
        line = b"".join(self._rest).strip() if self._rest_bytes <= LONGEST else _TOO_LONG
        self._lines.append(line or None)
        self._bytes += len(line)
        self._rest, self._rest_bytes = [], 0

    def end(self) -> None:
        """No more comes: the last line need not end with a line break."""
        if self._rest:
            self._end_line()

    def take(self) -> Chunk:
        """The lines that have ended, as many as a chunk holds."""
        count, size = 0, 0
        while count < min(len(self._lines), LINES) and size < BYTES:
            size += len(self._lines[count] or b"")
            count += 1
        chunk = Chunk(self._first, self._lines[:count])
        self._lines = self._lines[count:]
        self._first += count
        self._bytes -= size
        return chunk


class Plain(NamedTuple):
    """Tasks of one job that differ only in their arguments, which are checked already."""

    job: str
    priority: str | None
    args: list[str]
    batch: int | None


class Read(NamedTuple):
    """A chunk as tasks; each line of a task, and each that is none, by its number."""

    chunk: Chunk
    numbers: list[int]
    tasks: list[NewTask]
    refused: dict[int, MainspringError]
    plain: Plain | None = None  # the same tasks, if they are that plain
    large: Sequence[LargeValue] = ()  # what large lines became

    async def release(self) -> None:
        """The tasks are submitted, or will not be: free large ones in slices."""
        for value in self.large:
            await value.release()


def read(chunk: Chunk, key: str | None) -> Steps[Read]:
    """With `key` the task in line n has the key KEY:n, unless it has one."""
    given = [(chunk.first + place, line) for place, line in enumerate(chunk.lines) if line is not None]
    found: dict[int, NewTask] = {}
    refused: dict[int, MainspringError] = {}
    large: list[LargeValue] = []
    for group in _groups(given):
        tasks = yield from _read_at_once([line for _, line in group])
        if tasks is not None:
            found |= zip((number for number, _ in group), tasks, strict=True)
            continue
        for number, line in group:
            try:
                found[number] = yield from _read_one(line, large)
            except MainspringError as error:
                refused[number] = error.with_traceback(None)  # which would refer to all that was read
            yield
    numbers, tasks = list(found), list(found.values())
    if tasks and not refused and key is None:
        return Read(chunk, numbers, tasks, refused, (yield from _plain(tasks, any_large=bool(large))), large)
    if key is not None:
        tasks = [
            task if task.key is not None else msgspec.structs.replace(task, key=f"{key}:{number}")
            for number, task in zip(numbers, tasks, strict=True)
        ]
    return Read(chunk, numbers, tasks, refused, large=large)


def _groups(given: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Lines that are read in one piece: a large one alone."""
    group: list[tuple[int, bytes]] = []
    size = 0
    for one in given:
        if group and size + len(one[1]) > AT_ONCE:
            yield group
            group, size = [], 0
        group.append(one)
        size += len(one[1])
    if group:
        yield group


def _read_at_once(lines: list[bytes]) -> Steps[list[NewTask] | None]:
    """None: one of them breaks a rule, or may do so, or is large."""
    text = b"\n".join(lines)
    if len(text) > 2 * AT_ONCE:
        return None
    if any(line is _TOO_LONG or line.count(b"{") + line.count(b"[") > MAX_DEPTH for line in lines):
        return None
    try:
        text.decode()
        if _SUSPECT.search(text):
            return None
        yield
        values = _ANY.decode_lines(text)
        # A key that is there twice is read once: without escapes each key and each text has as many colons as before.
        if len(values) != len(lines) or msgspec.json.encode(values).count(b":") != text.count(b":"):
            return None
        yield
        tasks = msgspec.convert(values, list[NewTask])
    except (*UNREADABLE, msgspec.ValidationError):
        return None
    return None if any(task.run_at is not None and task.run_at.tzinfo is None for task in tasks) else tasks


def _plain(tasks: list[NewTask], *, any_large: bool) -> Steps[Plain | None]:
    """What most streams are: one statement inserts such tasks in half the time."""
    job, priority, batch = tasks[0].job, tasks[0].priority, tasks[0].batch
    if not all(
        task.job == job and task.priority == priority and task.batch == batch
        and task.run_at is None and task.delay is None and task.key is None and task.concurrency_key is None
        and not task.after and not task.require_agents and not task.tags
        and task.expires is None and task.timeout is None and task.retries is None and task.stalls_after is None
        for task in tasks
    ):  # fmt: skip
        return None
    try:
        level = None if priority is None else str(priority_level(priority))
        name = check_name(job, field="job")
        number = None if batch is None else check_id(batch, field="batch", of="a batch")
    except MainspringError:  # each line gets its own error
        return None
    yield
    args, size, encode = list[str](), 0, _ENCODER.encode
    for task in tasks:
        data = (yield from encode_in_steps(task.args)) if any_large else encode(task.args)
        args.append(data.decode())
        size += len(data)
        if size > AT_ONCE:
            size = 0
            yield
    return Plain(name, level, args, number)


def _read_one(line: bytes, large: list[LargeValue]) -> Steps[NewTask]:
    if line is _TOO_LONG:
        raise TooLarge("line: over 1 MB; store the data elsewhere and pass a reference", field="line")
    if len(line) >= HUGE:
        large.append(LargeValue())
    try:
        value = yield from decode_in_steps(line.decode(), "line")
    except UnicodeDecodeError:
        raise Malformed("line: not UTF-8", field="line") from None
    except msgspec.DecodeError as error:
        raise Malformed(f"line: not JSON ({str(error)[:200]})", field="line") from None
    if len(line) >= HUGE:
        large[-1].value = value
    try:
        task = msgspec.convert(value, NewTask)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    if task.run_at is not None and task.run_at.tzinfo is None:
        raise ValidationError("run_at: has no offset; write Z or +01:00 behind it", field="run_at")
    return task


def _refused(error: str) -> ValidationError:
    """msgspec's reason in our words."""
    reason, _, path = error.partition(" - at `")
    name = path.removesuffix("`").removeprefix("$").removeprefix(".")
    if "`" in reason and ("unknown field" in reason or "missing required" in reason):
        name = reason.split("`")[1]
        if "missing" not in reason:
            return unknown(name, _MEMBERS, "member")
        return ValidationError(f"{name}: is missing", field=name)
    return ValidationError(f"{name or 'line'}: {reason[:1].lower()}{reason[1:]}", field=name or "line")


_MEMBERS = NewTask.__struct_fields__
