"""Missed: every plan time without a start is told once, whoever was or was not running; and the ledger is compared."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.server.watch.conftest import HOUR, MINUTE, NOON, SECOND, plan, set_clock, start

from mainspring.model.alerts.findings import Finding, Look
from mainspring.model.alerts.kinds import Missed, SloBurn
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.server.planning.planner import Planner
from mainspring.server.watch.ledger_audit import LedgerAudit
from mainspring.server.watch.slo_counter import SloCounter
from mainspring.store.alerts.kinds import schedules as kinds
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import explain, schedules


async def make(conn: Connection, name: str = "s", **when: Any) -> None:
    given: Any = when if "daily" in when else {"every": "1m", **when}
    assert await schedules.create(conn, define_schedule(name, "job", given), enabled=True)


class Looks:
    """Looks that follow each other, as the evaluator makes them."""

    def __init__(self, conn: Connection, *, names: list[str] | None = None, grace: float = 60.0) -> None:
        self._conn = conn
        self._look = Look(names, Missed(grace=grace), NOON, NOON)
        self.told: list[tuple[str, str, str, str]] = []  # schedule, plan time after noon, scope, why

    async def look(self, at: datetime, *, step: timedelta = timedelta(minutes=10)) -> list[Finding]:
        """Up to this instant; returns what the looks found."""
        await set_clock(self._conn, at)
        found: list[Finding] = []
        for _ in range(1000):
            look = self._look._replace(until=min(at, self._look.since + step))
            findings, until = await kinds.missed(self._conn, look)
            found += findings
            assert until is not None
            is_last = until <= self._look.since or look.until == at
            self._look = self._look._replace(since=max(until, self._look.since))
            if is_last:
                break
        for finding in found:
            assert finding.count == len(finding.events)
            for event in finding.events:
                after = datetime.fromisoformat(event["plan_time"]) - NOON
                self.told.append((finding.subject, str(after), event["scope"], event["why"]))
        return found


async def test_all_servers_stopped_for_an_hour_each_plan_time_is_told_once(conn: Connection, planner: Planner) -> None:
    await make(conn, every="5m")
    await make(conn, "daily", daily="12:30", catch_up="skip")
    looks = Looks(conn)
    back = NOON + HOUR + 30 * SECOND
    await plan(conn, planner, back)
    await start(conn, 30.0)
    await looks.look(back + 5 * MINUTE)
    times = [str(minute * MINUTE) for minute in range(5, 60, 5)]
    expected = {("schedule:s", at, "", "coalesced") for at in times} | {("schedule:daily", "0:30:00", "", "misfire")}
    assert sorted(looks.told) == sorted(expected)
    before = list(looks.told)
    await looks.look(back + 6 * MINUTE)
    assert looks.told[len(before) :] == [("schedule:s", "1:05:00", "", "undecided")], "nobody planned since"


async def test_what_is_told_while_it_is_undecided_is_not_told_again(conn: Connection, planner: Planner) -> None:
    await make(conn)
    looks = Looks(conn)
    [finding] = await looks.look(NOON + 4 * MINUTE + 10 * SECOND)
    assert [told[1:] for told in looks.told] == [(f"0:0{minute}:00", "", "undecided") for minute in (1, 2, 3)]
    assert finding.since == NOON + MINUTE
    assert "3 plan times of schedule s had no start 60 s after it was due" in finding.message
    await plan(conn, planner, NOON + 4 * MINUTE + 11 * SECOND)  # 1 to 3 are coalesced, 4 runs late
    await start(conn, 11.0)
    await looks.look(NOON + 6 * MINUTE)
    assert len(looks.told) == 3, "and one that started within its grace is not missed"


async def test_looks_of_any_length_find_the_same(conn: Connection, planner: Planner) -> None:
    await make(conn, every="30s", scopes=["eu", "us"], delay="45s", jitter="20s")
    await make(conn, "plain", every="1m")
    looks = [(Looks(conn), step) for step in (7 * SECOND, MINUTE, HOUR)]
    await plan(conn, planner, NOON + 20 * MINUTE)
    for each, step in looks:
        await each.look(NOON + 24 * MINUTE, step=step)
    first, *others = [sorted(one[0].told) for one in looks]
    assert all(other == first for other in others)
    assert len(first) == len(set(first)), "each once"
    assert {("schedule:plain", f"0:{minute:02}:00", "", "coalesced") for minute in range(1, 20)} < set(first)
    assert {one[2] for one in first if one[0] == "schedule:s"} == {"eu", "us"}


async def test_a_task_that_no_agent_starts_is_missed(conn: Connection, planner: Planner) -> None:
    await make(conn)
    looks = Looks(conn)
    await plan(conn, planner, NOON + MINUTE - 5 * SECOND)
    await looks.look(NOON + 2 * MINUTE - 5 * SECOND)
    assert looks.told == []
    [finding] = await looks.look(NOON + 2 * MINUTE + 5 * SECOND)
    assert looks.told == [("schedule:s", "0:01:00", "", "waiting")]
    assert finding.events[0]["task"] == await conn.fetchval("select id from mainspring.task")
    await start(conn, 70.0)
    await looks.look(NOON + 2 * MINUTE + 50 * SECOND)
    assert len(looks.told) == 1


async def test_what_a_policy_or_a_person_keeps_back_is_not_missed(conn: Connection, planner: Planner) -> None:
    await make(conn, overlap="queue")
    await make(conn, "paused")
    await make(conn, "ended", end=(NOON + 90 * SECOND).isoformat())
    await make(conn, "once-only", max_runs=1)
    await plan(conn, planner, NOON + MINUTE - 5 * SECOND)
    await conn.execute("update mainspring.task set state = 3, token = id, attempt = 1, started_at = plan_time")
    await schedules.change(conn, "paused", lambda schedule: schedule, enabled=False)
    for minute in range(2, 6):
        await plan(conn, planner, NOON + minute * MINUTE - 5 * SECOND)
    looks = Looks(conn)
    await looks.look(NOON + 5 * MINUTE + 30 * SECOND)
    assert looks.told == []


async def test_names_select_schedules(conn: Connection, planner: Planner) -> None:
    for name in ("shop.a", "shop.b", "mail"):
        await make(conn, name)
    await plan(conn, planner, NOON + 3 * MINUTE + 30 * SECOND)
    shop, mail = Looks(conn, names=["shop.%"]), Looks(conn, names=["mail"], grace=5.0)
    await conn.execute("update mainspring.leader set elected_at = now() - interval '1 year'")
    await shop.look(NOON + 9 * MINUTE)
    await mail.look(NOON + 9 * MINUTE)
    assert {told[0] for told in shop.told} == {"schedule:shop.a", "schedule:shop.b"}
    assert {told[0] for told in mail.told} == {"schedule:mail"}
    assert {told[3] for told in mail.told} == {"coalesced", "waiting", "undecided"}


async def test_after_an_election_planners_have_a_minute_to_catch_up(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await conn.execute("update mainspring.leader set elected_at = $1", NOON + HOUR)
    looks = Looks(conn)
    await looks.look(NOON + HOUR + 10 * SECOND)
    assert looks.told == [], "nothing is lost: the look has not moved on"
    await plan(conn, planner, NOON + HOUR + 11 * SECOND)
    await looks.look(NOON + HOUR + 20 * SECOND)
    assert [told[3] for told in looks.told] == ["coalesced"] * 59, (
        "of the hour that nobody planned; the last one may run"
    )


async def test_a_schedule_that_cannot_be_planned_is_missed(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await conn.execute(
        "update mainspring.schedule set timezone = 'Mars/Olympus', kind = 'cron', expression = '* * * * *'"
    )
    looks = Looks(conn)
    await plan(conn, planner, NOON + 3 * MINUTE)
    await looks.look(NOON + 3 * MINUTE + SECOND)
    assert looks.told == [("schedule:s", "0:01:00", "", "undecided")]


async def test_explain_agrees_with_what_is_told(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await plan(conn, planner, NOON + 3 * MINUTE + 30 * SECOND)
    looks = Looks(conn)
    await looks.look(NOON + 6 * MINUTE)
    said = {
        "coalesced": "skipped (coalesced)",
        "waiting": "waits for an agent since",
        "undecided": "overdue by",
    }
    assert [told[3] for told in looks.told] == ["coalesced", "coalesced", "waiting", "undecided"]
    for minute, (_, _, _, why) in enumerate(looks.told, 1):
        [story] = await explain.explain(conn, await schedules.find(conn, "s"), NOON + minute * MINUTE)
        assert story.expected
        assert said[why] in " | ".join([*story.said, *(fact for fire in story.fires for fact in fire.said)])


async def test_a_search_that_finds_too_much_stops_and_goes_on_from_there(
    conn: Connection, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.watch.missed_starts.MOST_FIRES", 4)
    monkeypatch.setattr("mainspring.store.watch.missed_starts.AT_ONCE", 2)
    await make(conn, every="10s")
    await plan(conn, planner, NOON + 3 * MINUTE + 3 * SECOND)
    looks = Looks(conn)
    for second in range(40):
        await looks.look(NOON + 3 * MINUTE + 50 * SECOND + second * SECOND)
    assert len(looks.told) == len(set(looks.told)) == 20


# ── the ledger against the expressions ──────────────────────────────────────────────────────────


async def test_a_plan_time_that_was_passed_over_is_found_and_told_once(
    conn: Connection, database: Database, planner: Planner
) -> None:
    await make(conn)
    await make(conn, "whole")
    audit, looks = LedgerAudit(database), Looks(conn)
    for minute in range(1, 7):
        await plan(conn, planner, NOON + minute * MINUTE - 5 * SECOND)
        await start(conn)
        await audit.step()
        await audit.step()
    assert not await conn.fetchval("select count(*) from mainspring.ledger_hole")
    await conn.execute("delete from mainspring.fire where plan_time = $1 and schedule_id = 1", NOON + 5 * MINUTE)
    for _ in range(6):
        await audit.step()
    assert audit.found == 1
    await looks.look(NOON + 6 * MINUTE)
    await looks.look(NOON + 7 * MINUTE)
    assert looks.told == [("schedule:s", "0:05:00", "", "passed_over")]


async def test_the_audit_goes_through_all_schedules_and_begins_again(
    conn: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.watch.ledger_audit.SCHEDULES", 2)
    for number in range(5):
        await make(conn, f"s{number}")
    audit, seen = LedgerAudit(database), []
    for _ in range(8):
        await audit.step()
        seen.append(await conn.fetchval("select last_id from mainspring.ledger_audit"))
    assert seen == [2, 4, 5, 0, 2, 4, 5, 0]


# ── the burn rate as a rule ─────────────────────────────────────────────────────────────────────


async def test_an_error_budget_that_burns_is_found_and_ends(
    conn: Connection, database: Database, planner: Planner
) -> None:
    await make(conn, slo={"lateness": "2s", "target": 0.99})
    await make(conn, "other", slo={"lateness": "2s"})
    counter = SloCounter(database)
    await set_clock(conn, NOON + 10 * MINUTE + 10 * SECOND)
    while await counter.step():
        pass
    look = Look(["s"], SloBurn(), NOON, NOON + 10 * MINUTE + 10 * SECOND)
    [finding] = (await kinds.slo_burn(conn, look)).findings
    assert (finding.subject, finding.job, finding.since) == ("schedule:s", "job", NOON + MINUTE)
    assert "10 of 10 plan times of the last 1 h were late by more than 2 s, or missed (10)" in finding.message
    assert finding.details["long_rate"] == 100.0
    assert not (await kinds.slo_burn(conn, look._replace(parameters=SloBurn(fast=101.0, slow=101.0)))).findings
    later = look._replace(until=NOON + HOUR)
    assert not (await kinds.slo_burn(conn, later)).findings, "the short windows have no bad events"
    assert {one.subject for one in (await kinds.slo_burn(conn, look._replace(names=None))).findings} == {
        "schedule:s",
        "schedule:other",
    }
