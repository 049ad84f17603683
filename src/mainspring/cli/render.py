"""How data is shown: tables on a terminal, tabs for other programs' pipes, JSON when asked for.

Data goes to stdout, everything else to stderr. Rich is loaded only when a terminal is there to draw on.
Next: cli/tasks.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def print_json(value: Any) -> None:
    """One value on one line."""
    import msgspec

    click.echo(msgspec.json.encode(value).decode())


def note(text: str) -> None:
    """Something for a person, on stderr. That nobody listens is no reason to stop."""
    with suppress(OSError):
        click.echo(text, file=sys.stderr)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    empty: str,
    unbroken: Sequence[str] = (),
    fitted: bool = False,
) -> None:
    """Rows under headers; on a terminal, `empty` is what to say when there are none; `unbroken` columns stay whole.

    Of a `fitted` one, a terminal shows as many columns as have room.
    """
    cells = [[visible(cell(value)) for value in row] for row in rows]
    if not on_terminal():
        for line in ([header.lower().replace(" ", "_") for header in headers], *cells):
            click.echo("\t".join(line))
    elif cells:
        _draw(headers[: _room(headers, cells)] if fitted else headers, cells, unbroken)
    else:
        note(empty)


def _draw(headers: Sequence[str], cells: list[list[str]], unbroken: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for number, header in enumerate(headers):
        numeric = all(_is_number(row[number]) for row in cells)
        drawn.add_column(header, justify="right" if numeric else "left", overflow="fold", no_wrap=header in unbroken)
    for row in cells:
        drawn.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in row[: len(headers)]))
    Console().print(drawn)


def _room(headers: Sequence[str], cells: list[list[str]]) -> int:
    """How many columns fit a terminal side by side."""
    from itertools import accumulate
    from shutil import get_terminal_size

    widths = [max(map(len, column)) + 2 for column in zip(headers, *cells, strict=True)]
    return max(1, sum(end <= get_terminal_size().columns for end in accumulate(widths)))


_STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "bold red",
    "timed_out": "red",
    "lost": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "draining": "yellow",
    "dead": "red",
    "silent": "bold red",
    "unowned": "bold red",
}


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).lstrip("-").isdigit()


def fields(pairs: Mapping[str, Any]) -> None:
    """Names and values, one per line; those without a value are left out."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        if value is not None and value != "":
            text = visible(cell(value), lines=True).replace("\n", "\n" + " " * (width + 2))
            label = f"{name:<{width}}  " if on_terminal() else f"{name}\t"
            click.echo(f"{label}{text}")


def cell(value: Any) -> str:
    """A value as text: instants in local time, JSON for what has structure."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, float):
        return f"{value:.1f}"
    import msgspec

    return msgspec.json.encode(value).decode()


def visible(text: str, *, lines: bool = False) -> str:
    """Text that cannot steer a terminal or break a table: control characters are shown by their codes."""
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
    """A line broken where the terminal ends, and indented as it begins; as it is for other programs."""
    if not on_terminal():
        return line
    from shutil import get_terminal_size
    from textwrap import fill

    indent = " " * (len(line) - len(line.lstrip()) + 2)
    width = max(40, get_terminal_size().columns)
    return fill(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def headline(text: str | None) -> str:
    """The first line of an error."""
    return (text or "").partition("\n")[0]


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"


def age(seconds: float) -> str:
    """0.4 s, 90 s, 15 min, 30 h, 12 d: as exactly as anybody wants to know it."""
    seconds = max(0.0, seconds)  # a clock that was set back
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{seconds:.1f} s" if seconds < 10 else f"{seconds // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} d"


def counted(count: int, noun: str) -> str:
    """1 run, 2,000 runs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
