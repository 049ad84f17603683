"""Evaluator: the leader looks, rule by rule, for what is wrong or has happened, and notes what is to be told.

A pass reads everything first. Then each rule with something to note has a transaction that holds its row, checks that
nothing has changed since it was read, moves its alerts and writes the messages; so two leaders note and tell nothing
twice. A rule that finds nothing costs its one query.
Reads   operations.alerting.kinds   (what is found)
Writes  store.alerts.rules, store.alerts.alerts
Next:   server/alerting/notifier.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import asyncpg

from mainspring.errors import ValidationError
from mainspring.loops import Signal
from mainspring.model.alerts.findings import Finding, Look
from mainspring.model.alerts.kinds import KINDS
from mainspring.model.alerts.rules import read_parameters
from mainspring.model.words.globs import like
from mainspring.operations.alerting.kinds import FIND
from mainspring.server.alerting import notifier
from mainspring.store.alerts import alerts, rules
from mainspring.store.alerts.rules import ActiveRule, Clock
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.errors import SAME_SESSION, UNAVAILABLE
from mainspring.wire import clock as wire_clock
from mainspring.wire.clock import Repeated, boottime

log = logging.getLogger("mainspring")

EVALUATE_EVERY = 10.0  # seconds
WITHIN = 2.0  # seconds for one statement of a kind
LONGEST_LOOK = timedelta(minutes=10)  # at events; after a long pause there are several looks
SHORTEST_LOOK = timedelta(seconds=1)
LOOKS = 12  # at the events of one rule, in one pass
BACK = timedelta(days=7)  # events that happened earlier are not looked for
SUBJECTS = 500  # of one rule in one look; the others are taken together
FIRST_LOOK = timedelta(hours=1)  # what a new condition takes for its last look
NOTE_EVERY = timedelta(minutes=1)  # how far was looked is noted so often where nothing was found
BY_RECORD = {"failed", "expired"}  # events that are found by when they were written down

_TOO_LONG = asyncpg.QueryCanceledError  # fails its rule only


def _ends_session(error: Exception) -> bool:
    """Whether no rule can be evaluated on this connection any more."""
    return isinstance(error, UNAVAILABLE) and not isinstance(error, (_TOO_LONG, *SAME_SESSION))


class Looked(NamedTuple):
    """What a look at one rule has found."""

    rule: ActiveRule
    findings: list[Finding]
    until: datetime | None  # of events

    @property
    def is_noteworthy(self) -> bool:
        return bool(self.findings or self.rule.open or self.rule.is_untold)


class Evaluator:
    def __init__(self, database: Database, clock: wire_clock.Clock | None = None) -> None:
        self._database = database
        self._clock = wire_clock.Clock() if clock is None else clock  # follows the database's
        self._lengths: dict[str, timedelta] = {}  # of looks at events, by rule
        self._seen: dict[str, tuple[int, datetime]] = {}  # by rule: its version, and up to where was looked
        self._again: dict[str, list[Repeated]] = {}  # by rule: what this pass looks at once more
        self._done: dict[str, set[Repeated]] = {}  # by rule: what was looked at once more
        self.wake = asyncio.Event()
        self.on_told: Signal[[]] = Signal()

    async def step(self) -> int:
        """One pass over all rules."""
        told = False
        async with self._database.acquire() as conn:
            active = await rules.enabled(conn)
            sent = boottime()
            clock = await rules.clock(conn)
            self._clock.measured(sent, boottime(), clock.now.timestamp())
            looked = await self._look_at_all(conn, active, clock)
            for one in looked:
                if one.is_noteworthy:
                    told |= await self._apply(conn, one, clock.now)
            await self._note(conn, [one for one in looked if not one.is_noteworthy], clock.now)
        if told:
            self.on_told.send()
        return 0

    # ── look ────────────────────────────────────────────────────────────────────────────────────

    async def _look_at_all(self, conn: Connection, active: Sequence[ActiveRule], clock: Clock) -> list[Looked]:
        """In one transaction, for its settings; after a rule that fails, another one for the rest."""
        looked: list[Looked] = []
        waiting = deque(rule for rule in active if rule.kind in KINDS and rule.kind in FIND)
        while waiting:
            try:
                async with conn.transaction():
                    # An index whatever the statistics say, and an end whatever there is.
                    await conn.execute(
                        f"set local statement_timeout = {WITHIN * 1000:.0f}; set local enable_seqscan = off"
                    )
                    while waiting:
                        looked.append(await self._look(conn, waiting[0], clock))
                        waiting.popleft()
            except (ValidationError, asyncpg.PostgresError) as error:
                if not waiting or _ends_session(error):
                    raise  # the connection failed, not a rule: `acquire` translates it, and the loop retries
                await self._failed(conn, waiting.popleft(), error)
        return looked

    async def _failed(self, conn: Connection, rule: ActiveRule, error: Exception) -> None:
        problem = f"it takes longer than {WITHIN:g} s" if isinstance(error, _TOO_LONG) else str(error)
        self._lengths[rule.name] = max(self._lengths.get(rule.name, LONGEST_LOOK) / 2, SHORTEST_LOOK)
        if rule.problem != problem:
            log.warning("alert rule %s cannot be evaluated: %s", rule.name, problem)
            await rules.failed(conn, rule.name, rule.version, problem)

    async def _look(self, conn: Connection, rule: ActiveRule, clock: Clock) -> Looked:
        parameters = read_parameters(rule.kind, rule.parameters or {})
        names = like(rule.names, field="names")
        if KINDS[rule.kind].is_event:
            return await self._look_at_events(conn, rule, Look(names, parameters, clock.settled, clock.settled))
        since = rule.evaluated_at or clock.now - FIRST_LOOK
        found = await FIND[rule.kind](conn, Look(names, parameters, since, clock.now, rule.open))
        of_each = {finding.subject: finding for finding in found.findings}  # an alert has one state
        return Looked(rule, folded(list(of_each.values())), None)

    async def _look_at_events(self, conn: Connection, rule: ActiveRule, wanted: Look[Any]) -> Looked:
        """In looks of bounded length, so that a long pause makes no long statement."""
        end = wanted.until
        at = max(self._begin(rule, end), end - BACK)
        found: dict[str, Finding] = {}
        for _ in range(LOOKS):
            if at >= end:
                break
            length = self._lengths.get(rule.name, LONGEST_LOOK)
            look = wanted._replace(since=at, until=min(at + length, end))
            findings, reached = await FIND[rule.kind](conn, look)
            self._lengths[rule.name] = min(length * 2, LONGEST_LOOK)
            for finding in findings:
                found[finding.subject] = joined(found.get(finding.subject), finding)
            if reached is not None and reached < look.until:
                at = max(at, reached)
                break
            at = look.until
        return Looked(rule, folded(list(found.values())), at)

    def _begin(self, rule: ActiveRule, end: datetime) -> datetime:
        """Where the last look ended; a new rule begins now. What lies ahead is from before the clock was set back.

        If it ended within what the clock has shown twice since, rows of the second time may lie before it: all of that
        is looked at once more, and what was found the first time may be told again.
        """
        self._again.pop(rule.name, None)
        version, seen = self._seen.get(rule.name, (0, None))
        known = [at for at in (rule.looked_to, seen if version == rule.version else None) if at is not None]
        if known and rule.kind in BY_RECORD:
            last, done = max(known).timestamp(), self._done.get(rule.name, set())
            again = [one for one in self._clock.repeated if one.start < last <= one.end and one not in done]
            if again:
                self._again[rule.name] = again
                return min(datetime.fromtimestamp(min(again).start, UTC), end)
        return max((at for at in known if at <= end), default=end)

    def _noted(self, one: Looked) -> None:
        """How far was looked at a rule is remembered, or written down."""
        if one.until is not None:
            self._seen[one.rule.name] = one.rule.version, one.until
        if again := self._again.pop(one.rule.name, None):
            done = self._done.setdefault(one.rule.name, set())
            done &= {*self._clock.repeated}
            done |= {*again}

    # ── note ────────────────────────────────────────────────────────────────────────────────────

    async def _apply(self, conn: Connection, one: Looked, at: datetime) -> bool:
        """Move the alerts of a rule and write what is to be told, unless another leader has. Whether it told."""
        rule = one.rule
        async with conn.transaction():
            if not await rules.lock(conn, rule, at):
                return False
            is_event = KINDS[rule.kind].is_event
            await alerts.observe(conn, rule, is_event, at, one.findings)
            told = await notifier.notify(conn, rule, at)
            if is_event:
                await alerts.close(conn, rule, at)
            await rules.evaluated(conn, [(rule, one.until)], at)
        self._noted(one)
        return told

    async def _note(self, conn: Connection, idle: Sequence[Looked], at: datetime) -> None:
        """Remember how far was looked; write it down once a minute, and where a look went back, in one statement."""
        due = [
            (one.rule, one.until)
            for one in idle
            if one.rule.evaluated_at is None
            or abs(at - one.rule.evaluated_at) >= NOTE_EVERY
            or one.rule.problem
            or one.rule.name in self._again
        ]
        if due:
            await rules.evaluated(conn, due, at)
        for one in idle:
            self._noted(one)


def joined(one: Finding | None, other: Finding) -> Finding:
    """What two looks have found of one subject."""
    if one is None:
        return other
    return Finding(
        subject=other.subject,
        job=other.job,
        message=other.message,
        since=min(one.since, other.since),
        details=other.details,
        count=one.count + other.count,
        events=[*one.events, *other.events],
    )


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """At most SUBJECTS findings: those beyond are one, which counts them."""
    if len(findings) <= SUBJECTS:
        return list(findings)
    kept, rest = findings[: SUBJECTS - 1], findings[SUBJECTS - 1 :]
    others = Finding(
        subject="others",
        message=f"and {len(rest):,} more",
        since=min(finding.since for finding in rest),
        details={"subjects": [finding.subject for finding in rest[:SUBJECTS]]},
        count=sum(finding.count for finding in rest),
    )
    return [*kept, others]
