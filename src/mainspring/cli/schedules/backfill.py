"""`mainspring schedule backfill`

Next: operations/planning/backfill.py
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, operation
from mainspring.cli.parse import Whole, name_of, read_in
from mainspring.cli.render import NO_AGENT, confirm, counted, note, print_if_json

if TYPE_CHECKING:
    from datetime import datetime

    from mainspring.operations.planning.backfill import BackfillStep

MAX_PARALLEL = 1000
SOONEST, LATEST = 0.05, 0.5  # seconds between steps
TELL_EVERY = 5.0  # seconds between lines of progress where they cannot be rewritten
FAILED = 1  # the exit code
SUCCEEDED = "succeeded"
MOST_LISTED = 100  # failed tasks in the JSON
TOLD = 10  # and in the advice


@operation(
    "backfill",
    "mainspring schedule backfill nightly --from 2026-11-01 --to 2026-11-15 --dry-run",
    "mainspring schedule backfill invoices --from 2026-01-01T00:00Z --to 2026-06-30T00:00Z --max-parallel 4",
)
@click.argument("name", type=name_of("schedule"))
@click.option(
    "--from", "start", required=True, metavar="INSTANT", help="Plan times from here: ISO 8601, in its timezone."
)
@click.option("--to", "end", required=True, metavar="INSTANT", help="Plan times up to and with this one.")
@click.option("--tz", metavar="ZONE", help="IANA timezone of a --from or --to without an offset, if another.")
@click.option("--dry-run", is_flag=True, help="Only count what would be run.")
@click.option(
    "--max-parallel",
    type=Whole(1, MAX_PARALLEL),
    default=1,
    show_default=True,
    metavar="N",
    help="So many of the schedule's backfilled tasks at a time.",
)
@click.option("--scope", type=name_of("scope"), multiple=True, metavar="SCOPE", help="Only this scope; repeatable.")
async def backfill(
    client: Client,
    name: str,
    start: str,
    end: str,
    tz: str | None,
    dry_run: bool,
    max_parallel: int,
    scope: tuple[str, ...],
) -> None:
    """Run a schedule's job for plan times of the past that have no task: missed, skipped, or before it was made.

    Safe to stop and to repeat: what has run, or is to run, is not run again.
    """
    from mainspring.model.words.instants import parse_time
    from mainspring.model.words.zones import check_zone

    first, last = parse_time(start, field="from"), parse_time(end, field="to")
    if first.tzinfo is not None and last.tzinfo is not None:
        operations.backfill.check_range(first, last)  # before it connects
    zone = None if tz is None else check_zone(tz)
    zone = zone or check_zone((await client.call(operations.schedules.show, name)).schedule.timezone)
    first, last = read_in(first, zone, field="from"), read_in(last, zone, field="to")
    where = (name, first, last)
    plan = await client.call(operations.backfill.step, *where, scopes=scope, max_parallel=max_parallel, dry_run=True)
    total, already, to_run = plan.total or 0, plan.already or 0, plan.to_run or 0
    note(
        f"{counted(total, 'run')} in the range: {already:,} {'has' if already == 1 else 'have'} a task already, "
        f"{to_run:,} to run" + (f", of them {plan.skipped:,} that were skipped by hand" if plan.skipped else "")
    )
    counts = {name: getattr(plan, name) for name in ("schedule", "total", "already", "to_run", "skipped")}
    if dry_run:
        if not print_if_json(counts | {"first": plan.first, "last": plan.last}) and to_run:
            note(f"from {plan.first} to {plan.last}; run it without --dry-run")
        return
    if to_run and not await client.has_agents():
        note(NO_AGENT)
    run = await _complete(client, where, scope, max_parallel, plan)
    failed = sorted(run.failed)
    succeeded = run.submitted - len(failed)
    outcome = {"submitted": run.submitted, "succeeded": succeeded, "failed": len(failed)}
    confirm(
        counts | outcome | {"failed_tasks": failed[:MOST_LISTED]},
        f"submitted {run.submitted:,}: {succeeded:,} succeeded, {len(failed):,} did not",
    )
    if failed:
        _advise(plan.job, failed, sorted(set(run.failed.values())))
        click.get_current_context().exit(FAILED)


@dataclass
class _Run:
    """What this command has submitted so far, and what came of it."""

    submitted: int = 0
    in_flight: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)  # task → its state, of those that did not succeed

    def add(self, step: BackfillStep) -> bool:
        """Whether anything moved."""
        self.submitted += len(step.submitted)
        self.in_flight |= set(step.submitted)
        self.in_flight -= {task.id for task in step.ended}
        self.failed |= {task.id: task.state for task in step.ended if task.state != SUCCEEDED}
        return bool(step.submitted or step.ended)


async def _complete(
    client: Client,
    where: tuple[str, datetime, datetime],
    scopes: tuple[str, ...],
    max_parallel: int,
    plan: BackfillStep,
) -> _Run:
    """Repeat the step until all tasks have ended."""
    import asyncio

    run, progress = _Run(), _Progress(plan.total or 0, plan.already or 0)
    interval, cursor, has_more = SOONEST, plan.next, plan.next is not None
    try:
        while has_more or run.in_flight:
            step = await client.call(
                operations.backfill.step,
                *where,
                scopes=scopes,
                max_parallel=max_parallel,
                awaiting=sorted(run.in_flight),
                cursor=cursor,
            )
            interval = SOONEST if run.add(step) else min(interval * 1.2, LATEST)
            cursor, has_more = step.next or cursor, step.next is not None
            progress.tell((plan.already or 0) + run.submitted - len(run.in_flight))
            if has_more or run.in_flight:
                await asyncio.sleep(interval)
    except asyncio.CancelledError:
        progress.end()
        count = len(run.in_flight)
        going = f"{counted(count, 'submitted task')} {'goes' if count == 1 else 'go'} on"
        note(f"stopped: {going}; run the same command again for the rest")
        raise
    progress.end()
    return run


def _advise(job: str, failed: list[int], states: list[str]) -> None:
    """How to see the tasks that did not succeed, and how to retry them."""
    them = "it" if len(failed) == 1 else "them"
    ids = " ".join(map(str, failed[:TOLD])) + (" …" if len(failed) > TOLD else "")
    note(f"see {them} with `mainspring task list --job {job} {' '.join(f'--state {state}' for state in states)}`")
    note(f"run {them} again with `mainspring task retry {ids}`")


class _Progress:
    """Done of all and how fast, on stderr: in place on a terminal, else a line now and then."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._from = total, done
        self._begin = monotonic()
        self._told_at = self._begin
        self._on_terminal = sys.stderr is not None and sys.stderr.isatty()

    def tell(self, done: int) -> None:
        now = monotonic()
        rate = (done - self._from) / max(now - self._begin, 0.001)
        line = f"{done:,} / {self._total:,} done, {rate:.1f} per second"
        if self._on_terminal:
            click.echo(f"\r\x1b[K{line}", nl=False, file=sys.stderr)
        elif now - self._told_at >= TELL_EVERY:
            self._told_at = now
            note(line)

    def end(self) -> None:
        if self._on_terminal:
            click.echo("", file=sys.stderr)
