"""Masking: what looks like a secret is hidden, in the shape that it has; nothing else is touched."""

from __future__ import annotations

import base64
import copy
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.access import masking
from mainspring.model.access.masking import (
    MASK,
    check_unmasked,
    hides_argument,
    mask_arguments_in_steps,
    masked,
    may_hide_in_steps,
)
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
        ('PGPASSWORD="hunter 2" psql', "PGPASSWORD=*** psql"),
        ("host=db password='hunter2' user=shop", "host=db password=*** user=shop"),
        ("postgres://shop:hun@ter2@db/shop", "postgres://shop:***@db/shop"),
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


@pytest.mark.parametrize("nested", [{"db": {"password": "hunter2"}}, {"all": [[{"login": {"password": "hunter2"}}]]}])
def test_arguments_are_hidden_however_deep_they_are(nested: Any) -> None:
    assert "hunter2" not in str(masked({"args": nested}))
    assert masked(nested) == nested, "outside of arguments and the like a name alone hides nothing"


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


def test_an_assignment_is_hidden_behind_others() -> None:
    shown = "a=b,token=***&page=2 x-api-key=*** pwd= auth==***"
    assert masked("a=b,token=x&page=2 x-api-key=y pwd= auth==z") == shown.replace("auth==***", "auth=***")


T = TypeVar("T")


def run(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What it returns, and how often it let others run."""
    rests = 0
    while True:
        try:
            next(steps)
            rests += 1
        except StopIteration as ended:
            found: T = ended.value
            return found, rests


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["env", "headers", "a", "TOKEN"]), inner, max_size=3)
    ),
    max_leaves=20,
)


TEXTS = st.sampled_from(["hunter2", "postgres://u:hunter2@db/x", "token=hunter2 x", "a=b", "", "day"])
NAMES = st.sampled_from(
    ["env", "headers", "password", "API_KEY", "key", "ping_url", "$secret", "args", "day", "Author"]
)
ARGUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=20,
)


@given(ARGUMENTS)
def test_arguments_are_masked_in_steps_as_they_are_in_one_go(value: Any) -> None:
    expected = masked({"args": {"all": value}})["args"]["all"]
    assert run(mask_arguments_in_steps(copy.deepcopy(value)))[0] == expected
    if expected != value:
        assert run(may_hide_in_steps(msgspec.json.encode(value)))[0]


def test_long_arguments_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "SEARCHED", 100)
    words = " ".join(["word", "token=hunter2", "quoted"] * 500)
    given = {"rows": [{"id": number, "password": "hunter2"} for number in range(5_000)], "text": words}
    shown, rests = run(mask_arguments_in_steps(given))
    assert "hunter2" not in str(shown)
    assert shown["text"] == masked(words)
    assert rests > 10
    assert run(may_hide_in_steps(b'"harmless"' * 1_000)) == (False, 100)


@pytest.mark.parametrize(
    "secret", ["password=hunter2&x=1", "postgres://u:hunter2@db/x", "https://hunter2@git.example/x", "&token=hunter2"]
)
def test_a_long_word_is_not_cut_within_a_secret(secret: str) -> None:
    for before in (masking.SEARCHED - offset for offset in (1, 5, 9, 11, 14, 20)):
        for text in ("&" * before + secret, secret + "&" * before * 2, f"a {'/' * before}{secret} b"):
            shown, _ = run(mask_arguments_in_steps([text]))
            assert "hunter2" not in shown[0], (before, text[:20])


def test_long_base64_is_shown() -> None:
    text = base64.b64encode(bytes(range(256)) * 400).decode()
    assert run(mask_arguments_in_steps([f"a {text}= b"]))[0] == [f"a {text}= b"]


@pytest.mark.parametrize(
    "hostile",
    [
        {("auth" * 220 + "x") + str(number): "v=1" for number in range(950)},
        ["a= " * 2_700 for _ in range(110)],
        ["token=a " * 1_000 for _ in range(110)],
        ["http://a:b@" * 740 for _ in range(110)],
        "a= " * 300_000,
    ],
    ids=["keys", "assignments", "tokens", "addresses", "text"],
)
def test_no_step_searches_more_than_a_few_thousand_characters(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = most = 0
    text, hides = masking._text, masking._hides

    def counted_text(given: str) -> str:
        nonlocal searched
        searched += len(given)
        return text(given)

    def counted_hides(name: Any, *given: Any) -> bool:
        nonlocal searched
        searched += len(name or "")
        return hides(name, *given)

    monkeypatch.setattr(masking, "_text", counted_text)
    monkeypatch.setattr(masking, "_hides", counted_hides)
    steps = mask_arguments_in_steps([hostile])
    total = 0
    for _ in steps:
        most, total, searched = max(most, searched), total + searched, 0
    assert total > 100_000
    assert max(most, searched) <= 2 * masking.SEARCHED


@pytest.mark.parametrize("name", ["x-api-key", "access_key", "private-key", "API KEY", "accessKey", "n" * 201])
def test_arguments_with_such_names_are_hidden(name: str) -> None:
    assert masked({"args": {name: 1, "other": 1}}) == {"args": {name: MASK, "other": 1}}
    assert run(mask_arguments_in_steps({name: 1, "other": 1}))[0] == {name: MASK, "other": 1}
    assert hides_argument(f"a.{name}.b")
    assert not hides_argument("a.other")


def test_the_trace_of_a_secret_is_found_where_parts_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "SEARCHED", 100)
    for before in range(80, 120):
        assert run(may_hide_in_steps(b"x" * before + b'"PassWord": 1' + b"x" * 200))[0]


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
