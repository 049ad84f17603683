"""Findings: the contract between a rule and its kind.

A kind is one function. The leader calls it for each rule of that kind, every few seconds, with a `Look`: which names
matter, the parameters of the rule, and the time. It returns what is wrong, one `Finding` for each subject.

    async def queue_age(conn: Connection, look: Look[QueueAge]) -> Found: ...

There are two sorts of kinds (model/alerts/kinds.py says which is which):

    condition   The findings are what is wrong *now*, at `look.until`. A subject that is found fires (after `for`), and
                one that is no longer found is resolved. `look.since` is the last look, `look.open` what that one found.
    event       The findings are what *happened* after `look.since` and up to `look.until`, each event once: the next
                look begins where this one ended, also after hours without a server. A kind that must stop early, to
                stay bounded, says so with `Found.until`. An event needs no resolving.

A kind reads; it writes nothing. Its statements take the same time however long the history is, and PostgreSQL ends
those that take longer than 2 s: then the rule is marked with the problem, and the same look comes again.
Next: model/alerts/kinds.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

EVENTS = 100  # of one finding with a description of their own; `count` has all

P = TypeVar("P", bound=msgspec.Struct)


class Look(NamedTuple, Generic[P]):
    """What a kind is asked."""

    names: list[str] | None  # patterns for `like any`; None: all names matter
    parameters: P
    since: datetime  # the end of the last look; of events: those after it
    until: datetime  # the time of the look; of events: those up to it
    open: Sequence[str] = ()  # the subjects that are pending or fire


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one subject."""

    subject: str  # `job:report`, `schedule:nightly`, `agent:web-1`, `server:a`, `daemon:mail`, or `cluster`
    message: str  # a sentence for people: what, how bad, what to do
    since: datetime  # of a condition: since when, as far as is known; of events: the first
    job: str | None = None  # the job that it is about, if any: who may not see that job does not see the alert
    details: dict[str, Any] = {}  # JSON, for programs
    count: int = 1  # events; of a condition always 1
    events: list[Any] = []  # JSON, one for each of the first EVENTS events


class Found(NamedTuple):
    findings: Sequence[Finding]
    until: datetime | None = None  # an event kind looked no further than this; None: up to the end of the look
