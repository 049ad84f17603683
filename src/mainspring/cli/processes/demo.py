"""`mainspring demo`: every kind of job for some seconds, each attempt with the lateness that the database recorded

Next: cli/processes/demo_jobs.py
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from shutil import which
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import command, shared
from mainspring.cli.layout import shortened
from mainspring.cli.parse import Whole
from mainspring.cli.render import headline, note, print_if_json, visible
from mainspring.errors import ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.cli.processes.demo_jobs import Demo, Example
    from mainspring.compose.listening import Listening
    from mainspring.config import Settings
    from mainspring.model.messages import Ending
    from mainspring.sdk.app import App
    from mainspring.store.views.task_views import AttemptView

COLUMNS = 80  # of the narrowest terminal
HEADER = "FIRED         JOB        LATE BY  AND THEN"
BETWEEN = 0.35  # seconds after a full one: examples are submitted between the fires of the schedules
LAST_EXAMPLE = 2.0  # seconds before the end
PATIENCE = 15.0  # seconds for submitted tasks to end
STOP_PATIENCE = 0.5  # seconds for running tasks to end when the demo is interrupted


@command("demo", "mainspring demo", "mainspring demo --seconds 5 --json | jq .lateness_ms")
@click.option("--seconds", type=Whole(1, 86400), default=20, show_default=True, metavar="N", help="How long it runs.")
def demo(seconds: int) -> None:
    """See every kind of job at work, each fire with its lateness.

    Uses an embedded PostgreSQL with a data directory of its own, unless --dsn or --data say otherwise.
    """
    import logging

    from mainspring.cli.runtime import leave_threads_behind, log_to_stderr, run

    overrides = shared().overrides()
    if not overrides:
        overrides = {"data_directory": str(_directory())}
    log_to_stderr(logging.WARNING)
    logging.getLogger("mainspring.job").setLevel(logging.CRITICAL)  # some jobs fail on purpose
    report = run(_run_demo(seconds, overrides))
    if not print_if_json(report.summary()):
        _tell(report, overrides)
    leave_threads_behind(0)


def _directory() -> Path:
    """Beside the user's data, one for each schema, so that versions do not share one."""
    from mainspring.store.embedded.server import default_directory
    from mainspring.store.postgres.migrate import fingerprint

    directory = default_directory()
    return directory.with_name(f"{directory.name}-demo-{fingerprint()}")


async def _run_demo(seconds: int, overrides: dict[str, str]) -> Report:
    """Submit examples for `seconds` or until a signal, and wait for the last task to end."""
    import asyncio

    from mainspring.cli.processes.demo_jobs import make_demo
    from mainspring.cli.runtime import StopSignals, settle_memory

    signals = StopSignals()
    demo, examples = make_demo()
    note(f"demo: {seconds} s of every kind of job, on {overrides.get('data_directory') or 'the given database'}")
    async with AsyncExitStack() as stack:
        listening = _listening(stack, demo.app.settings(**overrides))
        app = await stack.enter_async_context(demo.app.running(**overrides, stop_patience=STOP_PATIENCE))
        assert app.engine is not None
        if listening is not None:
            await _open_console(stack, app, listening, overrides)
        note(HEADER)
        runner = app.engine.agent.runner
        signals.hurry = lambda: runner.stop_all("shutdown")
        report = Report(demo, datetime.fromtimestamp(app.engine.server.clock.now() - 5.0, UTC))
        app.engine.server.recorder.on_recorded.connect(report.recorded)
        settle_memory()
        watching = asyncio.create_task(report.watch())
        submitting = asyncio.create_task(_submit(seconds, demo, examples))
        asked = asyncio.create_task(signals.asked.wait())
        await asyncio.wait([watching, submitting, asked], return_when=asyncio.FIRST_COMPLETED)
        if submitting.done():
            await submitting
        for helper in (asked, submitting):
            helper.cancel()
        await asyncio.wait([submitting])
        if not watching.done():
            await report.complete(interrupted=signals.asked.is_set())
            watching.cancel()
        await demo.clear()
        await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()  # raises: stdout was closed, or there is a bug
    return report


def _listening(stack: AsyncExitStack, settings: Settings) -> Listening | None:
    """Where the console is served while the demo runs; None if no port is free."""
    from mainspring.cli.processes.run import LAST_PORT
    from mainspring.compose.listening import Listening
    from mainspring.config import DEFAULT_LISTEN

    try:
        listening = Listening(settings, last_port=LAST_PORT if settings.listen == DEFAULT_LISTEN else None)
    except ValidationError as error:
        note(f"no console: {error.message}")
        return None
    listening.preload()  # while PostgreSQL starts: later it would make a fire late
    stack.push_async_callback(listening.close)
    return listening


async def _open_console(stack: AsyncExitStack, app: App, listening: Listening, overrides: dict[str, str]) -> None:
    from mainspring.cli.processes.run import console_link
    from mainspring.compose.network import listening_for

    assert app.engine is not None
    urls = await stack.enter_async_context(listening_for(app.engine, app.database, listening))
    if urls.api is not None:
        note(f"console {await console_link(app.database, urls.api, app.settings(**overrides))}")


