"""Kinds about schedules: missed, slo_burn.

Next: store/watch/missed_starts.py
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from mainspring.model.alerts.findings import EVENTS, Finding, Found, Look
from mainspring.model.alerts.kinds import Missed, SloBurn
from mainspring.model.schedules.story import span
from mainspring.model.watch.slo import BURN_RULES, BurnRule, burn_rates
from mainspring.store.followed import slo
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules.schedules import Stored
from mainspring.store.watch.missed_starts import MissedStart, missed_starts

REPORTED_WITHIN = timedelta(seconds=2)  # a start that was in time
CATCH_UP = 60.0  # seconds that planners have after an election to decide what was missed without a leader
MOST_SPENDING = 1000  # schedules

_WHY = {
    "undecided": "nothing was decided about it",
    "misfire": "it was decided too late to run (misfire)",
    "coalesced": "it was decided too late, and only the last one ran (coalesced)",
    "waiting": "its task has not started",
    "passed_over": "it is not in the ledger, though later ones are",
}


async def missed(conn: Connection, look: Look[Missed]) -> Found:
    """Plan times without a start so long after they were due."""
    grace = timedelta(seconds=look.parameters.grace)
    until = max(look.since, look.until - REPORTED_WITHIN)
    if await _is_catching_up(conn):
        return Found([], look.since)
    found = await missed_starts(conn, look.names, look.since - grace, until - grace, found=(look.since, until))
    findings = [_missed(found.stored[id], starts, look.parameters.grace) for id, starts in found.starts.items()]
    if found.uncounted:
        findings.append(
            Finding(
                subject="cluster",
                message=f"{found.uncounted:,} more schedules are overdue: is there a server that plans them?",
                since=look.since,
                count=found.uncounted,
            )
        )
    return Found(sorted(findings, key=lambda finding: finding.subject), found.until + grace)


# Only while plan times are undecided: what planners are about to decide need not be computed here as well.
_CATCHING_UP = """
    select exists (select from mainspring.leader where elected_at > mainspring.now() - make_interval(secs => $1))
       and exists (select from mainspring.schedule
                    where look_at <= (select mainspring.now()) - interval '5 seconds' and next_plan_at is not null
                      and enabled)
"""


async def _is_catching_up(conn: Connection) -> bool:
    return bool(await conn.fetchval(_CATCHING_UP, CATCH_UP))


def _missed(stored: Stored, starts: list[MissedStart], grace: float) -> Finding:
    name = stored.schedule.name
    why, number = Counter(start.why for start in starts).most_common(1)[0]
    first, last = starts[0].plan_time, starts[-1].plan_time
    at = f"{first:%Y-%m-%d %H:%M:%S}" + ("" if first == last else f" to {last:%Y-%m-%d %H:%M:%S}")
    told = "a plan time" if len(starts) == 1 else f"{len(starts):,} plan times"
    rest = "" if number == len(starts) else f" ({number:,} of them)"
    return Finding(
        subject=f"schedule:{name}",
        job=stored.schedule.job,
        message=f"{told} of schedule {name} had no start {span(timedelta(seconds=grace))} after it was due, {at} UTC: "
        f"{_WHY[why]}{rest}; `mainspring schedule explain {name} --at {last:%Y-%m-%dT%H:%M:%S}Z` tells more",
        since=first,
        details={"first": first.isoformat(), "last": last.isoformat()},
        count=len(starts),
        events=[
            {"plan_time": start.plan_time.isoformat(), "scope": start.scope, "why": start.why, "task": start.task}
            for start in starts[:EVENTS]
        ],
    )


async def slo_burn(conn: Connection, look: Look[SloBurn]) -> Found:
    """Schedules that use up the error budget of their SLO too fast, over a long and a short window."""
    rules = [
        BurnRule(threshold, rule.long, rule.short)
        for threshold, rule in zip((look.parameters.fast, look.parameters.slow), BURN_RULES, strict=True)
    ]
    findings = []
    for budget in await slo.spending(conn, look.names, look.until, limit=MOST_SPENDING):
        burning = [rate for rate in burn_rates(budget.counts, budget.objective.target, rules) if rate.is_burning]
        if not burning:
            continue
        rate = burning[0]
        count = budget.counts[rate.long]
        findings.append(
            Finding(
                subject=f"schedule:{budget.name}",
                job=budget.job,
                message=f"schedule {budget.name} burns the error budget of its SLO {rate.long_rate:g} times too fast: "
                f"{count.bad:,} of {count.events:,} plan times of the last {span(timedelta(seconds=rate.long))} were "
                f"late by more than {budget.objective.lateness:g} s, or missed ({count.missed:,})",
                since=budget.since,
                details={
                    "threshold": rate.threshold,
                    "long_rate": rate.long_rate,
                    "short_rate": rate.short_rate,
                    "bad": count.bad,
                    "events": count.events,
                },
            )
        )
    return Found(findings)
