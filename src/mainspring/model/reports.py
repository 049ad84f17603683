"""Reports: what agents report on attempts, checked once where it comes in.

No report is believed with a time that no clock shows, a delay of more than ten years, a text that holds NUL, JSON
beyond the rules of model/tasks/payload.py, or a stream that does not exist: PostgreSQL would store some of it, and no
listing could read it. The attempt of a bad ending ends as failed; other bad items are replaced or left out. PostgreSQL
may still refuse a report: see server/recording/flush.py.
Next: server/recording/recorder.py
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.model.messages import Chunk, Ending, Finished, Note, Output, Progress, Refused, Started
from mainspring.model.tasks.payload import MAX_ERROR, cut, why_not
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.durations import MAX_SECONDS

Report = Started | Finished | Progress | Output | Refused

LATEST = 7_258_118_400.0  # the year 2200, in seconds since 1970: PostgreSQL stores later times that Python cannot read
STREAMS = (0, 1, 2)
LONGEST_REASON = 1000  # characters
LONGEST_CODE = 200
LONGEST_ERROR = MAX_ERROR + 100  # agents cut theirs, and say so
FAR = 1e9  # seconds: further from its instant nothing is armed
LAST_CHUNK = 2**31  # numbers of chunks are below


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
            return report if _are_good(endings) else Finished([_checked_ending(ending) for ending in endings])
        case Started(starts):
            return Started([start if _is_time(start.at) else replace(start, at=0.0) for start in starts])
        case Progress(notes):
            return Progress([note for note in notes if _is_plain(note)])
        case Output(chunks):
            return Output([_checked_chunk(chunk) for chunk in chunks if _is_stored(chunk)])
        case Refused():
            return report


def bad_report(ending: Ending, reason: object) -> Ending:
    """An ending that can be stored, in place of one that cannot."""
    error = f"what its agent reported cannot be stored: {reason}".replace("\0", "")
    return replace(
        ending, state=TaskState.FAILED, started_at=0.0, finished_at=0.0, result=None, code="bad_report",
        error=error.encode(errors="replace").decode()[:LONGEST_REASON], labels=("bad_report",),
        retry_after=None, snooze=None, final=True, exit_code=None, armed_ahead=None, fire_at=0.0,
    )  # fmt: skip


def _are_good(endings: list[Ending]) -> bool:
    """Every ending of every task passes here: it must be fast. If one has failed, all are looked at again."""
    for ending in endings:
        if not (
            0 <= ending.started_at < LATEST
            and 0 <= ending.finished_at < LATEST
            and ending.code is None
            and ending.error is None
            and ending.snooze is None
            and ending.retry_after is None
            and not ending.labels
            and 0 <= ending.fire_at < LATEST
            and (ending.armed_ahead is None or -FAR < ending.armed_ahead < FAR)
            and (ending.result is None or ending.result == "null" or why_not(ending.result) is None)
        ):
            return False
    return True


def _checked_ending(ending: Ending) -> Ending:
    reason = _wrong(ending)
    if reason is not None:
        return bad_report(ending, reason)
    ahead = ending.armed_ahead
    if not (_is_time(ending.fire_at) and (ahead is None or -FAR < ahead < FAR)):
        ending = replace(ending, armed_ahead=None, fire_at=0.0)
    too_long = ending.error is not None and len(ending.error) > LONGEST_ERROR
    return replace(ending, error=cut(ending.error or "")) if too_long else ending


def _wrong(ending: Ending) -> str | None:
    if not (_is_time(ending.started_at) and _is_time(ending.finished_at)):
        return "a time that no clock shows"
    if not all(delay is None or 0 <= delay <= MAX_SECONDS for delay in (ending.retry_after, ending.snooze)):
        return "a delay that is not between 0 and 10 years"
    if any("\0" in text for text in (ending.code or "", ending.error or "", *ending.labels)):
        return "a text that holds NUL"
    if len(ending.code or "") > LONGEST_CODE:
        return f"a code of more than {LONGEST_CODE} characters"
    return None if ending.result is None else why_not(ending.result)


def _checked_chunk(chunk: Chunk) -> Chunk:
    return chunk if _is_time(chunk.at) else replace(chunk, at=0.0)


def _is_stored(chunk: Chunk) -> bool:
    return chunk.stream in STREAMS and 0 < chunk.number < LAST_CHUNK


def _is_time(at: float) -> bool:
    return 0 <= at < LATEST


def _is_plain(note: Note) -> bool:
    return all(text is None or why_not(text) is None for text in (note.progress, note.checkpoint))