async def _submit(seconds: int, demo: Demo, examples: Sequence[Example]) -> None:
    """Spread the examples over the time there is, between the full seconds at which schedules fire."""
    import asyncio

    assert demo.app.engine is not None
    clock = demo.app.engine.server.clock
    begin = math.floor(clock.now()) + BETWEEN
    per_second = math.ceil(len(examples) / max(1.0, seconds - LAST_EXAMPLE))
    position = 0
    for second in range(seconds):
        if second == 0 or second <= seconds - LAST_EXAMPLE:
            for number in range(position, position + per_second):
                await examples[number % len(examples)]()
            position += per_second
        await asyncio.sleep(max(0.0, begin + second + 1 - clock.now()))
    await demo.finish()


class Report:
    """Prints each attempt when it ends, and sums up at the end."""

    def __init__(self, demo: Demo, began: datetime) -> None:
        import asyncio

        self._demo = demo
        self._began = began
        self._endings: asyncio.Queue[Ending] = asyncio.Queue()
        self._fired = 0
        self._states: dict[str, int] = {}
        self.lateness: list[float] = []  # of first attempts that were due at a given instant

    def recorded(self, endings: list[Ending], _refused: object) -> None:
        for ending in endings:
            self._endings.put_nowait(ending)

    async def watch(self) -> None:
        """Print each attempt that has ended, as the database has it."""
        while True:
            ending = await self._endings.get()
            async with self._demo.app.database.acquire() as conn:
                view = await operations.tasks.show(conn, operations.actors.this_user(), ending.task)
            if view.created_at >= self._began:  # not left over from an earlier demo
                if view.plan_time is not None:
                    self._demo.exact.add(view.id)
                    self._demo.planned.add(view.id)
                attempt = next((a for a in view.attempts if a.token == ending.token), None)
                if attempt is not None and attempt.started_at is not None:
                    self._print(ending.task, view.job, attempt, again=view.finished_at is None)
            self._endings.task_done()

    def _print(self, task: int, job: str, attempt: AttemptView, *, again: bool) -> None:
        from mainspring.cli.processes.demo_jobs import PREFIX

        assert attempt.started_at is not None
        self._fired += 1
        late = attempt.lateness_ms or 0.0
        if task in self._demo.exact and attempt.number == 1:
            self.lateness.append(late)
        failed = attempt.state == "failed"
        about = visible(headline(attempt.error)) if failed else self._demo.shows.get(job, "")
        clock = f"{attempt.started_at.astimezone():%H:%M:%S.%f}"[:-3]
        line = f"{clock}  {job.removeprefix(PREFIX):<8} {late:6.1f} ms  {_what(attempt, again=again):<19}  "
        colour = {"succeeded": "green", "cancelled": "yellow", "skipped": "yellow"}.get(attempt.state, "red")
        about = shortened(about, max(1, COLUMNS - len(line)))
        shown = click.style(line, fg=colour) + click.style(about, dim=not failed)
        click.echo(shown, err=shared().json)

    async def complete(self, *, interrupted: bool) -> None:
        """Wait until the last tasks have ended and are printed, then count the outcomes."""
        import asyncio

        from mainspring.store.tasks import tasks

        submitted = list(self._demo.tasks)
        if not interrupted:
            ended = asyncio.gather(*(task.result() for task in submitted), return_exceptions=True)
            try:
                async with asyncio.timeout(PATIENCE):
                    await ended
                    await self._endings.join()
            except TimeoutError:
                note(f"some tasks have not ended {PATIENCE:g} s after the last instant")
        ours = [*(task.id for task in submitted), *self._demo.planned]
        async with self._demo.app.database.acquire() as conn:
            for outcome in (await tasks.ended(conn, ours)).values():
                self._states[outcome.state.label] = self._states.get(outcome.state.label, 0) + 1

    def summary(self) -> dict[str, Any]:
        """`fired` counts attempts, `succeeded` and `failed` count tasks."""
        return {
            "fired": self._fired,
            "succeeded": self._states.get("succeeded", 0),
            "failed": sum(self._states.get(state, 0) for state in ("failed", "timed_out", "lost")),
            "lateness_ms": {
                "p50": percentile(self.lateness, 0.5),
                "p99": percentile(self.lateness, 0.99),
                "max": percentile(self.lateness, 1.0),
            },
        }


def _what(attempt: AttemptView, *, again: bool) -> str:
    """The outcome of an attempt in a few words."""
    number = f"try {attempt.number} " if attempt.number > 1 else ""
    if attempt.error_code == "snoozed":
        return "snoozed"
    return f"{number}{attempt.state.replace('_', ' ')}{', again' if again else ''}"


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _tell(report: Report, overrides: dict[str, str]) -> None:
    told = report.summary()
    late = told["lateness_ms"]
    click.echo(f"\n{told['fired']} attempts fired; {told['succeeded']} tasks succeeded, {told['failed']} failed.")
    if report.lateness:
        click.echo(
            f"{len(report.lateness)} exact instants, late by "
            f"{late['p50']:.2f} ms (median), {late['p99']:.2f} ms (99 %), {late['max']:.2f} ms (max)."
        )
    where = f" --data {overrides['data_directory']}" if "data_directory" in overrides else " --dsn …"
    program = "mainspring" if which("mainspring") else min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len)
    note(
        f"""
What next:
  {program} task list{where}
      what just ran; task show and task logs tell more
  {program} up{where}
      the same in the console
  {program} schedule preview daily at 09:00 --tz Europe/Paris
      when an expression fires, in words and times
  {program} up
      a scheduler of your own
  {program} --help
      everything else
"""
    )
