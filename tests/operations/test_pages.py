"""Pages: cursors that continue behind an item, and belong to their filters."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster import add_server
from tests.operations.conftest import ACTOR, add_agent

from mainspring.errors import BadCursor, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.operations import access, pages
from mainspring.operations.condition import cluster, fleet
from mainspring.operations.pages import Page
from mainspring.store.postgres.database import Connection

FILTERS: dict[str, Any] = {"list": "tasks", "job": ["report"], "since": datetime(2026, 11, 15, tzinfo=UTC)}
Id = Annotated[int, msgspec.Meta(ge=1, lt=2**63)]


@pytest.mark.parametrize("position", [17, 2**62, "name/with ünicode", (3, "b"), datetime(2026, 11, 15, 9, tzinfo=UTC)])
def test_a_cursor_gives_its_position_back(position: object) -> None:
    text = pages.cursor(FILTERS, position)
    kind: Any = tuple[int, str] if isinstance(position, tuple) else type(position)
    assert pages.position(text, FILTERS, kind) == position
    assert text.isascii()
    assert not set(text) & set("+/=&? ")


def test_no_cursor_is_the_start() -> None:
    assert pages.position(None, FILTERS, int) is None


@pytest.mark.parametrize(
    "filters", [{}, FILTERS | {"job": ["other"]}, FILTERS | {"list": "jobs"}, FILTERS | {"state": ["failed"]}]
)
def test_a_cursor_of_other_filters_is_refused(filters: dict[str, Any]) -> None:
    with pytest.raises(BadCursor, match="cursor") as refused:
        pages.position(pages.cursor(FILTERS, 17), filters, int)
    assert refused.value.field == "cursor"


@pytest.mark.parametrize(("position", "kind"), [("a\0b", str), (("\0", 1), tuple[str, int])])
def test_a_cursor_that_somebody_made_with_nul_is_refused(position: Any, kind: Any) -> None:
    with pytest.raises(BadCursor, match="cursor"):
        pages.position(pages.cursor(FILTERS, position), FILTERS, kind)


def test_a_filter_that_is_not_given_changes_no_cursor() -> None:
    more = FILTERS | {"agent": (), "key": None, "args": {}}
    assert pages.position(pages.cursor(FILTERS, 17), more, int) == 17


def test_the_order_of_filters_does_not_matter() -> None:
    assert pages.cursor(FILTERS, 17) == pages.cursor(dict(reversed(FILTERS.items())), 17)


def test_a_position_of_the_wrong_kind_is_refused() -> None:
    for position in (-1, 0, 2**63, "17", [17], None):
        with pytest.raises(BadCursor):
            pages.position(pages.cursor(FILTERS, position), FILTERS, Id)


def test_a_cursor_with_another_position_in_it_is_refused() -> None:
    text = pages.cursor(FILTERS, 17)
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert data.endswith(b"\x11")
    forged = urlsafe_b64encode(data[:-1] + b"\x12").rstrip(b"=").decode()
    with pytest.raises(BadCursor):
        pages.position(forged, FILTERS, int)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: urlsafe_b64encode(data).decode()))
def test_absurd_cursors_are_refused(text: str) -> None:
    with pytest.raises(BadCursor):
        pages.position(text, FILTERS, int)


def test_a_cursor_has_one_spelling_and_a_bounded_length() -> None:
    text = pages.cursor(FILTERS, 17)
    for other in (text + "=", text + "!", " " + text, text + "A" * 5000, ""):
        with pytest.raises(BadCursor):
            pages.position(other, FILTERS, int)


@pytest.mark.parametrize("limit", [0, -1, 501, 10**30, True, "5", 1.5, None])
def test_a_limit_out_of_range_is_refused(limit: Any) -> None:
    with pytest.raises(ValidationError, match="give 1 to 500") as refused:
        pages.check_limit(limit)
    assert refused.value.field == "limit"


def test_a_page_has_a_next_one_if_more_was_found() -> None:
    full = pages.page(["a", "b", "c"], 2, FILTERS, lambda name: name)
    assert (full.items, pages.position(full.next, FILTERS, str)) == (["a", "b"], "b")
    assert pages.page(["a", "b"], 2, FILTERS, lambda name: name) == Page(["a", "b"])
    assert pages.page([], 2, FILTERS, str) == Page([])


def test_a_page_survives_json() -> None:
    page = Page([1, 2], "next", datetime(2026, 11, 15, tzinfo=UTC))
    assert msgspec.json.decode(msgspec.json.encode(page), type=Page[int]) == page


# ── lists ───────────────────────────────────────────────────────────────────────────────────────


async def agents(conn: Connection) -> None:
    for number, name in enumerate(("b", "a", "b", "c", "é"), 1):
        await add_agent(conn, name, number)


async def servers(conn: Connection) -> None:
    for number, (name, status) in enumerate((("b", "dead"), ("b", "active"), ("a", "active"), ("c", "stopped"))):
        id = await add_server(conn, name)
        await conn.execute(
            "update mainspring.server set status = $2, started_at = started_at + $3 * interval '1 s' where id = $1",
            *(id, status, number % 2),
        )


async def made_tokens(conn: Connection) -> None:
    for number in range(5):
        await access.create_token(conn, ACTOR, f"t{number}", role=Role.VIEWER, jobs=["a*"] if number % 2 else ["b"])


async def made_sessions(conn: Connection) -> None:
    for _ in range(5):
        login = await access.create_login(conn, ACTOR)
        await access.exchange_login(conn, ACTOR, code=login.code)


Lists = Callable[..., Awaitable[Page[Any]]]
LISTS: dict[str, tuple[Lists, Callable[[Connection], Awaitable[None]], dict[str, Any]]] = {
    "agents": (fleet.listing, agents, {}),
    "servers": (cluster.servers, servers, {"everything": True}),
    "tokens": (access.list_tokens, made_tokens, {}),
    "sessions": (access.list_sessions, made_sessions, {}),
}


@pytest.mark.parametrize("name", LISTS)
async def test_the_pages_of_a_list_are_the_whole_list(conn: Connection, name: str) -> None:
    listing, fill, filters = LISTS[name]
    await fill(conn)
    whole = await listing(conn, ACTOR, limit=500, **filters)
    assert len(whole.items) >= 4
    assert whole.next is None

    def places(items: list[Any]) -> list[Any]:
        return [(getattr(one, "name", ""), getattr(one, "session", 0), getattr(one, "id", 0)) for one in items]

    for limit in (1, 2, len(whole.items)):
        found: list[Any] = []
        cursor = None
        while not found or cursor is not None:
            page = await listing(conn, ACTOR, cursor=cursor, limit=limit, **filters)
            assert len(page.items) <= limit
            found += page.items
            cursor = page.next
        assert places(found) == places(whole.items)
    with pytest.raises(BadCursor):
        await listing(conn, ACTOR, cursor=pages.cursor({"list": "another"}, 1), **filters)
    with pytest.raises(ValidationError, match="limit"):
        await listing(conn, ACTOR, limit=501, **filters)


async def test_a_narrowed_admin_gets_full_pages_of_the_tokens_that_it_reaches(conn: Connection) -> None:
    await made_tokens(conn)
    narrow = Actor("narrow", Role.ADMIN, jobs=("a*",))
    page = await access.list_tokens(conn, narrow, limit=1)
    assert ([token.name for token in page.items], page.next is None) == (["t1"], False)
    page = await access.list_tokens(conn, narrow, limit=1, cursor=page.next)
    assert ([token.name for token in page.items], page.next) == (["t3"], None)
