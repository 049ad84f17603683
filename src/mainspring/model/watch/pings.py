"""Pings: what a task of a schedule with a ping_url tells that address, as Healthchecks and its like expect it.

`URL/start` at its start, `URL` when it has succeeded, `URL/fail` when it has failed for good.
Next: server/watch/pinger.py
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from mainspring.model.tasks.states import LIVE, TaskState

Event = Literal["start", "success", "fail"]


def events(state: TaskState | None, *, has_started: bool, start_told: bool) -> list[Event]:
    """What is to be told of a task in this state, in order."""
    told: list[Event] = ["start"] if has_started and not start_told else []
    if state == TaskState.SUCCEEDED:
        told.append("success")
    elif is_over(state) and state is not None and (has_started or state in (TaskState.FAILED, TaskState.LOST)):
        told.append("fail")
    return told


def is_over(state: TaskState | None) -> bool:
    """Whether nothing more will come of a task. None: it was taken back before it started."""
    return state is None or state not in LIVE


def address(url: str, event: Event) -> str:
    """The address of an event; a query of the URL stays behind its path."""
    if event == "success":
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{event}"))
