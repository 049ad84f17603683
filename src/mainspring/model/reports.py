"""Reports: what agents report on attempts, checked once where it comes in.

No report is believed with a time that no clock shows, a text that holds NUL, or a stream that does not exist. The
attempt of a bad ending ends as failed; other bad items are replaced or left out. PostgreSQL judges JSON, and may still
refuse a report: see server/recording/batch.py.
Next: server/recording/recorder.py
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.model.messages import Chunk, Ending, Finished, Note, Output, Progress, Refused, Started
from mainspring.model.tasks.states import TaskState

Report = Started | Finished | Progress | Output | Refused

LATEST = 7_258_118_400.0  # the year 2200, in seconds since 1970: PostgreSQL stores later times that Python cannot read
STREAMS = (0, 1, 2)
LONGEST_REASON = 1000  # characters


def items(report: Report) -> list[Any]:
    """The items of a report, each with its task and token: its first field."""
    found: list[Any] = getattr(report, report.__struct_fields__[0])
    return found


def about(report: Report, chosen: list[Any]) -> Report:
    """The same report with these of its items only."""
    return replace(report, **{report.__struct_fields__[0]: chosen})


def checked(report: Report) -> Report:
    """The report with all that cannot be stored replaced or left out."""
    match report:
        case Finished(endings):
            return report if all(map(_is_good, endings)) else Finished([_checked_ending(ending) for ending in endings])
        case Started(starts):
            return Started([start if _is_time(start.at) else replace(start, at=0.0) for start in starts])
        case Progress(notes):
            return Progress([note for note in notes if _is_plain(note)])
        case Output(chunks):
            return Output([_checked_chunk(chunk) for chunk in chunks if chunk.stream in STREAMS])
        case Refused():
            return report


def bad_report(ending: Ending, reason: object) -> Ending:
    """An ending that can be stored, in place of one that cannot."""
    error = f"what its agent reported cannot be stored: {reason}".replace("\0", "")
    return replace(
        ending, state=TaskState.FAILED, started_at=0.0, finished_at=0.0, result=None, code="bad_report",
        error=error.encode(errors="replace").decode()[:LONGEST_REASON], labels=("bad_report",),
        retry_after=None, snooze=None, final=True, exit_code=None,
    )  # fmt: skip


def _is_good(ending: Ending) -> bool:
    """Every ending of every task passes here: it must be fast."""
    return (
        0 <= ending.started_at < LATEST
        and 0 <= ending.finished_at < LATEST
        and not (ending.result and "\0" in ending.result)
        and not (ending.code and "\0" in ending.code)
        and not (ending.error and "\0" in ending.error)
        and not (ending.labels and any("\0" in label for label in ending.labels))
    )


def _checked_ending(ending: Ending) -> Ending:
    if _is_good(ending):
        return ending
    has_times = _is_time(ending.started_at) and _is_time(ending.finished_at)
    return bad_report(ending, "a text that holds NUL" if has_times else "a time that no clock shows")


def _checked_chunk(chunk: Chunk) -> Chunk:
    return chunk if _is_time(chunk.at) else replace(chunk, at=0.0)


def _is_time(at: float) -> bool:
    return 0 <= at < LATEST


def _is_plain(note: Note) -> bool:
    return "\0" not in (note.progress or "") and "\0" not in (note.checkpoint or "")
