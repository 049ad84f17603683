"""A developer with an application: `mainspring worker shop:app`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.journey.processes import mainspring, running, until

SHOP = """
import time
import mainspring

app = mainspring.App("shop")

@app.job
async def double(number: int) -> int:
    return number * 2

@app.job(retries=0)
def hang() -> None:
    time.sleep(600)   # in a call that nobody can interrupt
"""


def test_the_handlers_of_an_application_run(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with running("worker", "shop:app", "--json", "--dsn", dsn, "--slots", "3", cwd=tmp_path) as worker:
        ready = worker.ready()
        assert (ready["jobs"], ready["slots"]) == (["double", "hang"], 3)
        worker.until_told("the 2 jobs of shop:app")
        done = mainspring("task", "submit", "double", "--arg", "number=21", "--wait", "--dsn", dsn)
        assert (done.returncode, done.stdout) == (0, "42\n")
        done = mainspring("task", "submit", "double", "--arg", "number=many", "--wait", "--json", "--dsn", dsn)
        assert done.returncode == 7
        assert json.loads(done.stdout)["error_code"] == "bad_arguments"
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0


def test_a_thread_that_cannot_be_stopped_does_not_keep_the_process(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("retries=0", "retries=0, grace='200ms'"))
    with running("worker", "shop:app", "--json", "--dsn", dsn, cwd=tmp_path) as worker:
        worker.ready()
        mainspring("task", "submit", "hang", "--dsn", dsn)
        until(lambda: "\trunning\n" in mainspring("task", "show", "1", "--dsn", dsn).stdout)
        worker.signal(signal.SIGTERM)
        worker.until_told("stopping; 1 task still runs")
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0


def test_an_application_that_is_not_there_is_told_before_anything_starts(dsn: str, tmp_path: Path) -> None:
    done = mainspring("worker", "shop:app", "--dsn", dsn, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("mainspring: app: no module 'shop' in ")
    (tmp_path / "shop.py").write_text("raise RuntimeError('no settings')")
    done = mainspring("worker", "shop:app", "--dsn", dsn, cwd=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: no settings" in done.stderr
    assert "Traceback" not in done.stderr
