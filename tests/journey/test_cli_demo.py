"""Somebody who wants to see it work: `mainspring demo`."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess

from tests.journey.processes import DEADLINE, command, mainspring, running


def test_the_demo_ends_with_one_json_object_on_stdout(dsn: str) -> None:
    done = mainspring("demo", "--seconds", "3", "--json", "--dsn", dsn)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.keys() == {"fired", "succeeded", "failed", "lateness_ms"}
    assert told["fired"] > 18
    assert told["succeeded"] > 18
    assert told["failed"] == 0, done.stderr
    late = told["lateness_ms"]
    assert 0 <= late["p50"] <= late["p99"] <= late["max"]
    fires = [line for line in done.stderr.splitlines() if re.match(r"\d\d:\d\d:\d\d\.\d{3}  \w+ +-?\d+\.\d ms  ", line)]
    assert max(map(len, done.stderr.splitlines())) <= 80, "an ordinary terminal"
    assert len(fires) == told["fired"]
    (header,) = [line for line in done.stderr.splitlines() if line.startswith("FIRED ")]
    for fire in fires:
        clock, job, _, _, outcome = fire.split()[:5]
        found = [fire.index(clock), fire.index(f" {job} ") + 1, fire.index(" ms  ") + 3, fire.index(f"  {outcome}") + 2]
        assert found == [0, header.index("JOB"), header.index("  AND"), header.index("AND THEN")], fire
    assert {"snoozed", "timed out, again", "cancelled", "try 3 succeeded"} <= _outcomes(fires)
    live = json.loads(mainspring("stats", "--json", "--dsn", dsn).stdout)["live"]
    assert not any(live.values())


def _outcomes(fires: list[str]) -> set[str]:
    return {re.split(r"  +", fire.partition(" ms  ")[2].strip())[0] for fire in fires}


def test_an_interrupted_demo_sums_up_and_leaves_nothing_behind(dsn: str) -> None:
    with running("demo", "--seconds", "600", "--dsn", dsn) as demo:
        while "tick" not in demo.line():
            pass
        demo.signal(signal.SIGINT)
        assert demo.end() == 0
    assert any("What next:" in note for note in demo.notes)
    assert json.loads(mainspring("stats", "--json", "--dsn", dsn).stdout)["pending_tasks"] == 0


def test_a_demo_whose_reader_goes_ends_quietly(dsn: str) -> None:
    line = shlex.join(command("demo", "--seconds", "600", "--dsn", dsn))
    script = f"({line}; echo code $? >&2) | head -1"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.count("\n") == 1
    assert re.fullmatch(r"demo: .*\nconsole .*\nFIRED .*\ncode 0\n", done.stderr)
