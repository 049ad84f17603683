"""How a table fits a terminal: texts are cut or broken between words, and the least important columns are left out.

Pure: the width is an argument. Numbers and times are never cut.
Next: cli/render.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

GAP = 2  # columns between two cells
COMFORTABLE = 32  # a text is cut to this before a spare column is left out for it
READABLE = 14  # and to this before any other is
LEAST = 5  # and to this where nothing more can be left out


class Room(NamedTuple):
    """How a table may shrink, by its headers."""

    cut: Sequence[str] = ()  # texts that may end in an ellipsis
    fold: Sequence[str] = ()  # texts that may be broken between words
    spare: Sequence[str] = ()  # columns that are left out for long texts, the least important first
    drop: Sequence[str] = ()  # columns that are left out if nothing else helps; empty ones of both always are


class Fitted(NamedTuple):
    lines: list[list[str]]  # the cells of the header and of each line, padded
    left_out: list[str]  # headers of columns for which there is no room


def fit(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, room: Room) -> Fitted:
    """Lay the cells out in so many columns of a terminal."""
    optional = (*room.spare, *room.drop)
    columns = {
        header: [header, *(row[number] for row in rows)]
        for number, header in enumerate(headers)
        if header not in optional or any(row[number] for row in rows)
    }
    for leaving, least in _ways(room):
        shown = {header: cells for header, cells in columns.items() if header not in leaving}
        widths = _widths(shown, width, room, least)
        if _total(widths) <= width:
            break
    lines = _lay_out(shown, widths, room)
    return Fitted(lines, [header for header in columns if header not in shown])


def _ways(room: Room) -> Iterator[tuple[Sequence[str], int]]:
    """What to try, one after another: the columns that are left out, and how short a text may be."""
    for count in range(len(room.spare) + 1):
        yield room.spare[:count], COMFORTABLE
    for count in range(len(room.drop) + 1):
        yield (*room.spare, *room.drop[:count]), READABLE
    yield (*room.spare, *room.drop), LEAST


def _widths(columns: dict[str, list[str]], width: int, room: Room, least: int) -> dict[str, int]:
    """What each column gets: what it needs, or less for the widest of those that may shrink."""
    widths = {header: max(map(columns_of, cells)) for header, cells in columns.items()}
    floors = {header: max(least, len(header)) for header in (*room.cut, *room.fold) if header in widths}
    while (excess := _total(widths) - width) > 0:
        wide = sorted((header for header in floors if widths[header] > floors[header]), key=widths.__getitem__)
        if not wide:
            break
        widest = wide[-1]
        next_widest = widths[wide[-2]] if len(wide) > 1 else 0
        step = max(1, min(excess, widths[widest] - next_widest))
        widths[widest] = max(floors[widest], widths[widest] - step)
    return widths


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _lay_out(columns: dict[str, list[str]], widths: dict[str, int], room: Room) -> list[list[str]]:
    """Padded cells, line by line; a row with a text that was broken has several lines."""
    numeric = {header for header, cells in columns.items() if _is_numeric(cells[1:])}
    last = list(columns)[-1]
    lines = []
    for row in zip(*columns.values(), strict=True):
        cells = [_broken(text, widths[name], fold=name in room.fold) for name, text in zip(columns, row, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            gaps = ((name, text, 0 if name == last else GAP) for name, text in zip(columns, line, strict=True))
            lines.append([_pad(text, widths[name], gap, right=name in numeric) for name, text, gap in gaps])
    return lines


def _broken(text: str, width: int, *, fold: bool) -> list[str]:
    lines = wrapped(text, width).split("\n") if fold else [text]
    return [shortened(line, width) for line in lines]


def _pad(text: str, width: int, gap: int, *, right: bool) -> str:
    space = " " * (width - columns_of(text))
    return (space + text if right else text + space) + " " * gap


def _is_numeric(cells: Sequence[str]) -> bool:
    return all(not text or text.replace(".", "", 1).lstrip("-").isdigit() for text in cells)


def shortened(text: str, width: int) -> str:
    """The text in so many columns: cut behind its last word that fits, or else within a word, with an ellipsis."""
    if columns_of(text) <= width:
        return text
    end = min(len(text), width)
    while end and columns_of(text[:end]) > width - 1:
        end -= 1
    head = text[:end].rstrip()
    space = head.rfind(" ")
    if text[len(head)] != " " and space >= width // 2:
        head = head[:space].rstrip()
    return head.rstrip(",;: ") + "…"


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes; more than its length where characters are wide."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrapped(line: str, width: int, *, indent: str = "") -> str:
    """A line broken at spaces; what is in backticks is to be copied, and stays whole."""
    lines, current = [], ""
    for word in re.findall(r"\s*(?:`[^`\n]*`\S*|\S+)", line):
        if current.strip() and columns_of(current + word.rstrip()) > width:
            lines.append(current)
            current = indent + word.lstrip()
        else:
            current += word
    return "\n".join([*lines, current])
