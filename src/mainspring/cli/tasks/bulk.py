"""`mainspring task submit --from FILE`: one task per line, in bulk.

The answers are those of POST /tasks/bulk, line by line.
Next: operations/requests/bulk.py
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

import click

from mainspring.cli.base import Client
from mainspring.cli.render import note, on_terminal
from mainspring.errors import ValidationError

PART = 64 * 1024  # bytes that are read at once


async def submit_from(client: Client, file: str, *, key: str | None, atomic: bool, on_error: Any) -> None:
    import asyncio

    import msgspec

    from mainspring.operations.requests.bulk import Done

    source = _open(file)
    try:

        async def receive() -> bytes | None:
            # read1: what is there, however little, so that a slow pipe does not hold lines back.
            return await asyncio.to_thread(source.read1, PART) or None  # type: ignore[attr-defined]

        last = Done(True, 0, 0)
        async for answer in client.submit_lines(receive, key=key, atomic=atomic, on_error=on_error):
            click.echo(msgspec.json.encode(answer))
            last = answer if isinstance(answer, Done) else last
    finally:
        if file != "-":
            source.close()
    if on_terminal():
        note(f"{last.accepted:,} submitted, {last.refused:,} refused")
    if last.refused or not last.done:
        click.get_current_context().exit(1)


def _open(file: str) -> BinaryIO:
    if file == "-":
        return sys.stdin.buffer
    try:
        return open(file, "rb")
    except OSError as error:
        raise ValidationError(f"from: {file!r} cannot be read: {error.strerror}", field="from") from None
