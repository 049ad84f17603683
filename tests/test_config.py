"""Settings: flags win over the environment, that over the file; what makes no sense is refused by name."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mainspring import config
from mainspring.agent.connection.connector import server_urls
from mainspring.compose.local import make_server
from mainspring.compose.network import address
from mainspring.config import Settings, load
from mainspring.errors import ValidationError
from mainspring.server.cluster.identity import Identity
from mainspring.store.cluster import settings
from mainspring.store.postgres.database import Connection, Database
from tests.sdk.test_wrong_types import refuse_all


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from any mainspring.toml."""
    monkeypatch.chdir(tmp_path)


def test_without_anything_the_defaults_hold() -> None:
    settings = load(environment={})
    assert settings.dsn is None
    assert (settings.slots, settings.lease, settings.lead) == (100, 15.0, 5.0)
    assert settings.agent_name == "", "compose names it: hosts may have several"


async def test_the_placement_of_the_file_counts_until_the_cluster_has_one(
    tmp_path: Path, database: Database, conn: Connection
) -> None:
    (tmp_path / "mainspring.toml").write_text('placement = "least_tasks"\n')
    server = make_server(load(environment={}), database, Identity(uuid4()), None, {})
    await server.catalogue.refresh()
    assert server.catalogue.strategy == "least_tasks"
    await settings.put(conn, "placement", "resources")
    await server.catalogue.refresh()
    assert server.catalogue.strategy == "resources"


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('slots = 1\nthreads = 2\npoll = "250ms"\nagent_name = "from file"\n')
    environment = {"MAINSPRING_SLOTS": "10", "MAINSPRING_THREADS": "20"}
    settings = load({"slots": 100, "threads": None}, environment=environment)
    assert (settings.slots, settings.threads, settings.poll) == (100, 20, 0.25)
    assert settings.agent_name == "from file"


def test_the_file_may_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("slots = 1\n")
    named = tmp_path / "other.toml"
    named.write_text("slots = 2\n")
    assert load(environment={}).slots == 1
    assert load(environment={"MAINSPRING_CONFIG": str(named)}).slots == 2


def test_an_empty_variable_is_no_setting() -> None:
    assert load(environment={"MAINSPRING_DSN": "", "MAINSPRING_SLOTS": ""}) == load(environment={})


def test_the_environment_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DSN", "postgresql://somewhere/shop")
    assert load().dsn == "postgresql://somewhere/shop"
    assert load({"dsn": "postgresql://elsewhere/shop"}).dsn == "postgresql://elsewhere/shop"


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("1.5", 1.5), ("90s", 90.0), ("1m30s", 90.0)])
def test_durations_are_written_as_people_do(text: str, seconds: float) -> None:
    assert load(environment={"MAINSPRING_LEASE": text}).lease == seconds


@pytest.mark.parametrize("given", ["10.0.0.0/8, shop.example,", ["10.0.0.0/8", "shop.example"]])
def test_what_http_jobs_may_call_is_a_list_or_text(given: Any) -> None:
    assert load({"http_allow": given}, environment={}).http_allow == ("10.0.0.0/8", "shop.example")


