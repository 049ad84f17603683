"""Warm: Python scripts at distinct instants; from the instant to the script's first line, cold and warm in one run.

Cold is the same script as a plain command. The script imports `--modules` heavy modules of the standard library.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mainspring
from benchmarks.common import arguments, quantiles, run

MODULES = ("asyncio", "email.message", "http.client", "json", "logging", "sqlite3", "unittest", "xml.dom.minidom")

# The instant comes in the environment; when the script began goes to a file of its own.
SCRIPT = """
import {modules}
import os, time
now = time.time()
with open(os.path.join({directory!r}, os.environ["MAINSPRING_TASK_ID"]), "w") as file:
    file.write(repr(now))
"""


def write_script(directory: str, modules: tuple[str, ...]) -> str:
    script = Path(directory, "script.py")
    script.write_text(SCRIPT.format(modules=", ".join(("sys", *modules)), directory=directory))
    return str(script)


def lateness(directory: str, instants: dict[int, float]) -> dict[str, float]:
    return quantiles([(float(Path(directory, str(id)).read_text()) - at) * 1000 for id, at in instants.items()])


async def warm(dsn: str, tasks: int, seconds: int, modules: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        heavy = MODULES[:modules]
        script = write_script(directory, heavy)
        app = mainspring.App("bench", dsn=dsn)
        jobs = {
            "cold": app.command("cold", [sys.executable, script], retries=0),
            "warm": app.command("warm", [script], python=True, warm=heavy, retries=0),
        }
        instants: dict[str, dict[int, float]] = {name: {} for name in jobs}
        async with app.running():
            first = datetime.now(UTC) + timedelta(seconds=3)
            submitted = []
            for number in range(2 * tasks):
                name = ("cold", "warm")[number % 2]
                instant = first + timedelta(seconds=seconds) * number / (2 * tasks)
                task = await jobs[name].using(run_at=instant).enqueue()
                instants[name][task.id] = instant.timestamp()
                submitted.append(task)
            await asyncio.gather(*(task.result(timeout=seconds + 60) for task in submitted))
        late = {name: lateness(directory, those) for name, those in instants.items()}
    figures = {f"{name}_{key}": value for name, each in late.items() for key, value in each.items()}
    return {**figures, "p50_ratio": round(late["cold"]["p50_ms"] / late["warm"]["p50_ms"], 2)}


def main() -> None:
    args = arguments(__doc__ or "", tasks=40, seconds=20, modules=len(MODULES), runs=3)
    run("warm", lambda dsn: warm(dsn, args.tasks, args.seconds, args.modules), args)


if __name__ == "__main__":
    main()
