"""`mainspring doctor`: the checks of operations/condition/health.py, and an exit code for scripts."""

from __future__ import annotations

from tests.cli.conftest import Cli, Stage
from tests.operations.test_health import CODES, make_healthy


def test_a_healthy_cluster_is_told_check_by_check(cli: Cli, stage: Stage) -> None:
    stage(make_healthy)
    done = cli("doctor")
    assert done.code == 0
    assert all(code in done.out for code in CODES)
    assert "the cluster is healthy" in done.err


def test_what_is_wrong_is_told_with_what_to_do_and_an_exit_code(cli: Cli) -> None:
    done = cli("doctor")
    assert done.code == 1
    assert "mainspring up" in done.out
    assert "the cluster is unhealthy" in done.err


def test_programs_get_the_same_as_json(cli: Cli) -> None:
    done = cli("doctor", "--json")
    assert done.code == 1
    assert done.json["status"] == "unhealthy"
    assert {check["code"] for check in done.json["checks"]} == CODES
    assert done.json["checks"][0].keys() == {"code", "status", "message", "since"}


def test_a_postgresql_that_does_not_answer_is_a_finding(offline: Cli) -> None:
    done = offline("doctor", "--json")
    assert done.code == 1
    assert [check["code"] for check in done.json["checks"]] == ["store_unavailable"]