@pytest.mark.parametrize("name", ["run_as", "allow_commands", "allow_env"])
def test_lists_are_written_with_commas_or_as_lists(tmp_path: Path, name: str) -> None:
    assert getattr(load(environment={f"MAINSPRING_{name.upper()}": "alice, /opt/*,"}), name) == ("alice", "/opt/*")
    (tmp_path / "mainspring.toml").write_text(f'{name} = ["alice", "/opt/*"]\n')
    assert getattr(load(environment={}), name) == ("alice", "/opt/*")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"http_allow": "10.0.0.1/8"}, "http_allow"),
    ({"http_allow": "http://shop.example"}, "http_allow"),
    ({"http_allow": 5}, "http_allow"),
    ({"slots": 0}, "slots"),
    ({"slots": 100_001}, "slots"),
    ({"slots": "many"}, "slots"),
    ({"slots": 1.5}, "slots"),
    ({"threads": -1}, "threads"),
    ({"poll": 0}, "poll"),
    ({"poll": "61s"}, "poll"),
    ({"lead": -1}, "lead"),
    ({"lead": "2h"}, "lead"),
    ({"lease": "500ms"}, "lease"),
    ({"lease": "soon"}, "lease"),
    ({"lease": True}, "lease"),
    ({"lease": float("nan")}, "lease"),
    ({"stop_patience": float("inf")}, "stop_patience"),
    ({"keep_failed": "11y"}, "keep_failed"),
    ({"dsn": 5}, "dsn"),
    ({"slotz": 5}, "slotz"),
    ({"run_as": 5}, "run_as"),
    ({"allow_commands": [5]}, "allow_commands"),
    ({"agent_name": "a\tb"}, "agent_name"),
    ({"placement": "luck"}, "placement"),
    ({"agent_name": "a" * 201}, "agent_name"),
    ({"server_name": " a"}, "server_name"),
    ({"labels": "zone=a\x07"}, "labels"),
    ({"labels": {"": "b"}}, "labels"),
]


@pytest.mark.parametrize(("given", "field"), BAD)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        load(given, environment={})
    assert refused.value.field == field
    assert next(iter(given)) in refused.value.message


@pytest.mark.parametrize(("given", "field"), BAD[:3])
def test_it_is_refused_from_the_environment_too(given: dict[str, Any], field: str) -> None:
    ((name, value),) = given.items()
    with pytest.raises(ValidationError) as refused:
        load(environment={f"MAINSPRING_{name.upper()}": str(value)})
    assert refused.value.field == field


@pytest.mark.parametrize(
    "content",
    [b"slots = ", b"\xff\xfe", b"[server]\nslots = 1\n", b"slots = [1]\n"],
    ids=["syntax", "bytes", "table", "type"],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mainspring.toml").write_bytes(content)
    with pytest.raises(ValidationError, match=r"^(config|server|slots): "):
        load(environment={})


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"^config: .*missing\.toml cannot be read"):
        load(environment={"MAINSPRING_CONFIG": str(tmp_path / "missing.toml")})


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Settings().slots = 5  # type: ignore[misc]


def test_what_an_agent_offers_is_given_as_text_or_as_a_table(tmp_path: Path) -> None:
    assert load(environment={"MAINSPRING_OFFERS": "gpu=2,memory_gb=0.5"}).offers == {"gpu": 2.0, "memory_gb": 0.5}
    (tmp_path / "mainspring.toml").write_text("[offers]\ngpu = 4\n")
    assert load(environment={}).offers == {"gpu": 4.0}
    assert load({"offers": "gpu=1"}, environment={}).offers == {"gpu": 1.0}


@pytest.mark.parametrize("given", ["gpu", "gpu=", "gpu=many", "gpu=-1", "gpu=inf", "@gpu=1", {"gpu": "2"}, ["gpu"]])
def test_an_offer_that_is_no_amount_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="^offers: "):
        load({"offers": given}, environment={})


def _warnings(caplog: pytest.LogCaptureFixture, *names: str) -> list[str]:
    config._warned.clear()
    caplog.clear()
    load(environment=dict.fromkeys(names, "x"))
    load(environment=dict.fromkeys(names, "x"))  # once is enough
    return caplog.messages


def test_a_misspelt_variable_is_told_once_with_what_may_have_been_meant(caplog: pytest.LogCaptureFixture) -> None:
    assert _warnings(caplog, "MAINSPRING_SLOT", "MAINSPRING_XYZZY", "OTHER_SLOT") == [
        "MAINSPRING_SLOT is no setting and is ignored; did you mean MAINSPRING_SLOTS?",
        "MAINSPRING_XYZZY is no setting and is ignored",
    ]


