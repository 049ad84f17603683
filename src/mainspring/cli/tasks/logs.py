"""Output of a task: `mainspring task logs`, byte for byte as the task wrote it.

Next: store/tasks/output.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, Protocol

import click

from mainspring.cli.base import Command, examples, shared, with_client
from mainspring.cli.parse import task_id
from mainspring.cli.render import note, on_terminal, print_json
from mainspring.errors import StoreUnavailable
from mainspring.model.tasks.states import TERMINAL, TaskState

if TYPE_CHECKING:
    from mainspring.cli.client import Client
    from mainspring.store.tasks.output import Piece

SOONEST, LATEST = 0.05, 0.5  # seconds between looks
GAP = 15.0  # seconds, as long as a lease: for a piece that is missing, and may be on its way through another server
STREAMS = ("remark", "stdout", "stderr")


@click.command(cls=Command, epilog=examples("mainspring task logs 17", "mainspring task logs -f --timestamps 17"))
@click.argument("id", type=task_id, metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended, over all its attempts.")
@click.option("--timestamps", is_flag=True, help="Put the time in front of each line.")
@with_client
async def logs(client: Client, id: int, follow: bool, timestamps: bool) -> None:
    """Print what a task wrote: its stdout to stdout, its stderr to stderr."""
    await print_output(client, id, follow=follow, timestamps=timestamps)


async def print_output(client: Client, id: int, *, follow: bool, timestamps: bool) -> None:
    printer: _Printer = _JsonPrinter() if shared().json else _StreamPrinter(timestamps)
    marks = not shared().json and (timestamps or on_terminal())
    await follow_output(client, id, printer.show, _mark if marks else None, wait=follow)


def _mark(attempt: str) -> None:
    note(click.style(f"── {attempt} ──", dim=True) if on_terminal() else f"── {attempt} ──")


async def follow_output(
    client: Client,
    id: int,
    show: Callable[[Piece], None],
    mark: Callable[[str], None] | None,
    *,
    wait: bool,
    gap: float = GAP,
) -> None:
    """Show the output of a task in order and each piece once; with `wait` until the task has ended.

    Where a piece is missing it waits `gap` seconds for it, not for ever: what retention has dropped never comes.
    """
    import asyncio

    cursor = Cursor(gap if wait else 0.0)
    interval, faults = SOONEST, 0
    while True:
        try:
            # The state first: output is recorded before the end is, so what is read after it is all there is.
            ended = TaskState.from_label((await client.task(id)).state) in TERMINAL
            found = await _show_new(client, id, cursor, show, mark)
        except StoreUnavailable:
            if not wait or cursor.is_new:
                raise
            faults += 1
            if faults == 1:
                note("PostgreSQL does not answer; waiting for it")
            await asyncio.sleep(LATEST)
            continue
        faults = 0
        if (ended and not cursor.at_gap) or not wait:
            return
        interval = SOONEST if found else min(interval * 1.2, LATEST)
        await asyncio.sleep(interval)


class Cursor:
    """How far output has been shown, and since when the next piece is missing."""

    def __init__(self, patience: float) -> None:
        self.after = (0, 0)  # token, number
        self._patience = patience
        self._missing_since: float | None = None
        self.shown = 0  # token of the last piece
        self.is_new = True

    @property
    def at_gap(self) -> bool:
        return self._missing_since is not None

    def take(self, pieces: Sequence[Piece], now: float) -> list[Piece]:
        """Those of `pieces`, which come in order, that can be shown now: up to the first that is missing."""
        self.is_new = False
        taken: list[Piece] = []
        for piece in pieces:
            token, number = self.after
            is_next = piece.number == (number + 1 if piece.token == token else 1)
            if not is_next and not self._has_waited(now):
                break
            self._missing_since = None
            self.after = (piece.token, piece.number)
            taken.append(piece)
        return taken

    def _has_waited(self, now: float) -> bool:
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since >= self._patience


async def _show_new(
    client: Client, id: int, cursor: Cursor, show: Callable[[Piece], None], mark: Callable[[str], None] | None
) -> int:
    from time import monotonic

    found = 0
    while pieces := cursor.take(await client.output(id, after=cursor.after), monotonic()):
        for piece in pieces:
            if mark is not None and piece.token != cursor.shown:
                await _mark_attempt(client, id, cursor.shown, piece.token, mark)
            cursor.shown = piece.token
            show(piece)
        found += len(pieces)
    return found


async def _mark_attempt(client: Client, id: int, last: int, token: int, mark: Callable[[str], None]) -> None:
    """Say that what follows is of another attempt; the first needs no word."""
    for attempt in await client.attempts(id):
        if attempt.token == token and last:
            mark(f"attempt {attempt.number} on agent {attempt.agent or 'unknown'}")


class _Printer(Protocol):
    def show(self, piece: Piece) -> None: ...


class _StreamPrinter:
    def __init__(self, timestamps: bool) -> None:
        self._timestamps = timestamps
        self._inside_line: set[int] = set()  # streams whose last piece did not end its line

    def show(self, piece: Piece) -> None:
        click.echo(self._stamped(piece) if self._timestamps else piece.data, nl=False, err=piece.stream != 1)

    def _stamped(self, piece: Piece) -> bytes:
        stamp = f"{piece.at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3].encode() + b"Z "
        stamped = b"".join(stamp + line for line in _lines(piece.data))
        if piece.stream in self._inside_line:
            stamped = stamped.removeprefix(stamp)
        if piece.data.endswith(b"\n"):
            self._inside_line.discard(piece.stream)
        elif piece.data:
            self._inside_line.add(piece.stream)
        return stamped


def _lines(data: bytes) -> list[bytes]:
    """Lines that end with a newline; a carriage return alone ends none."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


class _JsonPrinter:
    """One object per piece: `text` if the bytes are UTF-8, else `base64`."""

    def show(self, piece: Piece) -> None:
        import base64

        told: dict[str, Any] = {"at": piece.at, "stream": STREAMS[piece.stream], "token": piece.token}
        try:
            told["text"] = piece.data.decode()
        except UnicodeDecodeError:
            told["base64"] = base64.b64encode(piece.data).decode()
        print_json(told)
