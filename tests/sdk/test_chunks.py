"""Jobs with `chunk`: one call for many tasks, each submitted, limited, retried and recorded by itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from mainspring import (
    App,
    StaleAttempt,
    TaskFailed,
    ValidationError,
    current_task,
    current_tasks,
    testing,
)
from mainspring.sdk.chunk_signature import ChunkSignature
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually


@dataclass
class Row:
    id: int
    name: str = "none"


class Item(msgspec.Struct):
    id: int
    name: str = "none"


class Model(pydantic.BaseModel):
    id: pydantic.PositiveInt
    name: str = "none"


class Typed(TypedDict):
    id: int
    name: NotRequired[str]


@dataclass
class Event:
    day: str
    shop: str = "main"
    extra: dict[str, int] = field(default_factory=dict)


# ── arguments ───────────────────────────────────────────────────────────────────────────────────


def _signature(hint: Any) -> ChunkSignature:
    def load(rows: Any) -> None: ...

    load.__annotations__["rows"] = list[hint]
    return ChunkSignature("load", load)


@pytest.mark.parametrize("given", [((Row(1, "a"),), {}), (({"id": 1, "name": "a"},), {}), ((), {"id": 1, "name": "a"})])
@pytest.mark.parametrize("hint", [Row, Item, Model, Typed, dict[str, Any], Any])
def test_an_item_that_is_an_object_is_the_arguments_of_its_task(hint: Any, given: Any) -> None:
    if hint is Model and given[0] and isinstance(given[0][0], Row):
        given = ((Model(id=1, name="a"),), {})
    signature = _signature(hint)
    text = signature.bind(*given)
    assert msgspec.json.decode(text) == {"id": 1, "name": "a"}
    item = signature.decode(text)["item"]
    expected: dict[Any, Any] = {Row: Row(1, "a"), Item: Item(1, "a"), Model: Model(id=1, name="a")}
    assert item == expected.get(hint, {"id": 1, "name": "a"})


@pytest.mark.parametrize(("hint", "item"), [(int, 7), (str, "seven"), (list[int], [7, 8]), (int | None, None)])
def test_any_other_item_is_stored_under_the_name_of_the_parameter(hint: Any, item: Any) -> None:
    signature = _signature(hint)
    assert msgspec.json.decode(signature.bind((item,), {})) == {"rows": item}
    assert signature.bind((), {"rows": item}) == signature.bind((item,), {})
    assert signature.decode(signature.bind((item,), {})) == {"item": item}


@pytest.mark.parametrize(
    ("hint", "args", "kwargs", "error"),
    [
        (Row, (), {}, "takes one item of its list for each task: give a dict or an object, of the fields id, name"),
        (Row, (Row(1), Row(2)), {}, "takes one item of its list for each task"),
        (Row, (Row(1),), {"name": "b"}, "takes one item of its list for each task"),
        (Row, ([Row(1)],), {}, "is not the arguments of a task of load"),
        (Row, ({"name": "a"},), {}, "missing required field `id`"),
        (Row, (), {"id": "one"}, "Expected `int`, got `str`"),
        (Row, (), {"id": 1, "nam": "a"}, "there is no field 'nam'; give a dict or an object, of the fields id, name"),
        (Row, (Row("one"),), {}, "Expected `int`, got `str`"),  # type: ignore[arg-type]
        (Model, ({"id": -1},), {}, "greater than 0"),
        (Any, ("text",), {}, "is not the arguments of a task"),
        (int, ("seven",), {}, "Expected `int`, got `str`"),
        (int, (), {"other": 7}, "takes one item of its list for each task: enqueue"),
        (Row, (object(),), {}, "cannot be written as JSON"),
    ],
)
def test_what_the_handler_could_not_take_is_refused_at_once(hint: Any, args: Any, kwargs: Any, error: str) -> None:
    with pytest.raises(ValidationError, match=error) as refused:
        _signature(hint).bind(args, kwargs)
    assert refused.value.field == "args"


@pytest.mark.parametrize("stored", ["[]", "7", '"text"', "null", '{"other": 1}', '{"rows": 1, "more": 2}'])
@pytest.mark.parametrize("hint", [Row, int, dict[str, int]])
def test_arguments_that_were_written_with_sql_and_do_not_fit_are_told(hint: Any, stored: str) -> None:
    if hint == dict[str, int] and stored.startswith("{"):
        return
    with pytest.raises(ValueError, match=r".+"):
        _signature(hint).decode(stored)


def test_the_handler_takes_one_list(app: App) -> None:
    async def none() -> None: ...
    async def two(rows: list[Row], more: int) -> None: ...
    async def named(*, rows: list[Row]) -> None: ...
    async def single(rows: Row) -> None: ...
    async def mapping(rows: dict[str, int]) -> None: ...
    async def foreign(rows: list[asyncio.Event]) -> None: ...

    for handler, error in (
        (none, "takes one parameter, a list"),
        (two, "takes one parameter, a list"),
        (named, "takes one parameter, a list"),
        (single, "with chunk it is a list"),
        (mapping, "with chunk it is a list"),
        (foreign, "cannot cross JSON"),
    ):
        with pytest.raises(ValidationError, match=error) as refused:
            app.job(chunk=10)(handler)  # type: ignore[arg-type, misc]
        assert refused.value.field == "handler"
    assert not app.jobs


@pytest.mark.parametrize(
    ("options", "error", "at"),
    [
        ({"chunk": 0}, "chunk: 0; give how many tasks, 1 to 1000", "chunk"),
        ({"chunk": 1001}, "chunk: 1001; give how many tasks, 1 to 1000", "chunk"),
        ({"chunk": True}, "chunk: True; give how many tasks", "chunk"),
        ({"chunk": "10"}, "chunk: '10'; give how many tasks", "chunk"),
        ({"chunk": 10, "chunk_wait": "2m"}, "chunk_wait: 120 s; at most 60 s", "chunk_wait"),
        ({"chunk": 10, "chunk_wait": -1}, "chunk_wait: -1 s is out of range", "chunk_wait"),
        ({"chunk_wait": "1s"}, "chunk_wait: belongs to a chunk; give chunk=100 too", "chunk_wait"),
        ({"chunk": 10, "broadcast": True}, "chunk: a broadcast is one run on each agent", "chunk"),
        ({"chunk": 10, "daemon": True, "args": {"id": 1}}, "daemon: job 'load' takes chunks of tasks", "daemon"),
        ({"chunk": 10, "concurrency_key": "shop:{shop}"}, "a task of load has no argument 'shop'", "concurrency_key"),
        ({"chunk": 10, "sticky": "shop"}, "a task of load has no argument 'shop'", "sticky"),
        ({"chunk": 10, "every": "1s"}, "a schedule needs args=", "args"),
        ({"chunk": 10, "every": "1s", "args": {"id": 1, "nam": "a"}}, "there is no field 'nam'", "args"),
    ],
)
def test_options_that_make_no_sense_are_refused(app: App, options: dict[str, Any], error: str, at: str) -> None:
    async def load(rows: list[Row]) -> None: ...

    with pytest.raises(ValidationError, match=error) as refused:
        app.job(**options)(load)
    assert refused.value.field == at
    assert not app.jobs


def test_a_job_without_chunk_has_the_same_definition_as_ever(app: App) -> None:
    @app.job
    async def plain() -> None: ...

    @app.job(chunk=10)
    async def load(rows: list[Row]) -> None: ...

    stored = {name: msgspec.json.decode(msgspec.json.encode(its))["run"] for name, its in app.definitions.items()}
    assert stored["plain"] == {"type": "python", "handler": "plain"}
    arguments = [{"name": "id", "required": True}, {"name": "name"}]
    assert stored["load"] == {"type": "python", "handler": "load", "chunk": 10, "arguments": arguments}


async def test_the_handler_can_be_called_in_a_test(app: App) -> None:
    @app.job(chunk=10)
    async def load(rows: list[Row]) -> list[int]:
        return [row.id for row in rows]

    assert await load([Row(1), Row(2)]) == [1, 2]
    assert await load.function([Row(3)]) == [3]


# ── running ─────────────────────────────────────────────────────────────────────────────────────


async def test_one_bad_row_fails_alone_and_each_task_has_its_own_result(app: App) -> None:
    calls: list[int] = []

    @app.job(chunk=50, chunk_wait="50ms", retries=0)
    async def load(rows: list[Row]) -> list[int | Exception]:
        calls.append(len(rows))
        return [ValueError(f"row {row.id} is bad") if row.id == 70 else row.id * 2 for row in rows]

    async with app.running(slots=5):
        tasks = await load.enqueue_many([Row(number) for number in range(120)])
        results = await asyncio.gather(*(task.result(timeout=10) for task in tasks), return_exceptions=True)
        bad = results.pop(70)
        assert isinstance(bad, TaskFailed)
        assert "row 70 is bad" in str(bad)
        assert results == [number * 2 for number in range(120) if number != 70]
        assert (await tasks[70].status()).attempt == 1
    assert sum(calls) == 120
    assert max(calls) == 50, "an agent of five slots holds more tasks than slots"


async def test_what_is_submitted_one_by_one_gathers_too(app: App) -> None:
    calls: list[list[int]] = []

    @app.job(chunk=5, chunk_wait="10s")
    def load(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return [-number for number in numbers]

    async with app.running():
        tasks = [await load.enqueue(number) for number in range(5)]
        assert [await task.result(timeout=20) for task in tasks] == [0, -1, -2, -3, -4]
    assert [sorted(call) for call in calls] == [[0, 1, 2, 3, 4]]


async def test_each_task_has_its_own_retries(app: App) -> None:
    """The call fails as long as the bad row is in it: at last each goes alone, and only the bad one fails."""
    calls: list[list[int]] = []

    @app.job(chunk=4, chunk_wait="50ms", retries=2, backoff=["10ms", "10ms"])
    async def load(rows: list[Row]) -> None:
        calls.append([row.id for row in rows])
        if any(row.id == 3 for row in rows):
            raise ValueError("no row is stored")

    async with app.running():
        tasks = await load.enqueue_many([Row(number) for number in range(4)])
        for task in (*tasks[:3],):
            await task.result(timeout=10)
        with pytest.raises(TaskFailed, match="no row is stored"):
            await tasks[3].result(timeout=10)
        assert (await tasks[3].status()).attempt == 3
    assert [0, 1, 2, 3] in calls
    assert [3] in calls


async def test_arguments_come_by_sql_and_by_schedules_as_for_any_job(app: App, conn: Connection) -> None:
    events: list[Event] = []

    @app.job(chunk=10, chunk_wait="20ms", every="500ms", args={"shop": "east"})
    async def note(items: list[Event]) -> None:
        events.extend(items)

    async with app.running():
        id = await conn.fetchval("select mainspring.enqueue('note', '{\"day\": \"2026-11-15\"}')")
        await app.task(id).result(timeout=10)
        bad = await conn.fetchval("select mainspring.enqueue('note', '{\"shop\": 5}')")
        with pytest.raises(TaskFailed, match="Expected `str`, got `int`"):
            await app.task(bad).result(timeout=10)

        async def fired() -> list[Event]:
            return [event for event in events if event.shop == "east"]

        [event, *_] = await eventually(fired)
        today = await conn.fetchval("select mainspring.now()::date")
    assert Event("2026-11-15") in events
    assert abs((date.fromisoformat(event.day) - today).days) <= 1, "the planner fills the day in"


async def test_limits_count_tasks_not_calls(app: App) -> None:
    calls: list[int] = []

    @app.job(chunk=10, chunk_wait="20ms", max_running=3)
    async def load(rows: list[Row]) -> None:
        calls.append(len(rows))
        await asyncio.sleep(0.02)

    async with app.running():
        tasks = await load.enqueue_many([Row(number) for number in range(12)])
        await asyncio.gather(*(task.result(timeout=20) for task in tasks))
    assert max(calls) <= 3


async def test_a_concurrency_key_keeps_tasks_of_one_key_out_of_one_call(app: App) -> None:
    calls: list[list[str]] = []

    @app.job(chunk=10, chunk_wait="30ms", concurrency_key="shop:{shop}")
    async def load(events: list[Event]) -> None:
        calls.append([event.shop for event in events])
        await asyncio.sleep(0.02)

    async with app.running():
        shops = ["a", "b", "a", "c", "a"]
        tasks = await load.enqueue_many([Event("monday", shop) for shop in shops])
        await asyncio.gather(*(task.result(timeout=20) for task in tasks))
    assert all(len(call) == len(set(call)) for call in calls)
    assert sorted(shop for call in calls for shop in call) == sorted(shops)


async def test_a_cancelled_task_is_left_out_of_a_chunk_that_gathers(app: App) -> None:
    calls: list[list[int]] = []

    @app.job(chunk=10, chunk_wait="1s")
    async def load(numbers: list[int]) -> None:
        calls.append(numbers)

    async with app.running():
        gone, stays = await load.enqueue_many([1, 2])

        async def held() -> bool:
            return (await gone.status()).state == "assigned"

        await eventually(held)
        await gone.cancel()
        await stays.result(timeout=10)
        assert (await gone.status()).state == "cancelled"
    assert calls == [[2]]


async def test_a_task_that_is_cancelled_during_the_call_ends_as_cancelled(app: App) -> None:
    go, began = asyncio.Event(), asyncio.Event()

    @app.job(chunk=2)
    async def load(numbers: list[int]) -> list[int]:
        began.set()
        await go.wait()
        return numbers

    async with app.running():
        gone, stays = await load.enqueue_many([1, 2])
        await began.wait()
        await gone.cancel()
        agent = app.engine
        assert agent is not None

        async def told() -> bool:
            return any(attempt.stopping for attempt in agent.agent.runner._held.values())

        await eventually(told)
        go.set()
        assert await stays.result(timeout=10) == 2
        assert (await gone.status()).state == "cancelled"


async def test_testing_runs_chunks_too(server_dsn: str) -> None:
    app = App("tested", poll=0.1, stop_patience=0.2)

    @app.job(chunk=10, chunk_wait="20ms")
    async def load(rows: list[Row]) -> list[int]:
        return [len(rows)] * len(rows)

    async with testing.running(app) as run:
        later = await load.using(delay="1h").enqueue(Row(1))
        tasks = await load.enqueue_many([Row(number) for number in range(3)])
        await run.until_idle()
        assert [await task.result() for task in tasks] == [3, 3, 3]
        await run.advance("1h")
        await run.until_idle()
        assert await later.result() == 1


# ── transactions ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def stored(conn: Connection) -> Any:
    await conn.execute("drop table if exists public.stored; create table public.stored (id int)")

    async def ids() -> list[int]:
        return sorted(row["id"] for row in await conn.fetch("select id from public.stored"))

    return ids


async def test_one_transaction_stores_the_rows_and_completes_all_tasks(app: App, stored: Any, conn: Connection) -> None:
    seen: list[int] = []

    @app.job(chunk=3, delivery="effectively_once")
    async def load(rows: list[Row]) -> list[int]:
        async with current_tasks().transaction() as own:
            await own.executemany("insert into public.stored values ($1)", [(row.id,) for row in rows])
        seen.append(await conn.fetchval("select count(*) from mainspring.task_history"))
        return [row.id for row in rows]

    async with app.running():
        tasks = await load.enqueue_many([Row(number) for number in range(3)])
        assert [await task.result(timeout=10) for task in tasks] == [0, 1, 2]
    assert seen == [3], "they had ended with the commit"
    assert await stored() == [0, 1, 2]


async def test_a_transaction_commits_nothing_if_one_task_belongs_to_another_attempt(app: App, stored: Any) -> None:
    caught: list[str] = []

    @app.job(chunk=3, delivery="effectively_once", retries=0)
    async def load(rows: list[Row]) -> None:
        tasks = current_tasks()
        async with app.database.acquire() as other:
            await other.execute("update mainspring.task set token = token + 1 where id = $1", tasks[1].id)
        try:
            async with tasks.transaction() as own:
                await own.executemany("insert into public.stored values ($1)", [(row.id,) for row in rows])
        except StaleAttempt as error:
            caught.append(str(error))
            raise

    async with app.running():
        tasks = await load.enqueue_many([Row(number) for number in range(3)])
        for task in (tasks[0], tasks[2]):
            with pytest.raises(TaskFailed):
                await task.result(timeout=10)
        assert caught[0].startswith(f"task {tasks[1].id} belongs to another attempt now; nothing was committed")
    assert await stored() == []


async def test_a_transaction_of_one_task_completes_that_one(app: App, stored: Any) -> None:
    @app.job(chunk=3, delivery="effectively_once", retries=0)
    async def load(rows: list[Row]) -> None:
        tasks = current_tasks()
        async with tasks[0].transaction() as own:
            await own.execute("insert into public.stored values (100)")
        async with tasks.transaction() as own:
            await own.execute("insert into public.stored values (200)")
        with pytest.raises(ValidationError, match="all tasks of this chunk are completed already"):
            tasks.transaction()

    async with app.running():
        tasks = await load.enqueue_many([Row(number) for number in range(3)])
        for task in tasks:
            await task.result(timeout=10)
    assert await stored() == [100, 200]


async def test_submissions_of_a_handler_with_a_chunk_are_as_any(app: App) -> None:
    @app.job
    async def child(number: int) -> int:
        return number

    @app.job(chunk=2)
    async def load(rows: list[Row]) -> list[int]:
        return [(await child.enqueue(row.id)).id for row in rows]

    async with app.running():
        tasks = await load.enqueue_many([Row(1), Row(2)])
        children = [await task.result(timeout=10) for task in tasks]
        assert [await child.task(id).result(timeout=10) for id in children] == [1, 2]


async def test_outside_of_handlers_there_are_no_tasks() -> None:
    for function in (current_task, current_tasks):
        with pytest.raises(RuntimeError, match="no task is running here"):
            function()
