"""Sources: all enabled schedules for a forecast, those with equal plan times together.

The last ones are kept until a schedule changes: the next week, and one cell of it, are asked for soon after.
Next: model/forecasting/forecast.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.forecasting.forecast import Source
from mainspring.model.schedules.expressions.cron_grammar import Resolver
from mainspring.model.schedules.schedules import Policies, Schedule
from mainspring.model.schedules.skips import Skip
from mainspring.model.schedules.timing import Every
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.operations.parts.slices import Slices
from mainspring.store.postgres.connection import Connection
from mainspring.store.watch import planned
from mainspring.store.watch.planned import Planned, State

By = Literal["none", "job", "label"]
NAMES = planned.NAMES
MOST_KEPT = 50_000  # sources; more would take too much memory

_AT_ONCE = 100  # names
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Sources(NamedTuple):
    sources: Sequence[Source]  # those with the most starts first
    unknown: Sequence[str]  # some schedules that cannot be read


class _Group(NamedTuple):
    """A source that is being put together."""

    schedule: Schedule
    names: list[str]
    starts: dict[str, int]
    left: int | None
    skips: Sequence[Skip]
    text: str | None
    expressions: list[str]


_kept: dict[Any, Sources] = {}  # one at most


async def sources(conn: Connection, actor: Actor, state: State, by: By, slices: Slices) -> Sources:
    """The schedules that the actor sees, as they are in a state."""
    key = (state, actor.jobs, by)
    if (found := _kept.get(key)) is not None:
        return found
    reader = Reader(actor, by)
    await read(conn, reader, slices)
    _kept.clear()
    found = reader.sources()
    if len(found.sources) <= MOST_KEPT:
        _kept[key] = found
    return found


async def read(
    conn: Connection, reader: Reader, slices: Slices, *, names: int = NAMES, expressions: Sequence[str] | None = None
) -> None:
    """Give all schedules to a reader, or those with some expressions."""
    after = 0
    while part := await planned.planned(conn, after, with_jobs=reader.needs_jobs, names=names, expressions=expressions):
        slices.resume()
        after = part[0].last
        for row in part:
            for _ in reader.add(row):
                await slices.rest()


class Reader:
    """Puts rows together. H is resolved first: a thousand names share the sixty minutes of an hour.

    With `apart`, schedules that are written differently stay apart.
    """

    def __init__(self, actor: Actor, by: By, names: int = NAMES, *, apart: bool = False) -> None:
        self.by = by
        self.needs_jobs = by != "none" or bool(actor.jobs)
        self._actor, self._names, self._apart = actor, names, apart
        self._found: dict[Any, _Group] = {}
        self._policies: dict[str, Policies] = {}
        self._resolvers: dict[str, Resolver] = {}
        self._phases: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self._reached: dict[str, bool] = {}
        self._unknown: list[str] = []

    def add(self, row: Planned) -> Iterator[None]:
        """Step by step."""
        if row.job is not None:
            if row.job not in self._reached:
                self._reached[row.job] = self._actor.reaches(row.job)
            if not self._reached[row.job]:
                return
        try:
            if row.policies not in self._policies:
                self._policies[row.policies] = msgspec.json.decode(row.policies, type=Policies)
            policies, resolver = self._policies[row.policies], self._resolver(row)
            if policies.anchor is not None:
                self._phase(row, policies)
        except (*UNREADABLE, ValidationError):
            self._unknown += row.names[: NAMES - len(self._unknown)]
            return
        series = self._series(row)
        if resolver is None or not resolver.is_spread:
            self._group(
                row, policies, series, None if resolver is None else resolver.text(""), row.names, row.schedules
            )
            yield
            return
        for number, name in enumerate(row.names, 1):
            self._group(row, policies, series, resolver.text(name), [name], 1)
            if number % _AT_ONCE == 0:
                yield
        yield

    def _group(
        self, row: Planned, policies: Policies, series: str, text: str | None, names: Sequence[str], count: int
    ) -> None:
        """Runs that are left and skips are those of one schedule; tasks with jitter land by the series, one by one."""
        is_alone = row.runs is not None or row.skips is not None
        when = (row.timezone, row.policies) if policies.anchor is None else self._phase(row, policies)
        key = (
            row.kind, row.expression if text is None else text, *when,
            names[0] if is_alone else "", series if policies.jitter else "", row.expression if self._apart else "",
        )  # fmt: skip
        group = self._found.get(key)
        if group is None:
            schedule = Schedule(names[0], row.job or "", row.kind, row.expression, row.timezone, policies)  # type: ignore[arg-type]
            left = None if policies.max_runs is None else max(0, policies.max_runs - (row.runs or 0))
            skips = () if row.skips is None else msgspec.json.decode(row.skips, type=tuple[Skip, ...])
            group = self._found[key] = _Group(schedule, [], {}, left, skips, text, [])
        if row.expression not in group.expressions:
            group.expressions.append(row.expression)
        if policies.jitter:
            group.names.extend(names)
        elif (room := self._names - len(group.names)) > 0:
            group.names.extend(sorted(names)[:room])
        group.starts[series] = group.starts.get(series, 0) + count * max(1, len(policies.scopes))

    def _phase(self, row: Planned, policies: Policies) -> tuple[Any, ...]:
        """Of an interval: two anchors that are whole periods apart are one."""
        key = (row.expression, row.timezone, row.policies)
        if key not in self._phases:
            assert policies.anchor is not None
            others = msgspec.json.encode(msgspec.structs.replace(policies, anchor=None))
            self._phases[key] = (row.timezone, others, (policies.anchor - _EPOCH) % Every(row.expression, None).period)
        return self._phases[key]

    def _resolver(self, row: Planned) -> Resolver | None:
        if row.kind != "cron":
            return None
        if row.expression not in self._resolvers:
            self._resolvers[row.expression] = Resolver(row.expression)
        return self._resolvers[row.expression]

    def _series(self, row: Planned) -> str:
        if self.by == "none":
            return ""
        if self.by == "job":
            return row.job or ""
        labels: Mapping[str, str] = msgspec.json.decode(row.labels or "{}")
        return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))

    def sources(self) -> Sources:
        found = [Source(*group) for group in self._found.values()]
        return Sources(sorted(found, key=lambda source: -source.weight), self._unknown)
