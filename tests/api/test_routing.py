"""Routing: names with slashes and dots, unknown paths, other methods."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from mainspring.api.problems import MethodNotAllowed
from mainspring.api.routing import Router
from mainspring.errors import Malformed, NotFound


class Row(NamedTuple):
    method: str
    path: str


ROWS = [Row("GET", "/jobs"), Row("GET", "/jobs/{name}"), Row("PUT", "/jobs/{name}"), Row("POST", "/jobs/{name}/hold")]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/jobs/report", "report"),
        (b"/jobs/a%2Fb", "a/b"),
        (b"/jobs/a%20b%23", "a b#"),
        (b"/jobs/v1.2", "v1.2"),
        (b"/jobs/caf%C3%A9", "café"),
        (b"/jobs/%252F", "%2F"),
    ],
)
def test_a_name_is_what_lies_between_two_slashes_decoded_once(path: bytes, name: str) -> None:
    found = Router(ROWS).find("GET", path)
    assert found.row == Row("GET", "/jobs/{name}")
    assert found.names == {"name": name}


def test_a_slash_in_a_name_is_not_the_end_of_it() -> None:
    assert Router(ROWS).find("POST", b"/jobs/a%2Fhold/hold").names == {"name": "a/hold"}
    with pytest.raises(NotFound):
        Router(ROWS).find("GET", b"/jobs/a/b/c")


@pytest.mark.parametrize("path", [b"/", b"/job", b"/jobs/", b"/jobs//hold", b"//jobs/x/y"])
def test_a_path_that_is_not_there_is_not_found(path: bytes) -> None:
    with pytest.raises((NotFound, MethodNotAllowed)):
        Router(ROWS).find("DELETE", path)


def test_another_method_is_told_with_those_there_are() -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        Router(ROWS).find("POST", b"/jobs/report")
    assert refused.value.details["allowed"] == ["GET", "HEAD", "PUT"]
    assert Router(ROWS).find("HEAD", b"/jobs").row.method == "GET"


def test_a_thing_may_be_called_as_an_operation_of_its_collection_is() -> None:
    rows = [*ROWS, Row("POST", "/jobs/test"), Row("GET", "/tasks/{id}"), Row("POST", "/tasks/bulk")]
    assert Router(rows).find("POST", b"/jobs/test").row.path == "/jobs/test"
    for method in ("GET", "HEAD", "PUT"):
        assert Router(rows).find(method, b"/jobs/test").names == {"name": "test"}
    assert Router(rows).find("POST", b"/jobs/test/hold").row.path == "/jobs/{name}/hold"
    with pytest.raises(MethodNotAllowed):
        Router(rows).find("GET", b"/tasks/bulk")  # no number is called so


def test_a_path_that_is_no_utf_8_is_malformed() -> None:
    with pytest.raises(Malformed):
        Router(ROWS).find("GET", b"/jobs/%FF")
