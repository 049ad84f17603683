"""Layout: fit a table into a terminal: cut or wrap texts, and leave out the least important columns.

Pure: the width is an argument. Numbers and times are never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

GAP = 2  # columns between two cells
COMFORTABLE = 32  # a text is cut to this width before a `spare` column is left out
READABLE = 14  # to this before a `drop` column is left out
LEAST = 5  # to this when no column is left to leave out


class Room(NamedTuple):
    """How a table may shrink, by its headers."""

    cut: Sequence[str] = ()  # texts that may end in an ellipsis
    fold: Sequence[str] = ()  # texts that may wrap between words
    spare: Sequence[str] = ()  # columns to leave out in favour of long texts, the least important first
    drop: Sequence[str] = ()  # columns to leave out if nothing else helps; empty ones of both are always left out


class Fitted(NamedTuple):
    lines: list[list[str]]  # the cells of the header and of each line, padded
    left_out: list[str]  # headers of the columns that do not fit


def fit(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, room: Room) -> Fitted:
    """Lay the cells out in `width` columns of a terminal."""
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
    """What to try in turn: the columns to leave out, and the least width of a text."""
    for count in range(len(room.spare) + 1):
        yield room.spare[:count], COMFORTABLE
    for count in range(len(room.drop) + 1):
        yield (*room.spare, *room.drop[:count]), READABLE
    yield (*room.spare, *room.drop), LEAST


def _widths(columns: dict[str, list[str]], width: int, room: Room, least: int) -> dict[str, int]:
    """The width of each column: what it needs, or less for the widest of those that may shrink."""
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
    """Padded cells, line by line; a row with a wrapped text has several lines."""
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
    """The text in `width` columns: cut after the last word that fits, else within a word, with an ellipsis."""
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
    """The columns of a terminal that a text takes: more than its length if characters are wide."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrapped(line: str, width: int, *, indent: str = "") -> str:
    """The line wrapped at spaces. Text in backticks is for copying, and stays whole."""
    lines, current = [], ""
    for word in re.findall(r"\s*(?:`[^`\n]*`\S*|\S+)", line):
        if current.strip() and columns_of(current + word.rstrip()) > width:
            lines.append(current)
            current = indent + word.lstrip()
        else:
            current += word
    return "\n".join([*lines, current])
