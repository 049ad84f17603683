"""Schedules in bulk for the benchmarks, written straight into the table, and when each of them fires."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from mainspring.model.schedules.planning import LOOK_BEFORE
from mainspring.store.postgres.database import Connection

CRON = 300  # seconds between two fires of a cron schedule
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Tokyo", "Australia/Sydney")
SHAPES = (  # all fire every five minutes; offsets of zones are whole multiples of that
    "{second} {minute}-59/5 * * * *",
    "{second} {minutes} * * * *",
    "{second} {minute}-59/5 0-23 * * *",
    "{second} {minutes} * * jan-dec sun-sat",
    "{second} {minute}-59/5 */1 1-31 * *",
)
MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_STORE = """
    insert into mainspring.schedule
        (name, job_id, kind, expression, timezone, policies, enabled, segment, next_plan_at, look_at)
    select f.name, j.id, f.kind, f.expression, f.timezone, f.policies, true, 0, f.next, f.next - $7::interval
      from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::timestamptz[])
               as f(name, kind, expression, timezone, policies, next),
           mainspring.job j
     where j.name = 'stamp'
"""


class Population:
    """So many schedules with `rate` fires a second, none of them before `first`.

    Three in five are cron schedules, which fire at whole seconds, every five minutes. The others are intervals, of a
    period that makes up the rate.
    """

    def __init__(self, count: int, rate: int, first: datetime) -> None:
        self.first = first
        self._every = count * 2 // 5
        self._cron = count - self._every
        self._seconds = round(self._every / (rate - self._cron / CRON), 6)  # between two fires of an interval

    def _periods(self) -> list[tuple[str, int, int]]:
        """(name, an instant, period) of each, in microseconds; the instants lie evenly in their period."""
        every = round(self._seconds * MICROSECONDS)
        return [(f"every-{n}", every * n // self._every, every) for n in range(self._every)] + [
            (f"cron-{n}", n % CRON * MICROSECONDS, CRON * MICROSECONDS) for n in range(self._cron)
        ]

    def expected(self, begin: datetime, end: datetime) -> set[tuple[str, int]]:
        """(name, instant) of every fire from `begin` to just before `end`."""
        low, high = _microseconds(begin), _microseconds(end)
        return {
            (name, at)
            for name, phase, period in self._periods()
            for at in range(_not_before(low, phase, period), high, period)
        }

    async def store(self, conn: Connection) -> None:
        rows = []
        for number, (name, phase, period) in enumerate(self._periods()):
            next = _instant(_not_before(_microseconds(self.first), phase, period))
            if number < self._every:
                policies = {"anchor": _instant(phase).isoformat()}
                rows.append((name, "every", f"{self._seconds:.6f}", "UTC", json.dumps(policies), next))
            else:
                rows.append((name, "cron", *_cron(number - self._every), "{}", next))
        for start in range(0, len(rows), 10_000):
            await conn.execute(_STORE, *zip(*rows[start : start + 10_000], strict=True), LOOK_BEFORE)


def _cron(number: int) -> tuple[str, str]:
    """The expression and timezone of one, by its number."""
    minute, second = divmod(number % CRON, 60)
    shape = SHAPES[number // CRON % len(SHAPES)]
    zone = ZONES[number // (CRON * len(SHAPES)) % len(ZONES)]
    minutes = ",".join(str(m) for m in range(minute, 60, 5))
    return shape.format(second=second, minute=minute, minutes=minutes), zone


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)


def _instant(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _not_before(low: int, phase: int, period: int) -> int:
    return low + (phase - low) % period


_IDLE = """
    insert into mainspring.schedule (name, job_id, kind, expression, timezone, enabled, segment, next_plan_at, look_at)
    select 'idle-' || n, j.id, 'cron', format('%s %s %s * *', n % 60, n % 24, n % 28 + 1), ($3::text[])[n % $4 + 1],
           true, n % 100, at, at - $5::interval
      from generate_series($1::integer, $2) as n,
           mainspring.job j,
           lateral (select mainspring.now() + make_interval(days => 30, secs => n) as at) far
     where j.name = 'stamp'
"""


async def idle(conn: Connection, count: int) -> None:
    """Schedules whose next plan time is at least a month away."""
    for start in range(0, count, 100_000):
        await conn.execute(_IDLE, start, min(start + 100_000, count) - 1, ZONES, len(ZONES), LOOK_BEFORE, timeout=300)


async def one_every_second(conn: Connection, first: datetime) -> None:
    row = ("second", "every", "1", "UTC", "{}", first)
    await conn.execute(_STORE, *([value] for value in row), LOOK_BEFORE)
