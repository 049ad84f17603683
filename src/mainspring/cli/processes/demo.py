"""The demo: every kind of job at work for some seconds, each fire shown with its lateness.

Lateness is what the database recorded: when an attempt started, minus when it was due.
Next: cli/processes/demo_jobs.py
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from shutil import which
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.base import Command, examples, shared
from mainspring.cli.layout import shortened
from mainspring.cli.parse import Whole
from mainspring.cli.render import headline, note, print_if_json, visible

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.cli.processes.demo_jobs import Scene, Stage
    from mainspring.model.messages import Ending
    from mainspring.store.tasks.tasks import AttemptView

COLUMNS = 80  # of the narrowest terminal
HEADER = "FIRED         JOB       LATE BY  AND THEN"
BETWEEN = 0.35  # seconds after a full one: scenes and schedules do not meet
LAST_SCENE = 2.0  # seconds before the end
PATIENCE = 15.0  # seconds for what was submitted to end
STOP_PATIENCE = 0.5  # seconds for what runs when the demo is interrupted


@click.command(
    cls=Command,
    epilog=examples("mainspring demo", "mainspring demo --seconds 5 --json | jq .lateness_ms"),
)
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
    logging.getLogger("mainspring.job").setLevel(logging.CRITICAL)  # what fails is part of the show
    score = run(_play(seconds, overrides))
    if not print_if_json(score.summary()):
        _tell(score, overrides)
    leave_threads_behind(0)


def _directory() -> Path:
    """Beside the user's own data, which stays clean; one for each schema, so that no other version's is in the way."""
    from mainspring.store.embedded.server import default_directory
    from mainspring.store.postgres.migrate import fingerprint

    directory = default_directory()
    return directory.with_name(f"{directory.name}-demo-{fingerprint()}")


async def _play(seconds: int, overrides: dict[str, str]) -> Score:
    """Set the stage, play for `seconds` or until a signal, and wait for the last task to end."""
    import asyncio

    from mainspring.cli.processes.demo_jobs import set_stage
    from mainspring.cli.runtime import Signals, settle_memory

    signals = Signals()
    stage, scenes = set_stage()
    note(f"demo: {seconds} s of every kind of job, on {overrides.get('data_directory') or 'the given database'}")
    note(HEADER)
    async with stage.app.running(**overrides, stop_patience=STOP_PATIENCE) as app:
        assert app.engine is not None
        runner = app.engine.agent.runner
        signals.hurry = lambda: runner.stop_all("shutdown")
        began = datetime.fromtimestamp(app.engine.server.clock.now() - 5.0, UTC)
        score = Score(stage, began)
        app.engine.server.recorder.on_recorded.append(score.recorded)
        settle_memory()
        watching = asyncio.create_task(score.watch())
        playing = asyncio.create_task(_perform(seconds, stage, scenes))
        asked = asyncio.create_task(signals.asked.wait())
        await asyncio.wait([watching, playing, asked], return_when=asyncio.FIRST_COMPLETED)
        if playing.done():
            await playing
        for helper in (asked, playing):
            helper.cancel()
        await asyncio.wait([playing])
        if not watching.done():
            await score.complete(interrupted=signals.asked.is_set())
            watching.cancel()
        await stage.clear()
        await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()  # nobody reads what it prints, or a bug: tell
    return score


async def _perform(seconds: int, stage: Stage, scenes: Sequence[Scene]) -> None:
    """Spread the scenes over the time there is, between the seconds, on which the schedules fire."""
    import asyncio

    assert stage.app.engine is not None
    clock = stage.app.engine.server.clock
    begin = math.floor(clock.now()) + BETWEEN
    per_second = math.ceil(len(scenes) / max(1.0, seconds - LAST_SCENE))
    position = 0
    for second in range(seconds):
        if second == 0 or second <= seconds - LAST_SCENE:
            for number in range(position, position + per_second):
                await scenes[number % len(scenes)]()
            position += per_second
        await asyncio.sleep(max(0.0, begin + second + 1 - clock.now()))
    await stage.finish()


class Score:
    """What has happened: printed as it happens, and summed up at the end."""

    def __init__(self, stage: Stage, began: datetime) -> None:
        import asyncio

        self._stage = stage
        self._began = began
        self._endings: asyncio.Queue[Ending] = asyncio.Queue()
        self._fired = 0
        self._states: dict[str, int] = {}
        self.lateness: list[float] = []  # of first attempts with an instant of their own

    def recorded(self, endings: list[Ending], _refused: object) -> None:
        for ending in endings:
            self._endings.put_nowait(ending)

    async def watch(self) -> None:
        """Show each attempt that has ended, as the database has it."""
        from mainspring.store.tasks import tasks

        while True:
            ending = await self._endings.get()
            async with self._stage.app.database.acquire() as conn:
                view = await tasks.get(conn, ending.task)
                attempts = await tasks.attempts(conn, ending.task)
            if view.created_at >= self._began:  # not left over from an earlier demo
                if view.plan_time is not None:
                    self._stage.exact.add(view.id)
                    self._stage.planned.add(view.id)
                attempt = next((a for a in attempts if a.token == ending.token), None)
                if attempt is not None and attempt.started_at is not None:
                    self._fired += 1
                    self._show(ending.task, view.job, attempt, again=view.finished_at is None)
            self._endings.task_done()

    def _show(self, task: int, job: str, attempt: AttemptView, *, again: bool) -> None:
        from mainspring.cli.processes.demo_jobs import PREFIX

        assert attempt.started_at is not None
        late = attempt.lateness_ms or 0.0
        if task in self._stage.exact and attempt.number == 1:
            self.lateness.append(late)
        failed = attempt.state == "failed"
        about = visible(headline(attempt.error)) if failed else self._stage.shows.get(job, "")
        clock = f"{attempt.started_at.astimezone():%H:%M:%S.%f}"[:-3]
        line = f"{clock}  {job.removeprefix(PREFIX):<8} {late:6.1f} ms  {_what(attempt, again=again):<19}  "
        colour = {"succeeded": "green", "cancelled": "yellow", "skipped": "yellow"}.get(attempt.state, "red")
        about = shortened(about, max(1, COLUMNS - len(line)))
        shown = click.style(line, fg=colour) + click.style(about, dim=not failed)
        click.echo(shown, err=shared().json)

    async def complete(self, *, interrupted: bool) -> None:
        """Wait for the last tasks to end, and for their lines; then count."""
        import asyncio

        from mainspring.store.tasks import tasks

        submitted = list(self._stage.tasks)
        if not interrupted:
            ended = asyncio.gather(*(task.result() for task in submitted), return_exceptions=True)
            try:
                async with asyncio.timeout(PATIENCE):
                    await ended
                    await self._endings.join()
            except TimeoutError:
                note(f"some tasks have not ended {PATIENCE:g} s after the last instant")
        ours = [*(task.id for task in submitted), *self._stage.planned]
        async with self._stage.app.database.acquire() as conn:
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
    """What became of an attempt, in a few words."""
    number = f"try {attempt.number} " if attempt.number > 1 else ""
    if attempt.error_code == "snoozed":
        return "snoozed"
    return f"{number}{attempt.state.replace('_', ' ')}{', again' if again else ''}"


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _tell(score: Score, overrides: dict[str, str]) -> None:
    told = score.summary()
    late = told["lateness_ms"]
    click.echo(f"\n{told['fired']} attempts fired; {told['succeeded']} tasks succeeded, {told['failed']} failed.")
    if score.lateness:
        click.echo(
            f"{len(score.lateness)} exact instants, late by "
            f"{late['p50']:.2f} ms (median), {late['p99']:.2f} ms (99 %), {late['max']:.2f} ms (max)."
        )
    where = f" --data {overrides['data_directory']}" if "data_directory" in overrides else " --dsn …"
    program = "mainspring" if which("mainspring") else min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len)
    note(
        f"""
What next:
  {program} task list{where}
      what just ran; task show and task logs tell more
  {program} schedule preview daily at 09:00 --tz Europe/Paris
      when an expression fires, in words and times
  {program} up
      a scheduler of your own
  {program} --help
      everything else
"""
    )
