"""Every public function of the SDK, called with values of every wrong kind: the errors are ours, short and clear.

Each test takes one parameter and tries all values, alone and beside what it may need. A value that is accepted is fine.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring import App, CancelTask, CurrentTask, Fail, Job, MainspringError, RetryAfter, Snooze, Task, testing
from mainspring.agent.attempt import Attempt
from mainspring.errors import MAX_MESSAGE, shown
from mainspring.model.schedules.define_schedule import KINDS, OF_DAEMONS, When
from mainspring.model.tasks.define_job import Options
from mainspring.sdk.testing.run import Run

SECONDS = 20  # for all values of one parameter


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no words")

    __str__ = __repr__


class Contrary:
    """Compares and tests as nothing else does, like an array of numbers."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("not comparable")

    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")

    __hash__ = None  # type: ignore[assignment]


class BrokenError(Exception):
    pass


class Broken:
    """A sequence and a mapping, by its methods, of which none works."""

    def fail(self, *_: object) -> Any:
        raise BrokenError

    __iter__ = keys = __len__ = __getitem__ = fail


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


PLAIN: list[Any] = [
    *(None, True, False, ..., NotImplemented, object(), int, ValueError, lambda: 1, asyncio.sleep),
    *(0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 10**5000),
    *(0.5, -0.5, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *(1j, Decimal("NaN"), Decimal("1e9999"), Fraction(1, 3), uuid.UUID(int=1)),
    *("", " ", "x", "x" * 100_000, "a\0b", "\ud800", "\u202ex", "{", "-", "é", "１"),
    *(b"x", b"\xff" * 10, bytearray(b"x"), memoryview(b"x"), Path("/x")),
    *(timedelta.max, timedelta.min, timedelta(microseconds=1)),
    *(datetime.min, datetime.max, datetime.max.replace(tzinfo=UTC), date.max),
    *([], [None], ["x"], [1], [[]], ["x" * 100_000], ["a\0b"], ["\ud800"], [[[[[[[1]]]]]]]),
    *((), ("x", 1), {}, {"x": 1}, {"x": None}, {1: 2}, {None: "x"}, {"a\0": "b"}),
    *(set(), {"x"}, frozenset({1}), range(10**9), SimpleNamespace(execute=1)),
    *(Unprintable(), [Unprintable()], {"x": Unprintable()}, Contrary(), [Contrary()], Broken()),
]
MADE: list[Callable[[], Any]] = [
    lambda: itertools.repeat("x"),  # endless
    lambda: iter(["x"]),
    lambda: nested(10_000, lambda value: [value]),
    lambda: nested(10_000, lambda value: {"x": value}),
    cyclic,
]
COUNT = len(PLAIN) + len(MADE)


def values() -> Iterator[Any]:
    yield from PLAIN
    for make in MADE:
        yield make()


@contextmanager
def bounded() -> Iterator[None]:
    """An endless loop fails the test."""

    def ended(*_: object) -> None:
        raise AssertionError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refuse_all(call: Callable[[Any], Any]) -> int:
    """Call with each of the values; returns how many were refused, by an error of ours that is short."""
    refused = 0
    messages: list[str] = []
    with bounded():
        for value in values():
            try:
                call(value)
            except BrokenError:
                refused += 1  # an iterator of the caller's: so is its error
            except MainspringError as error:
                refused += 1
                messages.append(error.message)
            except Exception as error:
                raise AssertionError(
                    f"{type(value).__name__} {shown(value)}: {type(error).__name__}: {error}"
                ) from error
    assert all(len(message.encode()) > 0 and len(message) <= MAX_MESSAGE for message in messages)
    return refused


def hashable(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Skips values that no dict can have as a key."""

    def checked(value: Any) -> None:
        try:
            hash(value)
        except TypeError:
            return
        call(value)

    return checked


async def handler(day: str = "", number: int = 1, anything: Any = None) -> None: ...


def job_of(app: App) -> Job[..., Any]:
    return app.job(name="job")(handler)


# ── defining ────────────────────────────────────────────────────────────────────────────────────

OF_LIMITS = ("rate", "burst", "rate_per", "concurrency_key", "concurrency_limit")
WITH_LIMITS = {"rate": "1/s", "concurrency_key": "k", "rate_per": "key"}
LONE = (*KINDS, "replicas")


def beside(option: str) -> dict[str, Any]:
    """What an option needs beside it, so that it is looked at."""
    if option in OF_LIMITS:
        return WITH_LIMITS
    if option in OF_DAEMONS or option == "health":
        return {"daemon": True}
    return {"every": "1h"} if option in {*When.__annotations__, "args"} - {*LONE} else {}


@pytest.mark.parametrize("option", sorted({*Options.__annotations__, *When.__annotations__, "args", "name"}))
def test_an_option_of_a_job(option: str) -> None:
    call: Any = lambda value: App().job(**{**beside(option), option: value})(handler)  # noqa: E731
    assert refuse_all(call) > 10


@pytest.mark.parametrize(
    "parameter", ["name", "argv", "cwd", "env", "stdin", "user", "limits", "python", "warm", "shell"]
)
def test_a_parameter_of_command(parameter: str) -> None:
    call: Any = lambda value: App().command(**{"name": "x", "argv": ["true"], parameter: value})  # noqa: E731
    assert refuse_all(call) > 10
    if parameter == "warm":
        call = lambda value: App().command("x", ["a.py"], python=True, warm=value)  # noqa: E731
        assert refuse_all(call) > 10


@pytest.mark.parametrize(
    "call",
    [
        lambda app, value: app.command("x", [value]),
        lambda app, value: app.command("x", ["true", value]),
        lambda app, value: app.command("x", value, shell=True),
        lambda app, value: app.command("x", ["a.py"], python=True, warm=[value]),
        lambda app, value: app.command("x", ["true"], env={"A": value}),
        lambda app, value: app.command("x", ["true"], limits={"memory": value}),
        lambda app, value: app.command("x", ["true"], limits={"cpu": value}),
        lambda app, value: app.command("x", ["true"], limits={"files": value}),
        lambda app, value: app.http("x", "GET", "http://x", headers={"A": value}),
        lambda app, value: app.http("x", "GET", "http://x", expect=[value]),
        lambda app, value: app.http("x", "GET", "http://x", json=[value]),
        lambda app, value: app.command("x", ["true"], health={"command": value}, daemon=True),
        lambda app, value: app.command("x", ["true"], health={"command": ["true", value]}, daemon=True),
        lambda app, value: app.command("x", ["true"], health={"http": value}, daemon=True),
        lambda app, value: app.command("x", ["true"], health={"http": "http://x", "every": value}, daemon=True),
        lambda app, value: app.command("x", ["true"], health={"http": "http://x", "failures": value}, daemon=True),
        lambda app, value: app.command("x", ["true"], requires={"zone": value}),
        lambda app, value: app.command("x", ["true"], needs={"gpu": value}),
        lambda app, value: app.command("x", ["true"], prefer={"zone": value}),
        lambda app, value: app.command("x", ["true"], retries=1, backoff=[value]),
        lambda app, value: app.command("x", ["true"], retries=1, retry_on=[value]),
        lambda app, value: app.command("x", ["true"], every="1h", calendars=[value]),
        lambda app, value: app.command("x", ["true"], every="1h", scopes=[value]),
        lambda app, value: app.command("x", ["true"], every="1h", args={"x": value}),
        lambda app, value: app.calendar(value, ["sun"]),
        lambda app, value: app.calendar("x", value),
        lambda app, value: app.calendar("x", [value]),
        lambda app, value: app.on_failure(value),
        lambda app, value: app.while_open(value),
        lambda app, value: app.job(value),
        lambda app, value: app.job()(value),
        lambda app, value: app[value],
        lambda app, value: app.full_name(value),
        lambda app, value: app.task(value),
        lambda app, value: job_of(app).task(value),
        lambda app, value: job_of(app).schedule(value, every="1h"),
        lambda app, value: job_of(app).schedule("x", every="1h", args=value),
        lambda app, value: job_of(app).using(after=[value]),
    ],
)  # fmt: skip
def test_a_value_within_another(call: Callable[[App, Any], Any]) -> None:
    assert refuse_all(lambda value: call(App(), value)) > 10


@pytest.mark.parametrize(
    "call",
    [
        lambda app, value: app.command("x", ["true"], env={value: "x"}),
        lambda app, value: app.command("x", ["true"], limits={value: "1MB"}),
        lambda app, value: app.command("x", ["true"], requires={value: "x"}),
        lambda app, value: app.command("x", ["true"], needs={value: 1}),
        lambda app, value: app.command("x", ["true"], health={value: 1, "http": "http://x"}, daemon=True),
        lambda app, value: app.command("x", ["true"], every="1h", args={value: 1}),
        lambda app, value: app.http("x", "GET", "http://x", headers={value: "x"}),
    ],
)
def test_a_key_of_a_mapping(call: Callable[[App, Any], Any]) -> None:
    assert refuse_all(hashable(lambda value: call(App(), value))) > 5


@pytest.mark.parametrize("parameter", ["name", "method", "url", "headers", "body", "expect", "redirects", "json"])
def test_a_parameter_of_http(parameter: str) -> None:
    call: Any = lambda value: App().http(**{"name": "x", "method": "GET", "url": "http://x", parameter: value})  # noqa: E731
    assert refuse_all(call) > 10


@pytest.mark.parametrize("parameter", ["name", "version", "prefix"])
def test_a_parameter_of_an_application(parameter: str) -> None:
    call: Any = lambda value: App(**{parameter: value})  # noqa: E731
    assert refuse_all(call) > 10


# ── submitting ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "option", ["delay", "run_at", "priority", "key", "key_ttl", "after", "concurrency_key", "conn"]
)
def test_an_option_of_a_submission(option: str) -> None:
    call: Any = lambda value: job_of(App()).using(**{option: value})  # noqa: E731
    assert refuse_all(call) > 10


@pytest.mark.parametrize(
    "bind",
    [
        lambda job, value: job._bind((), {"anything": value}),
        lambda job, value: job._bind(("mon", 1, value), {}),
        lambda job, value: job._many(value),
        lambda job, value: job._many([value]),
        lambda job, value: job._many([("mon", 1, value)]),
        lambda job, value: job._many([{"anything": value}]),
        lambda job, value: job._many([job.call(anything=value)]),
    ],
)
def test_arguments_of_a_task(bind: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.sdk.job.MAX_CALLS", 1000)
    assert refuse_all(lambda value: bind(job_of(App()), value)) > 5


async def test_options_of_a_handle_on_a_task(app: App) -> None:
    job = job_of(app)
    async with app:
        task = await job.using(delay="1h").enqueue()
        run = Run(app, app.database)
        for value in values():
            calls: list[Any] = [asyncio.wait_for(task.result(timeout=value), 0.01), run.until_idle(value)]
            if not isinstance(value, bool):
                calls.append(task.cancel(kill=value))
            if type(value) not in (int, float, timedelta):
                calls.append(run.advance(value))  # of those it takes some
            for call in calls:
                with suppress(MainspringError, TimeoutError):
                    await call
        assert (await task.status()).state == "pending"


# ── inside a handler ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [RetryAfter, Snooze])
def test_a_delay_that_a_handler_asks_for(make: Callable[[Any], Any]) -> None:
    assert refuse_all(make) > 10


def test_a_reason_that_a_handler_gives() -> None:
    assert refuse_all(CancelTask) == refuse_all(Fail) == 0


def test_progress_and_checkpoint() -> None:
    attempt = cast(Attempt, SimpleNamespace(note=lambda *_: None, armed=SimpleNamespace(checkpoint=None)))
    assert refuse_all(CurrentTask(attempt).progress) > 10
    assert refuse_all(lambda value: setattr(CurrentTask(attempt), "checkpoint", value)) > 10


def test_applications_for_tests() -> None:
    async def run(value: Any) -> None:
        async with testing.running(value):
            raise AssertionError("it is no application")

    assert refuse_all(lambda value: asyncio.run(run(value))) == COUNT


def test_a_handle_prints_itself() -> None:
    assert repr(Task(App(), 7)) == "<Task 7>"
