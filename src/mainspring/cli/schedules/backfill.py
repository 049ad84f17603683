"""Runs for plan times of the past: `mainspring schedule backfill`.

Next: store/schedules/backfill.py
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.base import Command, examples, shared, with_client
from mainspring.cli.parse import Whole, read_in
from mainspring.cli.render import counted, note, print_json

if TYPE_CHECKING:
    from mainspring.cli.client import Client
    from mainspring.store.schedules.backfill import FireKey
    from mainspring.store.schedules.schedules import Stored

MAX_PARALLEL = 1000
SOONEST, LATEST = 0.05, 0.5  # seconds between looks
TELL_EVERY = 5.0  # seconds between lines of progress where they cannot be rewritten
FAILED = 1  # the exit code
MOST_LISTED = 100  # failed tasks in the JSON
TOLD = 10  # and in the advice


@click.command(
    "backfill",
    cls=Command,
    epilog=examples(
        "mainspring schedule backfill nightly --from 2026-11-01 --to 2026-11-15 --dry-run",
        "mainspring schedule backfill invoices --from 2026-01-01T00:00Z --to 2026-06-30T00:00Z --max-parallel 4",
    ),
)
@click.argument("name")
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
@click.option("--scope", multiple=True, metavar="SCOPE", help="Only this scope; repeatable.")
@with_client
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
    from mainspring.model.words.names import check_name
    from mainspring.model.words.zones import check_zone
    from mainspring.store.schedules.backfill import check_range, plan_backfill

    first, last = parse_time(start, field="from"), parse_time(end, field="to")
    if first.tzinfo is not None and last.tzinfo is not None:
        check_range(first, last)  # before anybody is asked
    zone = None if tz is None else check_zone(tz)
    scopes = [check_name(one, field="scope") for one in scope]
    stored = await client.schedules.find(name)
    zone = zone or check_zone(stored.schedule.timezone)
    first, last = read_in(first, zone, field="from"), read_in(last, zone, field="to")
    check_range(first, last)
    slots = plan_backfill(stored.schedule, first, last, stored.now, scopes)
    to_run = await client.schedules.still_open(stored, slots)
    plan = {"schedule": name, "total": len(slots), "already": len(slots) - len(to_run), "to_run": len(to_run)}
    already = f"{plan['already']:,} {'has' if plan['already'] == 1 else 'have'} a task already"
    note(f"{counted(len(slots), 'run')} in the range: {already}, {len(to_run):,} to run")
    if dry_run:
        _tell_plan(plan, stored, to_run)
        return
    going = _Backfill(client, stored, len(slots), to_run, max_parallel)
    outcome = await going.run()
    if shared().json:
        print_json(plan | outcome)
    else:
        note(f"submitted {outcome['submitted']:,}: {outcome['succeeded']:,} succeeded, {outcome['failed']:,} did not")
    if outcome["failed"]:
        _tell_failed(stored.schedule.job, going.failed)
        click.get_current_context().exit(FAILED)


def _tell_plan(plan: dict[str, Any], stored: Stored, to_run: list[FireKey]) -> None:
    from mainspring.model.schedules.timing import timing

    zone = timing(stored.schedule).zone
    first, last = (to_run[end][0].astimezone(zone) if to_run else None for end in (0, -1))
    if shared().json:
        print_json(plan | {"first": first, "last": last})
    elif to_run:
        note(f"from {first} to {last}; run it without --dry-run")


def _tell_failed(job: str, failed: dict[int, str]) -> None:
    """How to see those that did not succeed, and how to repeat them."""
    them = "it" if len(failed) == 1 else "them"
    states = " ".join(f"--state {state}" for state in sorted(set(failed.values())))
    ids = " ".join(str(id) for id in sorted(failed)[:TOLD]) + (" …" if len(failed) > TOLD else "")
    note(f"see {them} with `mainspring task list --job {job} {states}`")
    note(f"run {them} again with `mainspring task retry {ids}`")


class _Backfill:
    """Keeps so many tasks going until all have ended."""

    def __init__(self, client: Client, stored: Stored, total: int, to_run: list[FireKey], max_parallel: int) -> None:
        self._client = client
        self._stored = stored
        self._total = total
        self._open = to_run
        self._max_parallel = max_parallel
        self._tasks: list[int] = []  # ours
        self._going: set[int] = set()  # of them, those that have not ended
        self.failed: dict[int, str] = {}  # the states of those that did not succeed

    async def run(self) -> dict[str, Any]:
        import asyncio

        if self._open and not await self._client.has_agent():
            note("nobody is there to run tasks at the moment; `mainspring up` would")
        progress = _Progress(self._total, self._total - len(self._open))
        interval = SOONEST
        try:
            while self._open or self._going:
                moved = await self._submit() + await self._collect()
                progress.tell(self._total - len(self._open) - len(self._going))
                interval = SOONEST if moved else min(interval * 1.2, LATEST)
                if self._open or self._going:
                    await asyncio.sleep(interval)
        except asyncio.CancelledError:
            progress.end()
            going = f"{counted(len(self._going), 'submitted task')} {'goes' if len(self._going) == 1 else 'go'} on"
            note(f"stopped: {going}; run the same command again for the rest")
            raise
        progress.end()
        ended, failed = len(self._tasks), sorted(self.failed)
        return {
            "submitted": ended,
            "succeeded": ended - len(failed),
            "failed": len(failed),
            "failed_tasks": failed[:MOST_LISTED],
        }

    async def _submit(self) -> int:
        if not self._open:
            return 0
        filled = await self._client.schedules.fill(self._stored, self._open, self._max_parallel)
        self._open = self._open[filled.tried :]
        self._tasks += filled.tasks
        self._going.update(filled.tasks)
        return filled.tried

    async def _collect(self) -> int:
        if not self._going:
            return 0
        ended = await self._client.schedules.ended(list(self._going))
        self._going -= ended.keys()
        self.failed |= {id: one.state.label for id, one in ended.items() if one.state.label != "succeeded"}
        return len(ended)


class _Progress:
    """Done of all and how fast, on stderr: in place on a terminal, else a line now and then."""

    def __init__(self, total: int, done: int) -> None:
        from time import monotonic

        self._clock = monotonic
        self._total, self._from = total, done
        self._begin = monotonic()
        self._told_at = self._begin
        self._on_terminal = sys.stderr is not None and sys.stderr.isatty()

    def tell(self, done: int) -> None:
        now = self._clock()
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
