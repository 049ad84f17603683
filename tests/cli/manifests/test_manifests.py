"""`plan`, `apply`, `export`: on the database and over HTTP, with their exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from mainspring.cli.manifests import files

SHOP = """
mainspring: 1
set: shop
jobs:
  report: {command: [./report.sh], timeout: 10m, env: {API_TOKEN: hunter2}}
schedules:
  daily: {job: report, daily: "09:00", tz: Europe/Paris}
  off: {job: report, every: 1h, enabled: false}
calendars: {holidays: ["12-25"]}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP)
    return path


def test_a_set_is_planned_applied_exported_and_pruned(cli: Cli, shop: Path, tmp_path: Path) -> None:
    planned = cli("plan", "-f", str(shop))
    assert planned.code == 0
    assert '+ job report: command ["./report.sh"], timeout 10m, env {"API_TOKEN":"***"}' in planned.out
    assert "+ schedule daily: At 09:00 every day (Europe/Paris), job report, first " in planned.out
    assert "+ schedule off: every hour (UTC), job report, disabled\n" in planned.out
    assert planned.out.endswith("set shop: 4 to create, 0 unchanged\n")
    assert cli("plan", "-f", str(shop), "--check").code == 1
    applied = cli("apply", "-f", str(shop), "--yes")
    assert (applied.code, applied.out, applied.err.endswith("applied\n")) == (0, "", True)
    assert cli("plan", "-f", str(shop), "--check").out == "set shop: nothing to change, 4 unchanged\n"
    exported = cli("export", "--set", "shop")
    assert (exported.code, "hunter2" in exported.out) == (0, False)
    (tmp_path / "exported.yaml").write_text(exported.out)
    assert cli("plan", "-f", str(tmp_path / "exported.yaml"), "--check", "--prune").code == 0
    assert "hunter2" in cli("export", "--set", "shop", "--reveal").out
    shop.write_text(SHOP.replace("09:00", "10:30").replace("10m", "5m").replace("  off:", "  on:"))
    changed = cli("plan", "-f", str(shop), "--prune", "--check")
    assert changed.code == 1
    assert "~ job report\n    timeout: 10m → 5m\n" in changed.out
    assert "    cron: 0 9 * * * → 30 10 * * *\n    is then: At 10:30 every day\n    next before: " in changed.out
    assert "- schedule off\n" in changed.out
    assert cli("apply", "-f", str(shop), "--prune", "--yes").code == 0
    assert [one["name"] for one in cli("schedule", "list", "--json").json] == ["daily", "on"]


def test_json_is_for_programs_and_a_hash_for_what_was_seen(cli: Cli, shop: Path) -> None:
    planned = cli("plan", "-f", str(shop), "--json").json
    assert (planned["created"], planned["set"]) == (4, "shop")
    assert cli("job", "create", "report", "--", "echo").code == 0
    refused = cli("apply", "-f", str(shop), "--yes", "--adopt", "--hash", planned["hash"], "--json")
    assert (refused.code, json.loads(refused.err)["code"]) == (4, "stale_version")
    done = cli("apply", "-f", str(shop), "--yes", "--adopt", "--json").json
    assert (done["created"], done["changed"]) == (3, 1)
    again = cli("apply", "-f", str(shop), "--yes").err
    assert again == "set shop: nothing to change, 4 unchanged\nnothing to do\n"


def test_without_a_terminal_nothing_is_written_unasked(cli: Cli, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cli("apply", "-f", str(shop), "--prune")
    assert refused.code == 2
    assert f"then type `mainspring apply -f {shop} --prune --yes`" in refused.err
    monkeypatch.setattr(files, "is_asked", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    declined = cli("apply", "-f", str(shop))
    assert (declined.code, declined.err.endswith("nothing was changed\n")) == (1, True)
    assert cli("job", "list", "--json").json == []
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert cli("apply", "-f", str(shop)).code == 0
    assert len(cli("job", "list", "--json").json) == 1


def test_a_mistake_in_an_object_names_its_file_and_its_key(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "mainspring: 1\njobs:\n  report: {command: [a], timout: 1m}\n  b.c: {command: [a], retries: x}\n"
    )
    (tmp_path / "b.json").write_text('{"mainspring": 1, "schedules": {"s": {"job": "report", "cron": "61 * * * *"}}}')
    refused = cli("plan", "-f", str(tmp_path))
    assert (refused.code, refused.out) == (2, "")
    first, second, third = refused.err.splitlines()
    assert f"{tmp_path}/a.yaml: jobs.report.timout: no such member of a job; did you mean timeout?" in first
    assert second.startswith(f"{tmp_path}/a.yaml: jobs.b.c.retries: 'x'; give 0 to")
    assert third.startswith(f"{tmp_path}/b.json: schedules.s.cron: ")


def test_owners_are_named(cli: Cli, shop: Path, tmp_path: Path) -> None:
    assert cli("apply", "-f", str(shop), "--yes").code == 0
    other = tmp_path / "other.yaml"
    other.write_text(SHOP.replace("set: shop", "set: other"))
    refused = cli("plan", "-f", str(other))
    assert refused.code == 4
    assert f"{other}: job 'report': it belongs to the set 'shop'" in refused.err
    assert len(refused.err.splitlines()) == 4
    assert cli("export", "--set", "other").code == 3


def test_a_manifest_comes_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (SHOP, '{"mainspring": 1, "set": "shop", "jobs": {"a": {"command": ["x"]}}}'):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert cli("plan", "-f", "-").code == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SHOP.encode())))
    assert cli("apply", "-f", "-").code == 2, "there is nobody to ask"


def test_all_that_was_made_by_hand_is_exported(cli: Cli, tmp_path: Path) -> None:
    assert cli("job", "create", "hello", "--timeout", "90", "--", "echo", "hello").code == 0
    assert cli("schedule", "create", "nightly", "hello", "--cron", "0 2 * * *", "--enable").code == 0
    exported = cli("export")
    assert exported.out == (
        "mainspring: 1\n"
        "jobs:\n  hello:\n    command: [echo, hello]\n    timeout: 1m30s\n"
        "schedules:\n  nightly: {job: hello, cron: 0 2 * * *, tz: UTC}\n"
    )
    (tmp_path / "all.yaml").write_text(exported.out)
    assert cli("plan", "-f", str(tmp_path / "all.yaml"), "--check").code == 0
    assert cli("export", "--json").json["jobs"] == {"hello": {"command": ["echo", "hello"], "timeout": "1m30s"}}


def test_the_schema_for_editors_needs_no_database(offline: Cli) -> None:
    schema = offline("export", "--schema").json
    assert (schema["properties"]["mainspring"]["enum"], schema["additionalProperties"]) == ([1], False)
