"""Masking: what looks like a secret is hidden, in the shape that it has; nothing else is touched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.access.masking import MASK, check_unmasked, masked
from mainspring.model.tasks.define_http import http
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.jobs import Definition

SECRET = [
    *("Authorization", "authorization", "Cookie", "X-Api-Key", "X-Auth", "X-Hub-Signature", "API_KEY", "PGPASSWORD"),
    *("DB_PASS", "DB_PASSWD", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_CREDENTIALS", "ADMIN_PWD", "X-AUTH-TOKEN"),
]
PLAIN = ["Accept", "Content-Type", "X-Shop", "AUTHOR", "REGION", "PATH", "HOME", "X-Request-Id", "LANG"]


@pytest.mark.parametrize("member", ["headers", "env", "environment"])
def test_values_of_headers_and_variables_are_hidden_by_their_names(member: str) -> None:
    found = masked({"run": {member: dict.fromkeys((*SECRET, *PLAIN), "hunter2")}})
    assert found == {"run": {member: dict.fromkeys(SECRET, MASK) | dict.fromkeys(PLAIN, "hunter2")}}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://shop:hunter2@db/shop", "postgres://shop:***@db/shop"),
        ("postgres://:hunter2@db/shop", "postgres://:***@db/shop"),
        ("curl https://hunter2@git.example/x", "curl https://***@git.example/x"),
        ("HTTPS://hunter2@git.example/x", "HTTPS://***@git.example/x"),
        ("https://shop.example/?api_key=hunter2&page=2", "https://shop.example/?api_key=***&page=2"),
        ("https://shop.example/?page=2&token=hunter2#x", "https://shop.example/?page=2&token=***#x"),
        ("PGPASSWORD=hunter2 pg_dump shop", "PGPASSWORD=*** pg_dump shop"),
        ("--password=hunter2", "--password=***"),
    ],
)
def test_credentials_in_texts_are_hidden_wherever_they_stand(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked({"argv": ["sh", text], "stdin": text}) == {"argv": ["sh", shown], "stdin": shown}


@pytest.mark.parametrize(
    "text",
    [
        "ssh://git@host/repository",
        "https://shop.example/a@b",
        "https://shop.example:8080/?page=2",
        "mail alice@example.org",
        "a=b",
        "shop:{shop}",
        "keyboard=us",
    ],
)
def test_what_holds_no_credential_is_left_as_it_is(text: str) -> None:
    assert masked(text) is text


def test_arguments_are_hidden_if_their_names_leave_no_doubt() -> None:
    given = {"args": {"password": "hunter2", "api_key": "hunter2", "key": "report:7", "day": "2026-11-15", "token": ""}}
    assert masked(given) == {"args": {**given["args"], "password": MASK, "api_key": MASK}}


def test_a_reference_to_a_secret_stays() -> None:
    given: dict[str, Any] = {"env": {"PGPASSWORD": {"$secret": "db"}, "TOKEN": {"$secret": "db", "value": "hunter2"}}}
    assert masked(given) == {"env": {"PGPASSWORD": {"$secret": "db"}, "TOKEN": MASK}}


def test_a_definition_stays_a_definition() -> None:
    env = {"PGPASSWORD": "hunter2", "REGION": "eu"}
    definition = define(command(["pg_dump", "postgres://u:hunter2@db/shop"], env=env), {"retries": 2})
    found = masked(definition)
    assert isinstance(found, Definition)
    assert found.retry == definition.retry
    assert "hunter2" not in str(found)
    assert definition.run.env == env, "the original is not touched"  # type: ignore[union-attr]
    call = define(http("POST", "https://shop.example/?token=hunter2", headers={"X-Api-Key": "hunter2"}), {})
    assert "hunter2" not in msgspec.json.encode(masked(call)).decode()


def test_what_has_nothing_to_hide_has_the_same_json() -> None:
    definition = define(command(["echo", "hello"], env={"REGION": "eu"}), {"timeout": "1h"})
    assert masked(definition) is definition


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["env", "headers", "a", "TOKEN"]), inner, max_size=3)
    ),
    max_leaves=20,
)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return [shape(one) for one in value] if isinstance(value, list) else None


@given(JSON)
def test_masking_twice_is_masking_once_and_keeps_every_member(value: Any) -> None:
    once = masked(value)
    assert masked(once) == once
    if MASK not in str(once):
        assert shape(once) == shape(value)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (define(command(["x"], env={"TOKEN": MASK}), {}), "run.env.TOKEN"),
        (define(http("GET", "https://shop.example/?token=***"), {}), "run.url"),
        ({"argv": ["psql", "postgres://u:***@db/x"]}, "argv[1]"),
    ],
)
def test_a_mask_is_not_taken_for_a_value(given: Any, path: str) -> None:
    with pytest.raises(ValidationError) as raised:
        check_unmasked(given)
    assert raised.value.field == path
    check_unmasked(define(command(["x", "**", "*"], env={"TOKEN": "hunter2"}), {}))
