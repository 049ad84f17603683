"""Answers of a later server: unknown members are ignored, unknown words kept; what is no answer is still refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import pytest
from msgspec import inspect
from tests.client.conftest import ACTOR
from tests.served import served

from mainspring.api.rows import ROWS
from mainspring.api.table import Row
from mainspring.client.bulk import read_answer
from mainspring.client.reading import has_ended, read
from mainspring.client.remote import Client
from mainspring.errors import TaskFailed
from mainspring.operations.condition.health import Health, Status
from mainspring.operations.requests.bulk import Done
from mainspring.operations.work import tasks
from mainspring.sdk.backends.over_http import OverHttp
from mainspring.store.postgres.database import Connection

LATER = "of a later version"
EXAMPLES: Mapping[type[inspect.Type], Any] = {
    inspect.AnyType: None,
    inspect.NoneType: None,
    inspect.BoolType: True,
    inspect.IntType: 1,
    inspect.FloatType: 1.5,
    inspect.StrType: "text",
    inspect.DateTimeType: "2026-11-18T12:00:00Z",
    inspect.DateType: "2026-11-18",
    inspect.TimeType: "12:00:00",
    inspect.UUIDType: "0197e000-0000-7000-8000-000000000000",
}


def later(kind: inspect.Type, outer: tuple[type, ...] = ()) -> Any:
    """An answer of this type with a member more in each object, and a new word in each enumeration."""
    match kind:
        case inspect.LiteralType() if not isinstance(kind.values[0], str):
            return kind.values[0]  # the version of a format: another one is another format
        case inspect.LiteralType() | inspect.EnumType():
            return LATER
        case inspect.StructType():
            if outer.count(kind.cls) > 1:
                return None
            inner = (*outer, kind.cls)
            tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
            return {LATER: 1, **tag, **{field.encode_name: later(field.type, inner) for field in kind.fields}}
        case inspect.TypedDictType():
            return {LATER: 1, **{field.encode_name: later(field.type, outer) for field in kind.fields}}
        case inspect.UnionType():
            words = (one for one in kind.types if isinstance(one, inspect.LiteralType | inspect.StructType))
            return later(next(words, kind.types[0]), outer)
        case inspect.ListType() | inspect.VarTupleType():
            return [found] if (found := later(kind.item_type, outer)) is not None else []
        case inspect.TupleType():
            return [later(item, outer) for item in kind.item_types]
        case inspect.DictType():
            return {later(kind.key_type, outer): later(kind.value_type, outer)}
    return EXAMPLES[type(kind)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path}")
def test_every_answer_may_have_a_member_and_a_word_more(row: Row) -> None:
    if row.shape.answer in (None, type(None)):
        return
    body = json.dumps(later(inspect.type_info(row.shape.answer)))
    found = read(body, row.shape.answer)
    if isinstance(found, msgspec.Struct):
        assert LATER not in found.__struct_fields__
        assert msgspec.json.decode(msgspec.json.encode(found)), "the command line prints it"


def test_a_word_that_is_not_known_is_text_with_a_value_and_equal_to_none_that_is() -> None:
    found = read(b'{"status": "asleep", "checks": []}', Health)
    assert isinstance(found.status, Status)
    assert (found.status, found.status.value, f"{found.status}") == ("asleep", "asleep", "asleep")
    assert found.status not in set(Status)
    assert msgspec.json.encode(found) == b'{"status":"asleep","checks":[]}'
    assert read(b'{"status": "healthy", "checks": [], "more": 1}', Health).status is Status.HEALTHY


class Kind(msgspec.Struct, tag="known"):
    size: Literal["small", "large"]


class Other(msgspec.Struct, tag="other"):
    pass


def test_a_kind_that_is_not_known_is_kept_as_it_came() -> None:
    assert read(b'{"type": "known", "size": "huge"}', Kind | Other | None) == Kind("huge")  # type: ignore[arg-type]
    assert read(b'{"type": "third", "x": 1}', Kind | Other | None) == {"type": "third", "x": 1}


@pytest.mark.parametrize(
    "body", [b"[]", b'{"status": 1, "checks": []}', b'{"status": "x"}', b'{"status": "x", "checks": {}}']
)
def test_what_is_of_another_type_or_lacks_a_member_is_no_answer(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(body, Health)


def test_a_line_of_a_kind_that_is_not_known_is_no_answer_to_a_line() -> None:
    assert read_answer(b'{"progress": 17}') is None
    assert read_answer(b'{"done": true, "accepted": 1, "refused": 0, "more": 1}') == Done(True, 1, 0)


async def test_a_task_in_a_state_that_is_not_known_has_ended_once_it_is_finished(conn: Connection, task: int) -> None:
    view = msgspec.structs.replace(await tasks.show(conn, ACTOR, task), state="archived")
    assert not has_ended(view)
    finished = msgspec.structs.replace(view, finished_at=view.created_at)
    assert has_ended(finished)

    async def later_server(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(finished)})

    async with served(later_server) as url:
        async with Client(url, "ms_x") as client:
            assert (await client.ended(task, 20)).state == "archived"
        backend = OverHttp(url, "ms_x")
        with pytest.raises(TaskFailed, match=f"task {task} archived, which is a state that this version does not know"):
            await backend.wait_for(task, 20, json.loads)
        await backend.lifecycle.close()
