"""Define HTTP: what is accepted, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import ValidationError
from mainspring.model.tasks.define_http import MAX_BODY_BYTES, http, is_expected
from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import Http

URL = "https://shop.example/ping"


def test_a_request_is_kept_as_given() -> None:
    run = http("post", URL, headers={"X-Shop": " 7 "}, body="words", expect=["204", "3xx"], redirects=0)
    assert run == Http("POST", URL, {"X-Shop": "7"}, "words", ("204", "3xx"), 0)


def test_the_defaults_are_left_to_the_agent() -> None:
    assert http("GET", URL) == Http("GET", URL)


def test_json_becomes_a_body_with_its_type() -> None:
    assert http("POST", URL, json={"a": [1, None]}) == Http(
        "POST", URL, {"Content-Type": "application/json"}, '{"a":[1,null]}'
    )
    assert http("POST", URL, json=None).body == "null"
    typed = http("POST", URL, json=1, headers={"content-type": "application/vnd.shop+json"})
    assert typed.headers == {"content-type": "application/vnd.shop+json"}


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:8443/a?b=c#d", "http://[::1]:80/", "http://bücher.example/ü", "http://10.0.0.1"]
)
def test_urls_of_http_and_https_are_taken(url: str) -> None:
    assert http("GET", url).url == url


BAD: list[tuple[dict[str, Any], str]] = [
    ({"method": ""}, "method"),
    ({"method": "GET /x"}, "method"),
    ({"method": "GET\r\nX: y"}, "method"),
    ({"method": "CONNECT"}, "method"),
    ({"method": None}, "method"),
    ({"url": ""}, "url"),
    ({"url": None}, "url"),
    ({"url": "shop.example/ping"}, "url"),
    ({"url": "/ping"}, "url"),
    ({"url": "ftp://shop.example/"}, "url"),
    ({"url": "file:///etc/passwd"}, "url"),
    ({"url": "http://"}, "url"),
    ({"url": "http:///path"}, "url"),
    ({"url": "http://me:secret@shop.example/"}, "url"),
    ({"url": "http://me@shop.example/"}, "url"),
    ({"url": "http://@shop.example/"}, "url"),
    ({"url": "http://shop.example\\@10.0.0.1/"}, "url"),
    ({"url": "http://shop.example:0/"}, "url"),
    ({"url": "http://shop.example:99999/"}, "url"),
    ({"url": "http://shop.example:x/"}, "url"),
    ({"url": "http://[::1/"}, "url"),
    ({"url": "http://shop%2eexample/"}, "url"),
    ({"url": "http://a%2eb/"}, "url"),
    ({"url": "http://[fe80::1%25eth0]/"}, "url"),
    ({"url": "http://shop.example/a b"}, "url"),
    ({"url": "http://shop.example/\r\nX: y"}, "url"),
    ({"url": "http://shop.example/\x00"}, "url"),
    ({"url": "http://shop.example/\ud800"}, "url"),
    ({"url": "http://shop.example/" + "a" * 8000}, "url"),
    ({"headers": "X: y"}, "headers"),
    ({"headers": {"": "x"}}, "headers"),
    ({"headers": {"X Y": "x"}}, "headers"),
    ({"headers": {"X:": "x"}}, "headers"),
    ({"headers": {"X": "a\r\nY: b"}}, "headers"),
    ({"headers": {"X": "a\nb"}}, "headers"),
    ({"headers": {"X": "a\x00b"}}, "headers"),
    ({"headers": {"X": 1}}, "headers"),
    ({"headers": {"X": "a", "x": "b"}}, "headers"),
    ({"headers": {"Host": "other"}}, "headers"),
    ({"headers": {"Content-Length": "5"}}, "headers"),
    ({"headers": {"transfer-encoding": "chunked"}}, "headers"),
    ({"headers": {"Idempotency-Key": "mine"}}, "headers"),
    ({"headers": {"Mainspring-Task": "1"}}, "headers"),
    ({"headers": {"X": "a" * 17000}}, "headers"),
    ({"headers": {f"X-{number}": "a" for number in range(101)}}, "headers"),
    ({"headers": {f"X-{number}": "a" * 1000 for number in range(20)}}, "headers"),
    ({"body": b"bytes"}, "body"),
    ({"body": "a\x00"}, "body"),
    ({"body": "ü" * (MAX_BODY_BYTES // 2 + 1)}, "body"),
    ({"body": "x", "json": 1}, "body"),
    ({"json": float("nan")}, "json"),
    ({"json": object()}, "json"),
    ({"expect": "2XY"}, "expect"),
    ({"expect": "600"}, "expect"),
    ({"expect": "299-200"}, "expect"),
    ({"expect": "２００"}, "expect"),
    ({"expect": ""}, "expect"),
    ({"expect": {"200": 1}}, "expect"),
    ({"expect": True}, "expect"),
    ({"redirects": -1}, "redirects"),
    ({"redirects": 21}, "redirects"),
    ({"redirects": True}, "redirects"),
]


@pytest.mark.parametrize(("wrong", "field"), BAD)
def test_what_is_wrong_is_refused_by_its_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        http(**{"method": "POST", "url": URL, **wrong})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("expect", "good", "bad"),
    [
        ((), [200, 204, 299], [100, 199, 300, 304, 404, 500]),
        ("204", [204], [200, 205]),
        (204, [204], [200]),
        ("2xx,404", [200, 299, 404], [300, 403]),
        ("3XX", [300, 302, 399], [200, 400]),
        ("200-204", [200, 202, 204], [205, 199]),
        (["201", "300-399"], [201, 300, 399], [200, 400]),
    ],
)
def test_expected_statuses_are_single_ones_classes_and_ranges(expect: Any, good: list[int], bad: list[int]) -> None:
    words = http("GET", URL, expect=expect).expect
    assert all(is_expected(words, status) for status in good)
    assert not any(is_expected(words, status) for status in bad)


def test_a_call_cannot_be_effectively_once() -> None:
    with pytest.raises(ValidationError, match="effectively_once is for Python handlers"):
        define(http("GET", URL), {"delivery": "effectively_once"})
