"""Defining jobs: what `@app.job` and `app.command` take, and what they refuse by name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import mainspring
from mainspring import App, JobNotFound, ValidationError
from mainspring.model.tasks.jobs import Definition, Placement
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import jobs


async def definition(app: App, conn: Connection, name: str) -> Definition:
    """As the database has it."""
    async with app:
        return (await jobs.find(conn, name)).definition


async def test_a_bare_decorator_gives_the_defaults(app: App, conn: Connection) -> None:
    @app.job
    async def report() -> None:
        """Make the report.

        Of the day.
        """

    assert report.name == "report"
    stored = await definition(app, conn, "report")
    assert stored.retry.retries == 3
    assert stored.timeout is None
    assert stored.delivery == "at_least_once"
    assert stored.requires == {"app": "test"}
    assert stored.description == "Make the report."


async def test_options_reach_the_database(app: App, conn: Connection) -> None:
    @app.job(
        name="daily report",
        retries=5,
        backoff="linear",
        retry_delay="250ms",
        max_retry_delay=timedelta(minutes=1),
        retry_on=[ValueError, "Busy"],
        abort_on=[75],
        timeout="1h30m",
        grace=2,
        delivery="effectively_once",
        priority="high",
        requires={"disk": "ssd"},
        placement="capability",
        needs={"gpu": 1},
        prefer={"zone": "b"},
        sticky="customer",
        description="by hand",
    )
    def report(customer: str) -> None:
        """Not this."""

    stored = await definition(app, conn, "daily report")
    assert (stored.retry.retries, stored.retry.backoff) == (5, "linear")
    assert (stored.retry.delay, stored.retry.max_delay) == (0.25, 60.0)
    assert stored.retry.retry_on == ("builtins.ValueError", "Busy")
    assert stored.retry.abort_on == ("75",)
    assert (stored.timeout, stored.grace) == (5400.0, 2.0)
    assert stored.delivery == "effectively_once"
    assert stored.priority == 7
    assert stored.requires == {"app": "test", "disk": "ssd"}
    assert stored.placement == Placement("capability", {"gpu": 1.0}, {"zone": "b"}, "customer")
    assert stored.description == "by hand"


def test_a_sticky_argument_must_be_one_of_the_handler(app: App) -> None:
    with pytest.raises(ValidationError, match="sticky: bill.* has no parameter 'costumer'"):

        @app.job(sticky="costumer")
        def bill(customer: str) -> None: ...

    @app.job(sticky="costumer")
    def anything(**arguments: str) -> None: ...


async def test_a_list_of_delays_says_how_many_retries_there_are(app: App, conn: Connection) -> None:
    @app.job(backoff=[1, "5s", timedelta(minutes=1)])
    async def report() -> None: ...

    stored = await definition(app, conn, "report")
    assert stored.retry.delays == (1.0, 5.0, 60.0)
    assert stored.retry.retries == 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retrys": 3}, "retrys"),
        ({"retries": -1}, "retries"),
        ({"retries": 1001}, "retries"),
        ({"retries": True}, "retries"),
        ({"retries": "3"}, "retries"),
        ({"backoff": "quadratic"}, "backoff"),
        ({"backoff": []}, "backoff"),
        ({"backoff": [1, -1]}, "backoff"),
        ({"retry_delay": "soon"}, "retry_delay"),
        ({"retry_delay": float("nan")}, "retry_delay"),
        ({"max_retry_delay": -1}, "max_retry_delay"),
        ({"retry_on": [""]}, "retry_on"),
        ({"abort_on": [True]}, "abort_on"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "11y"}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"grace": "-1s"}, "grace"),
        ({"delivery": "exactly_once"}, "delivery"),
        ({"delivery": "at_most_once", "retries": 1}, "retries"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 10}, "priority"),
        ({"priority": True}, "priority"),
        ({"requires": {"gpu": ""}}, "requires"),
        ({"requires": {"": "yes"}}, "requires"),
        ({"description": "a\x00b"}, "description"),
        ({"name": ""}, "name"),
        ({"name": "n" * 201}, "name"),
        ({"name": "a\u202eb"}, "name"),
        ({"name": " padded"}, "name"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    app = App()
    with pytest.raises(ValidationError) as refused:
        app.job(**options)(lambda: None)
    assert refused.value.field == field
    assert refused.value.message.startswith(field)
    assert app.jobs == {}


def test_two_jobs_of_one_name_are_refused() -> None:
    app = App()
    app.command("report", ["true"])
    with pytest.raises(ValidationError, match="'report' is defined already") as refused:

        @app.job
        def report() -> None: ...

    assert refused.value.field == "name"


def by_position(day: str, /) -> None: ...
def by_list(*days: str) -> None: ...


@pytest.mark.parametrize("function", [by_position, by_list])
def test_a_parameter_without_a_name_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ValidationError, match="arguments are stored by name") as refused:
        App().job(function)
    assert refused.value.field == "handler"


def with_a_callable(call: Callable[[], int]) -> None: ...
def with_two_classes(value: App | Definition) -> None: ...


@pytest.mark.parametrize("function", [with_a_callable, with_two_classes])
def test_an_annotation_that_no_json_fits_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ValidationError, match="cannot cross JSON") as refused:
        App().job(function)
    assert refused.value.field == "handler"


class Callable_:
    def __call__(self) -> None: ...


@pytest.mark.parametrize("thing", [len, Callable_, Callable_(), 5])
def test_only_a_function_becomes_a_handler(thing: Any) -> None:
    with pytest.raises(ValidationError, match="is not a function") as refused:
        App().job(thing)
    assert refused.value.field == "handler"


def test_the_function_can_be_called_directly() -> None:
    @App().job
    def double(number: int) -> int:
        return 2 * number

    assert double.function(21) == 42


def test_a_command_has_no_function() -> None:
    with pytest.raises(ValidationError, match="it has no function"):
        _ = App().command("ping", ["true"]).function


def test_jobs_are_found_by_name() -> None:
    app = App()
    ping = app.command("ping", ["true"])
    assert app["ping"] is ping
    with pytest.raises(JobNotFound, match="no job 'pong'; it has: ping"):
        app["pong"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"argv": "echo hello"}, "argv"),
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"argv": ["echo", "a\x00b"]}, "argv"),
        ({"argv": ["echo", 5]}, "argv"),
        ({"argv": ["true"], "env": {"A=B": "c"}}, "env"),
        ({"argv": ["true"], "env": {"MAINSPRING_ARGS": "{}"}}, "env"),
        ({"argv": ["true"], "cwd": "/tmp\x00"}, "cwd"),
        ({"argv": ["true"], "timeout": "never"}, "timeout"),
    ],
)
def test_a_bad_command_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        App().command("job", **given)
    assert refused.value.field == field


def test_an_application_needs_a_name() -> None:
    with pytest.raises(ValidationError) as refused:
        App("")
    assert refused.value.field == "name"


async def test_a_setting_that_does_not_exist_is_refused(dsn: str) -> None:
    with pytest.raises(ValidationError, match="slotz"):
        await App(dsn=dsn, slotz=3).open()


async def test_a_restart_with_the_same_definitions_changes_no_version(dsn: str, conn: Connection) -> None:
    def make(retries: int) -> App:
        app = mainspring.App("test", dsn=dsn)

        @app.job(retries=retries)
        async def report() -> None: ...

        return app

    versions = []
    for retries in (1, 1, 2):
        async with make(retries):
            versions.append((await jobs.find(conn, "report")).version)
    assert versions == [1, 1, 2]
