"""Words: why so many slots are wanted, as a sentence."""

from __future__ import annotations

from datetime import datetime

from mainspring.model.scaling.wanted import USE, Wanted


def reason(
    found: Wanted,
    *,
    due: int,
    rate: float,
    planned: int,
    peak_at: datetime | None,
    target_wait: float,
    horizon: int,
    daemons: int,
    busy: int,
    left_out: int,
    held: int,
) -> str:
    """`left_out` are due tasks that the selected agents could run, and that require less than was asked for.

    `held` are due tasks that a hold keeps from starting.
    """
    parts = list[str]()
    if found.is_ahead and peak_at is not None:
        starts = f"{planned} planned start{'' if planned == 1 else 's'} within {_duration(horizon)}"
        parts.append(f"{starts} {_need(planned)} {_slots(found.planned)} at {peak_at:%H:%M:%S} UTC")
    if found.running:
        parts.append(f"{found.running} run{'s' if found.running == 1 else ''}")
    if found.arriving:
        parts.append(f"{rate:.3g} tasks/s keep {_slots(found.arriving)} busy")
    if found.backlog:
        wanted = f"{_need(due)} {_slots(found.backlog)}"
        parts.append(f"{_tasks(due)} {wanted} to start within {_duration(target_wait)}")
    if parts:
        parts[-1] += f"; at {USE:.0%} use"
    if daemons:
        parts.append(f"{daemons} replica{'' if daemons == 1 else 's'} of daemons")
    if found.slots == busy and busy:
        parts.append(f"{busy} busy slot{' is' if busy == 1 else 's are'} kept")
    if not parts:
        parts.append(f"nothing is due, nothing runs, and nothing is planned within {_duration(horizon)}")
    if held:
        parts.append(f"{_tasks(held)} of held jobs {'is' if held == 1 else 'are'} not counted")
    if left_out:
        parts.append(f"{_tasks(left_out)} that require fewer labels are not counted")
    return "; ".join(parts)


def _need(count: int) -> str:
    return "needs" if count == 1 else "need"


def _slots(wanted: float) -> str:
    if wanted < 0.995:
        return "less than one slot"
    return "1 slot" if f"{wanted:.3g}" == "1" else f"{wanted:.3g} slots"


def _tasks(count: int) -> str:
    return f"{count} due task{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    whole, unit = (seconds / 60, "m") if seconds >= 60 and seconds % 60 == 0 else (seconds, "s")
    return f"{whole:g}{unit}"
