"""Arguments: bound as Python binds them, stored as JSON by name, given back in the types of the annotations."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import pytest

from mainspring import App, TaskFailed, ValidationError
from mainspring.sdk.signature import Signature

if TYPE_CHECKING:
    from collections import OrderedDict as OnlyForTheTypeChecker


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    number: int = 1


def plain(day: str, count: int = 7, *, force: bool = False) -> None: ...
def opened(day: str, **labels: int) -> None: ...
def instant(at: datetime) -> None: ...
def identity(id: UUID) -> None: ...
def place(address: Address) -> None: ...
def paint(colour: Colour) -> None: ...
def maybe(day: date | None = None) -> None: ...
def wait(length: timedelta) -> None: ...
def pay(amount: Decimal) -> None: ...
def choose(way: Literal["left", "right"]) -> None: ...
def gather(days: list[date], by: dict[str, Address]) -> None: ...
def untyped(value, other=5): ...  # type: ignore[no-untyped-def]
def half_known(at: datetime, order: OnlyForTheTypeChecker[str, int]) -> OnlyForTheTypeChecker[str, int]:
    return order


def bound(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return json.loads(Signature("job", function).bind(args, kwargs))


@pytest.mark.parametrize(
    ("args", "kwargs", "stored"),
    [
        (("x",), {}, {"day": "x"}),
        (("x", 3), {}, {"day": "x", "count": 3}),
        ((), {"day": "x", "force": True}, {"day": "x", "force": True}),
        (("x",), {"count": 1}, {"day": "x", "count": 1}),
    ],
)
def test_arguments_are_stored_by_name_and_defaults_are_left_to_the_handler(
    args: tuple[Any, ...], kwargs: dict[str, Any], stored: dict[str, Any]
) -> None:
    assert bound(plain, *args, **kwargs) == stored


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), (("x", 1, True), {}), (("x",), {"day": "y"}), (("x",), {"forse": True})],
)
def test_a_call_that_python_would_refuse_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"^args: job\(day: ") as refused:
        bound(plain, *args, **kwargs)
    assert refused.value.field == "args"


ROUND_TRIPS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (instant, {"at": datetime(2026, 11, 15, 9, 30, tzinfo=UTC)}),
    (identity, {"id": UUID(int=7)}),
    (place, {"address": Address("Rue de Rivoli", 5)}),
    (paint, {"colour": Colour.BLUE}),
    (maybe, {"day": date(2026, 11, 15)}),
    (maybe, {"day": None}),
    (maybe, {}),
    (wait, {"length": timedelta(minutes=90)}),
    (pay, {"amount": Decimal("1.10")}),
    (choose, {"way": "left"}),
    (gather, {"days": [date(2026, 1, 1)], "by": {"home": Address("A", 2)}}),
    (untyped, {"value": {"a": [1, 2.5, None]}}),
    (opened, {"day": "x", "a": 1, "labels": 2}),
]


@pytest.mark.parametrize(("function", "given"), ROUND_TRIPS)
def test_arguments_come_back_in_the_types_of_the_annotations(function: Callable[..., Any], given: Any) -> None:
    signature = Signature("job", function)
    assert signature.decode(signature.bind((), given)) == given


def test_an_annotation_for_the_type_checker_alone_leaves_the_others_in_force() -> None:
    signature = Signature("job", half_known)
    at = datetime(2026, 11, 15, tzinfo=UTC)
    assert signature.decode(signature.bind((at, {"a": 1}), {})) == {"at": at, "order": {"a": 1}}


WRONG: list[tuple[Callable[..., Any], str]] = [
    (plain, "{}"),
    (plain, '{"day": 5}'),
    (plain, '{"day": "x", "count": "many"}'),
    (plain, '{"day": "x", "unknown": 1}'),
    (instant, '{"at": "yesterday"}'),
    (identity, '{"id": "7"}'),
    (place, '{"address": {"number": 1}}'),
    (paint, '{"colour": "green"}'),
    (choose, '{"way": "up"}'),
]


@pytest.mark.parametrize(("function", "text"), WRONG)
def test_json_that_does_not_fit_is_refused(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"\$|field"):
        Signature("job", function).decode(text)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "cannot be written as JSON"),
        (float("nan"), "not a JSON number"),
        (float("-inf"), "not a JSON number"),
        (2**53, "beyond ±2\\^53"),
        ("a\x00b", "NUL"),
        ("\ud800", "JSON"),
        ("x" * 1024 * 1024, "at most 1 MB"),
        ({"deep": __import__("functools").reduce(lambda inner, _: [inner], range(70), 0)}, "deeper than 64"),
    ],
)
def test_a_value_that_json_cannot_hold_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as refused:
        bound(untyped, value)
    assert refused.value.field == "args"


async def test_arguments_of_the_wrong_type_from_sql_end_the_task_without_a_retry(app: App) -> None:
    ran = []

    @app.job(retries=3, retry_delay=0)
    async def report(at: datetime) -> None:
        ran.append(at)

    async with app.running():
        async with app.database.acquire() as conn:
            id = await conn.fetchval("""select mainspring.enqueue('report', '{"at": 5, "day": "x"}')""")
        task = await report.using(after=None).enqueue(datetime(2026, 11, 15, tzinfo=UTC))
        await task.result(timeout=10)
        with pytest.raises(TaskFailed) as failed:
            await app.wait_for(id, 10)
        assert failed.value.error_code == "bad_arguments"
        assert (await app.status(id)).attempt == 1
    assert ran == [datetime(2026, 11, 15, tzinfo=UTC)]


async def test_a_handler_gets_its_arguments_whichever_way_it_was_enqueued(app: App) -> None:
    @app.job
    async def place(address: Address, colour: Colour = Colour.RED, **labels: int) -> list[Any]:
        assert isinstance(address, Address)
        assert isinstance(colour, Colour)
        return [address.street, address.number, colour, labels]

    async with app.running():
        by_position = await place.enqueue(Address("A", 2))
        by_name = await place.enqueue(colour=Colour.BLUE, address=Address("B"), floor=3)
        assert await by_position.result(timeout=10) == ["A", 2, "red", {}]
        assert await by_name.result(timeout=10) == ["B", 1, "blue", {"floor": 3}]


def test_a_definition_names_the_arguments_with_their_types_and_which_must_be_given() -> None:
    def found(function: Callable[..., Any]) -> list[tuple[str, str, bool]]:
        return [(one.name, one.type, one.required) for one in Signature("job", function).arguments]

    assert found(plain) == [("day", "string", True), ("count", "integer", False), ("force", "boolean", False)]
    assert found(instant) == [("at", "string", True)]
    assert found(maybe) == [("day", "string", False)]
    assert found(place) == [("address", "any", True)]