def test_variables_that_others_set_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    services = ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_7070_TCP_ADDR", "SERVER_PORT_7070_TCP")
    assert _warnings(caplog, *(f"MAINSPRING_{name}" for name in services)) == []


def test_every_variable_of_the_source_is_known(caplog: pytest.LogCaptureFixture) -> None:
    sources = Path(config.__file__).parent.rglob("*.py")
    named = {name for path in sources for name in re.findall(r"\bMAINSPRING_[A-Z_]*[A-Z]\b", path.read_text())}
    assert {"MAINSPRING_TASK_ID", "MAINSPRING_SLOTS"} <= named
    config._warned.clear()
    config._warn_of_unknown(dict.fromkeys(named, "x"))
    assert caplog.messages == []


def test_a_misspelt_setting_in_the_file_is_told_with_what_may_have_been_meant(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("slot = 3\n")
    with pytest.raises(ValidationError, match="slot: no such setting; did you mean slots?"):
        load(environment={})


def test_a_token_in_one_form_overrides_the_other_form_from_further_away(tmp_path: Path) -> None:
    config = tmp_path / "mainspring.toml"
    config.write_text('token_file = "/run/token"')
    environment = {"MAINSPRING_CONFIG": str(config)}
    assert load(environment=environment).token_file == "/run/token"
    environment["MAINSPRING_TOKEN"] = "ms_variable"
    found = load(environment=environment)
    assert (found.token, found.token_file) == ("ms_variable", None)
    found = load({"token_file": "/tmp/token"}, environment=environment)
    assert (found.token, found.token_file) == (None, "/tmp/token")
    with pytest.raises(ValidationError, match="give one of them"):
        load({"token_file": "/tmp/token", "token": "ms_flag"}, environment=environment)


# ── values of every wrong kind ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_a_setting_of_a_wrong_kind_is_refused_by_name(name: str) -> None:
    def given(value: Any) -> None:
        if value is not None:
            load({name: value}, environment={})

    assert refuse_all(given) > 10


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_a_variable_with_anything_in_it_is_a_setting_or_an_error_of_ours(name: str) -> None:
    texts = ["nan", "inf", "-inf", "1e999", "9" * 5000, "-1", "[", "{}", "a=b=c", ",", "a\0b", "\ud800", "x" * 100_000]
    for text in [*texts, "10.0.0.0/99", "\u0661", "0x10", "1_0", "true", "null"]:
        with suppress(ValidationError):
            settings = load(environment={f"MAINSPRING_{name.upper()}": text})
            value = getattr(settings, name)
            assert not isinstance(value, float) or math.isfinite(value)
            assert not isinstance(value, str) or "\0" not in value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clock_offset": "inf"}, "clock_offset: inf; at most 3.1536e+08"),
        ({"lead_load_factor": float("nan")}, "lead_load_factor: nan; at most 1000"),
        ({"lead_latency_factor": -1}, "lead_latency_factor: -1.0; at least 0"),
        ({"slots": 10**400}, "slots: "),
        ({"token": "a\0b"}, "token: holds a NUL character"),
        ({"run_as": ["a\0b"]}, "run_as: holds a NUL character"),
        ({"tls_cert": "x\0"}, "tls_cert: holds a NUL character"),
    ],
)
def test_a_number_or_text_that_nothing_can_use_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        load(given, environment={})
    assert refused.value.message.startswith(message)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, "slots = inf", "clock_offset = nan", 'token = "a\\u0000b"'])
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mainspring.toml").write_text(text)
    with pytest.raises(ValidationError):
        load(environment={})


@pytest.mark.parametrize("text", ["127.0.0.1:" + "9" * 5000, "x:\u0661", ":", "x:-1", "\ud800:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        address(load({"listen": text}, environment={}).listen)


@pytest.mark.parametrize(
    "text", ["ws://[", "ws://x:99999", "ws://x:\u0661", "ws://", ",", "ftp://x", "x" * 100_000 + " y://"]
)
def test_a_server_that_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        server_urls(text)
