"""Render: tables on a terminal, tabs in a pipe, JSON with --json. Data goes to stdout, all else to stderr.

Next: cli/layout.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from shutil import get_terminal_size
from typing import Any
from uuid import UUID

import click

from mainspring.cli import layout
from mainspring.cli.base import shared
from mainspring.cli.layout import Room

ALL = Room()
NO_AGENT = "nobody is there to run tasks at the moment; `mainspring up` would"


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def print_json(value: Any) -> None:
    """One value on one line."""
    import msgspec

    click.echo(msgspec.json.encode(value).decode())


def print_if_json(value: Any) -> bool:
    """Print the value as JSON if --json asks for it; returns whether it does."""
    if shared().json:
        print_json(value)
    return shared().json


def confirm(value: Any, text: str) -> None:
    """What a change did: JSON if --json asks for it, else a sentence."""
    if not print_if_json(value):
        note(text)


def note(text: str) -> None:
    """A sentence for a person, on stderr. A closed stderr is no reason to stop."""
    with suppress(OSError):
        click.echo(readable(text), file=sys.stderr)


def readable(text: str) -> str:
    """On a terminal, lines wrapped between words. A line that begins with a space is laid out by hand."""
    if sys.stderr is None or not sys.stderr.isatty():
        return text
    width = get_terminal_size().columns
    return "\n".join(line if line[:1] == " " else layout.wrapped(line, width) for line in text.split("\n"))


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    empty: str = "",
    room: Room = ALL,
) -> None:
    """Rows under headers. On a terminal, `empty` is the note if there are none, and `room` how the table may shrink."""
    if not on_terminal():
        cells = [[visible(cell(value)) for value in row] for row in rows]
        for line in ([header.lower().replace(" ", "_") for header in headers], *cells):
            click.echo("\t".join(line))
        return
    wide = shared().wide
    cells = [[visible(cell(value) if wide else brief(value)) for value in row] for row in rows]
    if not cells:
        note(empty)
        return
    width = sys.maxsize if wide else get_terminal_size().columns
    found = layout.fit(headers, cells, width, ALL if wide else room)
    first, *lines = found.lines
    click.echo("".join(_styled(text, {"bold": True}) for text in first).rstrip())
    shown = [text.strip() in STATES for text in first]
    for line in lines:
        click.echo(
            "".join(_of_state(text) if state else text for text, state in zip(line, shown, strict=True)).rstrip()
        )
    if found.left_out:
        what = ", ".join(found.left_out) if len(found.left_out) < 5 else f"{len(found.left_out)} more columns"
        note(f"no room for {what}: see --wide")


def _of_state(cell: str) -> str:
    return _styled(cell, _STYLES.get(cell.strip().partition(" ")[0], {}))


def _styled(cell: str, style: dict[str, Any]) -> str:
    text = cell.strip()
    return cell.replace(text, click.style(text, **style), 1) if style and text else cell


STATES = {"STATE", "STATUS", "LAST", "LAST ENDED"}  # columns in which such a word is no name
_STYLES: dict[str, dict[str, Any]] = {
    "succeeded": {"fg": "green"},
    "running": {"fg": "cyan"},
    "failed": {"fg": "red", "bold": True},
    "timed_out": {"fg": "red"},
    "lost": {"fg": "red"},
    "cancelled": {"fg": "yellow"},
    "skipped": {"fg": "yellow"},
    "draining": {"fg": "yellow"},
    "dead": {"fg": "red"},
    "silent": {"fg": "red", "bold": True},
    "disconnected": {"fg": "red"},
    "unowned": {"fg": "red", "bold": True},
}


def fields(pairs: Mapping[str, Any]) -> None:
    """Names and values, one per line; those without a value are left out."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        if value is not None and value != "":
            text = visible(cell(value), lines=True)
            if on_terminal():
                indent = " " * (width + 2)
                room = get_terminal_size().columns - len(indent)
                text = "\n".join(layout.wrapped(line, room) for line in text.split("\n"))
                text = text.replace("\n", "\n" + indent)
            label = f"{name:<{width}}  " if on_terminal() else f"{name}\t"
            click.echo(f"{label}{text}")


def pick(view: Any, *names: str) -> dict[str, Any]:
    """Some fields of a view, for `fields`, under their own names."""
    return {name.replace("_", " "): getattr(view, name) for name in names}


def cell(value: Any) -> str:
    """A value as text: instants in local time, JSON for what has structure."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        from mainspring.model.words.instants import instant_text

        return instant_text(value.astimezone(), "milliseconds")
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, UUID):
        return str(value)
    import msgspec

    return msgspec.json.encode(value).decode()


def brief(value: Any) -> str:
    """A value in a table on a terminal: of an instant today the time alone, of another the day and the minute."""
    if not isinstance(value, datetime):
        return cell(value)
    local = value.astimezone()
    if local.date() == datetime.now().astimezone().date():
        return local.time().isoformat("milliseconds")
    return local.replace(tzinfo=None).isoformat(" ", "minutes")


def visible(text: str, *, lines: bool = False) -> str:
    """Text that cannot control a terminal or break a table: control characters are escaped."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or (lines and character == "\n")
        else " "
        if character in "\n\t"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def wrapped(line: str) -> str:
    """On a terminal, a line wrapped and indented as it begins."""
    if not on_terminal():
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return layout.wrapped(line, max(40, get_terminal_size().columns), indent=indent)


def headline(text: str | None) -> str:
    """The first line of an error."""
    return (text or "").partition("\n")[0]


def age(seconds: float) -> str:
    """0.4 s, 90 s, 15 min, 30 h, 12 d."""
    seconds = max(0.0, seconds)  # negative if a clock was set back
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{seconds:.1f} s" if seconds < 10 else f"{seconds // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} d"


def counted(count: int, noun: str) -> str:
    """1 run, 2,000 runs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
