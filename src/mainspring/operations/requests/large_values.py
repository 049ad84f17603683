"""Large values: what 1 MB of JSON becomes, encoded and freed in steps, as operations/requests/large_json.py decodes it.

300,000 lists take 10 ms to free in one go, and the garbage collector takes as long to look at them while they are
young. JSON has no cycles: while a large value is held, the collector looks for them less often.
Next: operations/requests/new_tasks.py
"""

from __future__ import annotations

import gc
from typing import Any

import msgspec

from mainspring.operations.parts.slices import in_slices
from mainspring.operations.requests.large_json import Steps

HUGE = 128 * 1024  # bytes of JSON from which its value is held and released
VALUES = 1000  # that are encoded or freed in a step
SELDOM = 5_000_000  # new objects between two collections; not never: what forgets to release may itself be garbage

_encode = msgspec.json.encode


class LargeValue:
    """Holds a value from before it is made until `release`; one that is forgotten is released in one go."""

    def __init__(self) -> None:
        self.value: Any = None
        self._is_held = True
        _collector.rest()

    async def release(self) -> None:
        """Take the value apart. Whatever else refers to its lists and objects finds them empty."""
        value, self.value = self.value, None
        try:
            await in_slices(take_apart(value))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            _collector.resume()

    def __del__(self) -> None:
        self._let_go()


class _Collector:
    """Lets the garbage collector rest as long as anybody wants it to."""

    def __init__(self) -> None:
        self._resting = 0
        self._usual = gc.get_threshold()

    def rest(self) -> None:
        self._resting += 1
        if self._resting == 1 and gc.get_threshold()[0] != SELDOM:
            self._usual = gc.get_threshold()
            if self._usual[0] > 0:  # else it is off
                gc.set_threshold(SELDOM, *self._usual[1:])

    def resume(self) -> None:
        self._resting -= 1
        if self._resting == 0 and gc.get_threshold()[0] == SELDOM:
            gc.set_threshold(*self._usual)


_collector = _Collector()


def take_apart(value: Any) -> Steps[None]:
    """Empty all lists and objects in it, the innermost first, and so free them a few at a time."""
    open, freed = [value], 0
    while open:
        container = open[-1]
        if not container or not _is_container(container):
            open.pop()
            continue
        child = container.popitem()[1] if type(container) is dict else container.pop()
        size = count(child)
        freed += size
        if size > VALUES:
            open.append(child)
        del child
        if freed > VALUES:
            freed = 0
            yield


def encode_in_steps(value: Any) -> Steps[bytes]:
    """As msgspec.json.encode."""
    parts: list[bytes] = []
    yield from _encode_into(parts, value)
    return b"".join(parts)


def _encode_into(parts: list[bytes], value: Any) -> Steps[None]:
    """Members that are small are encoded many at a time."""
    if count(value) <= VALUES:
        parts.append(_encode(value))
        return
    is_dict = type(value) is dict
    before = b"{" if is_dict else b"["  # stands before the next member
    run: list[Any] = []
    size = 0

    def flush() -> None:
        nonlocal before, run, size
        if run:
            parts.append(before + _encode(dict(run) if is_dict else run)[1:-1])
            before, run, size = b",", [], 0

    for member in value.items() if is_dict else value:
        child = member[1] if is_dict else member
        weight = count(child)
        if weight > VALUES:
            flush()
            parts.append(before + _encode(member[0]) + b":" if is_dict else before)
            before = b","
            yield from _encode_into(parts, child)
        else:
            run.append(member)
            size += weight
            if size > VALUES:
                flush()
                yield
    flush()
    parts.append(b"}" if is_dict else b"]")


def count(value: Any) -> int:
    """How many values it holds, itself included; of more than VALUES it stops counting."""
    if not _is_container(value):
        return 1
    open, counted = [value], 1
    while open and counted <= VALUES:
        container = open.pop()
        counted += len(container)
        if counted <= VALUES:
            open += filter(_is_container, container.values() if type(container) is dict else container)
    return counted


def _is_container(value: Any) -> bool:
    return type(value) is dict or type(value) is list
