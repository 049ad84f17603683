"""`mainspring task logs`: the output of a task, byte for byte.

Next: operations/work/output.py
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, operation, shared
from mainspring.cli.parse import task_id
from mainspring.cli.render import note, on_terminal, print_json

if TYPE_CHECKING:
    from mainspring.store.tasks.tasks import Piece

STREAMS = ("remark", "stdout", "stderr")


@operation("logs", "mainspring task logs 17", "mainspring task logs -f --timestamps 17")
@click.argument("id", type=task_id, metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended, over all its attempts.")
@click.option("--timestamps", is_flag=True, help="Put the time in front of each line.")
async def logs(client: Client, id: int, follow: bool, timestamps: bool) -> None:
    """Print what a task wrote: its stdout to stdout, its stderr to stderr."""
    await print_output(client, id, follow=follow, timestamps=timestamps)


async def print_output(client: Client, id: int, *, follow: bool, timestamps: bool) -> None:
    show: Callable[[Piece], None] = _print_json if shared().json else _StreamPrinter(timestamps).show
    marks_attempts = not shared().json and (timestamps or on_terminal())
    async for event in client.follow(id, wait=follow):
        if isinstance(event, operations.output.Interrupted):
            note("PostgreSQL does not answer; waiting for it")
        elif not isinstance(event, operations.output.NewAttempt):
            show(event)
        elif marks_attempts:
            mark = f"── attempt {event.number} on agent {event.agent or 'unknown'} ──"
            note(click.style(mark, dim=True) if on_terminal() else mark)


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
    """Lines with their newlines; a carriage return alone ends none."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def _print_json(piece: Piece) -> None:
    """One object per piece: `text` if the bytes are UTF-8, else `base64`."""
    import base64

    told: dict[str, Any] = {"at": piece.at, "stream": STREAMS[piece.stream], "token": piece.token}
    try:
        told["text"] = piece.data.decode()
    except UnicodeDecodeError:
        told["base64"] = base64.b64encode(piece.data).decode()
    print_json(told)
