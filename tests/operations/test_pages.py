"""Pages: cursors that continue behind an item, and belong to their filters."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import BadCursor, ValidationError
from mainspring.operations import pages
from mainspring.operations.pages import Page

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
