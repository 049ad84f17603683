"""Output of a task: `mainspring task logs`, byte for byte as the task wrote it.

Next: store/tasks.py
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Protocol

import click

from mainspring.cli.base import Command, examples, shared, with_client
from mainspring.cli.parse import task_id
from mainspring.cli.render import print_json
from mainspring.model.states import TERMINAL, TaskState

if TYPE_CHECKING:
    from mainspring.cli.client import Client
    from mainspring.store.tasks import Piece

SOONEST, LATEST = 0.05, 0.5  # seconds between looks
STREAMS = ("remark", "stdout", "stderr")


@click.command(cls=Command, epilog=examples("mainspring task logs 17", "mainspring task logs -f --timestamps 17"))
@click.argument("id", type=task_id, metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@click.option("--timestamps", is_flag=True, help="Put the time in front of each line.")
@with_client
async def logs(client: Client, id: int, follow: bool, timestamps: bool) -> None:
    """Print what a task wrote: its stdout to stdout, its stderr to stderr."""
    import asyncio

    printer: _Printer = _JsonPrinter() if shared().json else _StreamPrinter(timestamps)
    after, interval = (0, 0), SOONEST
    while True:
        # The state first: output is recorded before the end is, so what is read after it is all there is.
        ended = TaskState.from_label((await client.task(id)).state) in TERMINAL
        found = 0
        while pieces := await client.output(id, after=after):
            for piece in pieces:
                printer.show(piece)
            found += len(pieces)
            after = (pieces[-1].token, pieces[-1].number)
        if ended or not follow:
            return
        interval = SOONEST if found else min(interval * 1.2, LATEST)
        await asyncio.sleep(interval)


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
