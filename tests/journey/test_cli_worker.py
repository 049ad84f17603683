"""A developer with an application: `mainspring worker shop:app`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.journey.processes import mainspring, running, until, until_state

SHOP = """
import logging
import time
import mainspring

app = mainspring.App("shop")

@app.on_failure
def tell(failure):
    logging.getLogger("shop").warning("told of %s", failure.exception)

@app.job(retries=0)
def fails(order: int) -> None:
    logging.getLogger("shop").info("looking at %d", order)
    raise ValueError(f"no order {order}")

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
        assert (ready["jobs"], ready["slots"]) == (["fails", "double", "hang"], 3)
        worker.until_told("the 3 jobs of shop:app")
        done = mainspring("task", "submit", "double", "--arg", "number=21", "--wait", "--dsn", dsn)
        assert (done.returncode, done.stdout) == (0, "42\n")
        done = mainspring("task", "submit", "double", "--arg", "number=many", "--wait", "--json", "--dsn", dsn)
        assert done.returncode == 7
        assert json.loads(done.stdout)["error_code"] == "bad_arguments"
        worker.until_told("ERROR double: task 2, attempt 1 of 4 failed, that was the last (bad_arguments: double: ")
        mainspring("task", "submit", "fails", "--arg", "order=7", "--dsn", dsn)
        worker.until_told("INFO [fails 3] looking at 7")
        worker.until_told("ERROR fails: task 3, attempt 1 of 1 failed, that was the last (handler_error: ValueError: ")
        worker.until_told("WARNING [fails 3] told of no order 7")
        log = "".join(worker.notes)
        assert "Traceback (most recent call last):\n  File" in log
        assert "in fails\n    raise ValueError" in log
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0


def test_a_thread_that_cannot_be_stopped_does_not_keep_the_process(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("retries=0", "retries=0, grace='200ms'"))
    with running("worker", "shop:app", "--json", "--dsn", dsn, cwd=tmp_path) as worker:
        worker.ready()
        mainspring("task", "submit", "hang", "--dsn", dsn)
        until_state("1", "running", dsn)
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


RELOADED = """
import asyncio
from pathlib import Path
import mainspring

app = mainspring.App("shop")

@app.job
async def version() -> int:
    return 1

@app.job
async def slow(until: str) -> int:
    while not Path(until).exists():
        await asyncio.sleep(0.01)
    return 1
"""


def test_a_worker_that_reloads_follows_the_edits_of_its_application(dsn: str, tmp_path: Path) -> None:
    shop = tmp_path / "shop.py"
    shop.write_text(RELOADED)

    def asked() -> str:
        return mainspring("task", "submit", "version", "--wait", "--dsn", dsn).stdout

    def started(name: str) -> str:
        slow = mainspring("task", "submit", "slow", "--arg", f"until={name}", "--dsn", dsn).stdout.strip()
        until_state(slow, "running", dsn)
        return slow

    arguments = ("worker", "shop:app", "--reload", "--json", "--dsn", dsn)
    with running(*arguments, cwd=tmp_path, start_new_session=True) as worker:
        worker.ready()
        assert asked() == "1\n"
        slow = started("first")
        shop.write_text(RELOADED.replace("return 1", "return 2"))
        worker.until_told("shop.py has changed")
        worker.until_told("stopping; 1 task still runs")
        (tmp_path / "first").touch()
        worker.ready()
        assert asked() == "2\n"
        assert mainspring("task", "wait", slow, "--dsn", dsn).stdout == "1\n", "what ran was let end, on its old code"
        shop.write_text("def")
        worker.until_told("SyntaxError")
        worker.until_told("it starts again when a file has changed")
        shop.write_text(RELOADED.replace("return 1", "return 3"))
        worker.ready()
        assert asked() == "3\n"
        slow = started("second")
        os.killpg(worker.child.pid, signal.SIGINT)  # as Ctrl-C does
        until(lambda: sum(said.startswith("stopping") for said in worker.notes) == 3)
        (tmp_path / "second").touch()
        assert worker.end() == 0
        shown = mainspring("task", "show", slow, "--dsn", dsn).stdout
        assert "\tsucceeded\n" in shown, "a signal reaches it once; a second one would have stopped the task"
