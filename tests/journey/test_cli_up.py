"""A person at a terminal: start everything, define a job, run it, read its output, stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journey.processes import environment, mainspring, running, state_of, until_state


@pytest.fixture
def data_directory() -> Iterator[Path]:
    """A directory that the account of the embedded PostgreSQL can reach."""
    directory = Path(tempfile.mkdtemp(prefix="mainspring-cli-", dir="/var/lib" if os.geteuid() == 0 else None))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_from_nothing_to_the_output_of_a_first_task(dsn: str) -> None:
    here = {"env": environment(MAINSPRING_DSN=dsn)}
    with running("up", "--json", "--name", "mine", **here) as up:
        told = up.ready()
        url = told.pop("url")
        assert url.startswith("http://127.0.0.1:")
        assert told.pop("login_url").startswith(f"{url}/login#")
        assert told == {"agent": "mine", "slots": 100, "jobs": [], "dsn": dsn}
        up.until_told("mainspring task submit hello --wait")
        script = "printf 'out\\377'; echo err >&2; echo \"$MAINSPRING_ARGS\""
        assert mainspring("job", "create", "hello", "--shell", "--", script, **here).returncode == 0
        done = mainspring("task", "submit", "hello", "--arg", "day=mon", "--wait", **here)
        assert (done.returncode, done.stdout, done.stderr) == (0, '{"exit_code":0}\n', "task 1 submitted\n")
        shown = json.loads(mainspring("task", "show", "1", "--json", **here).stdout)
        assert shown["state"] == "succeeded"
        assert shown["lateness_ms"] >= 0
        assert [(a["number"], a["state"], a["agent"]) for a in shown["attempts"]] == [(1, "succeeded", "mine")]
        logs = mainspring("task", "logs", "1", errors="surrogateescape", **here)
        assert (logs.stdout, logs.stderr) == ('out\udcff{"day": "mon"}\n', "err\n")
        pieces = [json.loads(line) for line in mainspring("task", "logs", "1", "--json", **here).stdout.splitlines()]
        assert {piece["stream"] for piece in pieces} == {"stdout", "stderr"}
        assert json.loads(mainspring("stats", "--json", **here).stdout)["agents"][0]["name"] == "mine"
        up.signal(signal.SIGTERM)
        assert up.end() == 0
    assert "".join(up.notes).endswith("stopping\nstopped\n")


def test_a_failed_task_ends_the_wait_with_seven_and_its_story_can_be_read(dsn: str) -> None:
    here = {"env": environment(MAINSPRING_DSN=dsn)}
    with running("up", "--json", **here) as up:
        up.ready()
        mainspring("job", "create", "bad", "--backoff", "0s", "--", "sh", "-c", "echo no disk >&2; exit 3", **here)
        done = mainspring("task", "submit", "bad", "--wait", **here)
        assert done.returncode == 7
        assert "mainspring: task 1 failed: exit code 3: no disk; `mainspring task logs 1`" in done.stderr
        shown = mainspring("task", "show", "1", **here).stdout
        assert shown.count("exit code 3") == 3  # the task and its two attempts
        assert mainspring("task", "logs", "1", **here).stderr == "no disk\nno disk\n"


def test_logs_follow_a_task_until_it_ends_with_the_time_before_each_line(dsn: str) -> None:
    here = {"env": environment(MAINSPRING_DSN=dsn)}
    with running("up", "--json", **here) as up:
        up.ready()
        script = "printf 'half '; sleep 0.3; printf 'a line\\r\\nlast'; sleep 0.3; echo"
        mainspring("job", "create", "slow", "--shell", "--", script, **here)
        mainspring("task", "submit", "slow", **here)
        with running("task", "logs", "-f", "--timestamps", "1", **here) as logs:
            assert logs.end() == 0
            first, second = logs.line(), logs.line()
    assert first[:2] == "20"
    assert first[24:] == " half a line\n"  # a text stream gives every end of line as \n
    assert second[24:] == " last\n"


def test_stopping_waits_for_what_runs(dsn: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with running("up", "--json", "--dsn", dsn) as up:
        up.ready()
        mainspring("job", "create", "slow", "--dsn", dsn, "--shell", "--", f"until [ -e {go} ]; do sleep 0.02; done")
        mainspring("task", "submit", "slow", "--dsn", dsn)
        until_state("1", "running", dsn)
        up.signal(signal.SIGTERM)
        up.until_told("stopping; 1 task still runs")
        assert up.child.poll() is None
        go.touch()
        assert up.end() == 0
    assert state_of("1", dsn) == "succeeded"


def test_a_second_signal_stops_what_runs_and_costs_it_no_attempt(dsn: str) -> None:
    patient = environment(MAINSPRING_STOP_PATIENCE="10m")
    with running("up", "--json", "--dsn", dsn, env=patient) as up:
        up.ready()
        mainspring("job", "create", "long", "--dsn", dsn, "--", "sleep", "600")
        mainspring("task", "submit", "long", "--dsn", dsn)
        until_state("1", "running", dsn)
        up.signal(signal.SIGINT)
        up.until_told("stopping; 1 task still runs")
        up.signal(signal.SIGINT)
        assert up.end() == 0
    shown = json.loads(mainspring("task", "show", "1", "--dsn", dsn, "--json").stdout)
    assert (shown["state"], shown["attempt"]) == ("pending", 0)


def test_a_running_task_is_cancelled(dsn: str) -> None:
    with running("up", "--json", "--dsn", dsn) as up:
        up.ready()
        mainspring("job", "create", "long", "--dsn", dsn, "--", "sleep", "600")
        mainspring("task", "submit", "long", "--dsn", dsn)
        until_state("1", "running", dsn)
        assert mainspring("task", "cancel", "1", "--dsn", dsn).stdout == "1\tstop requested\n"
        assert mainspring("task", "wait", "1", "--dsn", dsn).returncode == 7
        assert state_of("1", dsn) == "cancelled"


def test_a_password_is_never_shown(dsn: str) -> None:
    with_password = f"{dsn}{'&' if '?' in dsn else '?'}password=secret"
    with running("up", "--json", "--dsn", with_password) as up:
        assert up.ready()["dsn"].endswith("password=***")
        up.until_told("Ctrl-C stops")
    assert not any("secret" in note for note in up.notes)


def test_what_is_submitted_while_nothing_runs_waits_in_the_embedded_database(data_directory: Path) -> None:
    data = ("--data", str(data_directory))
    away = {"env": environment(MAINSPRING_DSN="postgresql://127.0.0.1:1/away")}  # --data wins over it
    assert mainspring("job", "create", "hello", *data, "--", "echo", "hello", **away).returncode == 0
    assert mainspring("task", "submit", "hello", *data, **away).stdout == "1\n"
    with running("up", "--json", *data, **away) as up:
        assert up.ready()["data"] == str(data_directory)
        assert mainspring("task", "wait", "1", *data, **away).stdout == '{"exit_code":0}\n'
        up.signal(signal.SIGINT)
        assert up.end() == 0
    assert any(f"mainspring task list --data {data_directory}" in note for note in up.notes)
