"""Errors on the command line: one line, one exit code for each kind."""

from __future__ import annotations

import json

import click
import pytest

from mainspring import errors
from mainspring.cli.errors import explain, report
from mainspring.cli.main import cli

EXPECTED = {
    "MainspringError": 1,
    "ValidationError": 2,
    "BadCursor": 2,
    "Malformed": 2,
    "TooLarge": 2,
    "NotFound": 3,
    "JobNotFound": 3,
    "ScheduleNotFound": 3,
    "TaskNotFound": 3,
    "CalendarNotFound": 3,
    "AgentNotFound": 3,
    "ServerNotFound": 3,
    "TokenNotFound": 3,
    "RuleNotFound": 3,
    "AlertRuleNotFound": 3,
    "ChannelNotFound": 3,
    "BatchNotFound": 3,
    "SecretNotFound": 3,
    "Conflict": 4,
    "InvalidTransition": 4,
    "TaskExists": 4,
    "NameTaken": 4,
    "JobInUse": 4,
    "SecretUnavailable": 4,
    "StaleVersion": 4,
    "SessionSuperseded": 4,
    "StaleAttempt": 4,
    "BatchEnded": 4,
    "QueueFull": 4,
    "AccessDenied": 5,
    "Unauthorized": 5,
    "Forbidden": 5,
    "NoAgents": 1,
    "RateLimited": 1,
    "StoreUnavailable": 6,
    "StoreFull": 6,
    "ServerUnavailable": 6,
    "NotReady": 6,
    "Stopping": 6,
    "Busy": 6,
    "EmbeddedUnavailable": 6,
    "TaskFailed": 7,
    "BatchFailed": 7,
    "ResultLost": 1,
    "WaitTimeout": 124,
    "SchemaMismatch": 1,
    "BackupFailed": 1,
}


def _make(name: str) -> errors.MainspringError:
    kind: type[errors.MainspringError] = getattr(errors, name)
    if kind is errors.TaskFailed:
        return errors.TaskFailed("it failed", task_id=1, state="failed", error_code=None)
    return kind("what happened")


@pytest.mark.parametrize(("name", "code"), EXPECTED.items())
def test_every_error_of_the_tree_has_its_exit_code(name: str, code: int) -> None:
    assert explain(_make(name)).exit_code == code


def test_no_error_of_the_tree_is_forgotten_here() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree == EXPECTED.keys()


def test_an_error_inside_a_group_is_found() -> None:
    group = ExceptionGroup("loops", [ExceptionGroup("deeper", [errors.StoreUnavailable("PostgreSQL is away")])])
    assert explain(group).exit_code == 6


def test_an_unreachable_database_comes_with_advice() -> None:
    assert "check that it runs" in explain(errors.StoreUnavailable("PostgreSQL does not answer")).message


def test_a_usage_error_is_one_line_that_points_to_the_help() -> None:
    context = click.Context(click.Command("list"), info_name="mainspring")
    problem = explain(click.UsageError("No such\n   option.", context))
    assert problem == (2, "usage", "No such option; see `mainspring --help`", None)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (["task", "status", "5"], "show"),
        (["task", "submit", "disk", "--at", "09:00"], "--run-at"),
        (["job", "rm", "disk"], "delete"),
        (["channel", "create", "ops"], "set"),
        (["task", "shwo", "5"], "show"),
    ],
)
def test_a_word_that_people_type_leads_to_the_one_that_they_mean(said: list[str], meant: str) -> None:
    with pytest.raises(click.UsageError) as wrong:
        cli.main(said, standalone_mode=False)
    assert f"did you mean {meant}?" in explain(wrong.value).message


def test_a_bug_is_told_in_one_line_with_the_way_to_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code = report(RuntimeError("oh no"), as_json=False)
    assert code == 1
    assert capsys.readouterr().err == "mainspring: RuntimeError: oh no; this is a bug, MAINSPRING_DEBUG=1 shows where\n"


def test_a_traceback_comes_only_when_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DEBUG", "1")
    try:
        raise RuntimeError("oh no")
    except RuntimeError as error:
        report(error, as_json=False)
    assert "Traceback" in capsys.readouterr().err


def test_errors_for_programs_are_json_with_code_message_and_field(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.ValidationError("priority: 'x'", field="priority"), as_json=True)
    report(errors.JobNotFound("no job \udcff"), as_json=True)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {"code": "validation", "message": "priority: 'x'", "field": "priority"}
    assert second == {"code": "job_not_found", "message": "no job \udcff"}
