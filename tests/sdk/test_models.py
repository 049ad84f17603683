"""Pydantic models as arguments and results: checked at enqueue, made again at the start, optional."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, computed_field
from typing_extensions import TypedDict

import mainspring
from mainspring import App, Job, Task, TaskFailed, ValidationError, current_task
from mainspring.sdk.signature import Signature


class Item(BaseModel):
    sku: str
    amount: int = Field(default=1, gt=0)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: UUID
    at: datetime
    total: Decimal
    items: list[Item] = []
    page: HttpUrl | None = None
    customer: str = Field(default="", alias="customerName")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        return len(self.items)


class Exact(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str] = []


class Numbers(pydantic.RootModel[list[int]]):
    pass


@dataclass
class Parcel:
    item: Item
    weight: float = 0.0


@pydantic.dataclasses.dataclass
class Address:
    number: Annotated[int, Field(gt=0)]


class Basket(TypedDict):
    items: list[Item]


ORDER = Order(id=UUID(int=7), at=datetime(2026, 11, 15, tzinfo=UTC), total=Decimal("1.10"), items=[Item(sku="a")],
              page=HttpUrl("https://shop.example/7"), customerName="Ada")  # fmt: skip


def order(order: Order) -> None: ...
def exact(exact: Exact) -> None: ...
def listed(items: list[Item], by: dict[str, Item]) -> None: ...
def maybe(item: Item | None = None) -> None: ...
def either(pet: Cat | Dog, name: str = "") -> None: ...
def packed(parcel: Parcel, basket: Basket) -> None: ...
def placed(address: Address) -> None: ...
def counted(amount: Annotated[int, Field(gt=0)], numbers: Numbers) -> None: ...
def mixed(day: datetime, item: Item, **others: int) -> None: ...


ROUND_TRIPS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (order, {"order": ORDER}),
    (exact, {"exact": Exact(at=datetime(2026, 11, 15, tzinfo=UTC))}),
    (listed, {"items": [Item(sku="a"), Item(sku="b", amount=2)], "by": {"x": Item(sku="c")}}),
    (maybe, {"item": Item(sku="a")}),
    (maybe, {"item": None}),
    (maybe, {}),
    (either, {"pet": Dog(tricks=["sit"])}),
    (packed, {"parcel": Parcel(Item(sku="a"), 1.5), "basket": {"items": [Item(sku="b")]}}),
    (placed, {"address": Address(5)}),
    (counted, {"amount": 3, "numbers": Numbers([1, 2])}),
    (mixed, {"day": datetime(2026, 11, 15, tzinfo=UTC), "item": Item(sku="a"), "more": 1}),
]


@pytest.mark.parametrize(("function", "given"), ROUND_TRIPS)
def test_models_come_back_as_they_were(function: Callable[..., Any], given: dict[str, Any]) -> None:
    signature = Signature("job", function)
    assert signature.decode(signature.bind((), given)) == given


def test_models_are_stored_by_the_names_of_their_fields_as_json() -> None:
    stored = json.loads(Signature("job", order).bind((ORDER,), {}))["order"]
    assert stored == {
        "id": "00000000-0000-0000-0000-000000000007",
        "at": "2026-11-15T00:00:00Z",
        "total": "1.10",
        "items": [{"sku": "a", "amount": 1}],
        "page": "https://shop.example/7",
        "customer": "Ada",
    }, "without what can be computed again"


def test_a_dict_that_fits_becomes_the_model() -> None:
    signature = Signature("job", listed)
    text = signature.bind(([{"sku": "a", "amount": "2"}], {}), {})
    assert signature.decode(text) == {"items": [Item(sku="a", amount=2)], "by": {}}


def test_json_from_elsewhere_may_use_the_aliases() -> None:
    text = json.dumps({"order": {"id": str(UUID(int=7)), "at": 0, "total": 1, "customerName": "Ada"}})
    assert Signature("job", order).decode(text)["order"].customer == "Ada"


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        (listed, ([{"sku": "a", "amount": 0}], {}), "args: items.0.amount: Input should be greater than 0"),
        (order, ({"total": "much"},), "args: order.id: Field required; order.at: Field required; "
         "order.total: Input should be a valid decimal"),
        (counted, (0, [1]), "args: amount: Input should be greater than 0"),
        (order, ("x",), "args: order: Input should be a valid dictionary or instance of Order"),
    ],
)  # fmt: skip
def test_what_pydantic_refuses_is_refused_at_enqueue(function: Callable[..., Any], args: Any, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Signature("job", function).bind(args, {})
    assert refused.value.message == said
    assert refused.value.field == "args"


def test_what_does_not_fit_at_the_start_is_a_value_error_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^item.sku: Field required; item.amount: Input should be a valid integer"):
        Signature("job", maybe).decode('{"item": {"amount": "many"}}')


class Login(BaseModel):
    password: SecretStr


def log_in(login: Login) -> None: ...


def logged_in() -> Login: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [log_in, logged_in])
def test_a_secret_that_would_be_stored_as_asterisks_is_refused(app: App, function: Callable[..., Any]) -> None:
    with pytest.raises(ValidationError, match="holds a secret, which Pydantic writes as asterisks"):
        app.job(function)


def pack(item: Item) -> None: ...


class Raw(BaseModel):
    data: bytes


def store(raw: Raw) -> None: ...


@pytest.mark.parametrize(
    ("function", "wrong", "said"),
    [
        (pack, Item(sku="a").model_copy(update={"amount": -1}), "item.amount: Input should be greater than 0"),
        (pack, Item.model_construct(amount=1), "item.sku: Field required"),
        (store, Raw(data=b"\xff\xfe"), "raw: .*utf-8"),
    ],
    ids=["changed", "constructed", "bytes that are no text"],
)
def test_an_instance_that_would_not_come_back_is_refused_at_enqueue(
    function: Callable[..., Any], wrong: Any, said: str
) -> None:
    with pytest.raises(ValidationError, match=f"args: {said}"):
        Signature("job", function).bind((wrong,), {})


async def test_a_result_that_does_not_fit_its_annotation_is_told(app: App) -> None:
    @app.job
    async def wrong() -> Item:
        return {"sku": "a", "amount": -1}  # type: ignore[return-value]

    @app.job
    async def wrong_too() -> int:
        return "x"  # type: ignore[return-value]

    async with app.running():
        jobs: list[Job[[], Any]] = [wrong, wrong_too]
        for job in jobs:
            task: Task[Any] = await job.enqueue()
            with pytest.raises(ValidationError, match=f"result: what task {task.id} returned does not fit"):
                await task.result(timeout=20)


class Unknown:
    pass


def unknown(items: list[Item], thing: Annotated[Unknown, Field()]) -> None: ...


def test_a_type_that_pydantic_does_not_know_is_refused_where_the_job_is_defined(app: App) -> None:
    with pytest.raises(ValidationError, match="unknown: its arguments cannot cross JSON: .*Unknown"):
        app.job(unknown)


async def ship(order: Order, *, fast: bool = False) -> Order:
    current_task().progress({"order": order})
    return order.model_copy(update={"items": [*order.items, Item(sku="gift")]})


async def plain() -> Any:
    return {"item": Item(sku="a"), "page": HttpUrl("https://shop.example/")}


async def test_a_model_goes_in_and_another_comes_out(app: App) -> None:
    job, untyped = app.job(ship), app.job(plain)
    app["ship"].schedule("every-year", cron="0 0 1 1 *", args={"order": ORDER})
    async with app.running():
        task = await job.enqueue(ORDER)
        result = await task.result(timeout=10)
        assert [item.sku for item in result.items] == ["a", "gift"]
        assert (await task.status()).progress["order"]["customer"] == "Ada"
        assert await app.task(task.id).result() == result
        assert await (await untyped.enqueue()).result(timeout=10) == {
            "item": {"sku": "a", "amount": 1},
            "page": "https://shop.example/",
        }
        async with app.database.acquire() as conn:
            bad = await conn.fetchval("""select mainspring.enqueue('ship', '{"order": {"total": 1}}')""")
        with pytest.raises(TaskFailed, match="ship: order.id: Field required") as failed:
            await app.task(bad).result(timeout=10)
        assert failed.value.error_code == "bad_arguments"


def test_without_a_model_pydantic_is_not_loaded(tmp_path: Path) -> None:
    script = """
import sys
import mainspring
app = mainspring.App()
@app.job
async def report(day: str) -> int: return 1
print("pydantic" in sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(mainspring.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout == "False\n"
