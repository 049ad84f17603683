"""What becomes of each plan time: on time, late, paused, after an edit. Times are seconds from START."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.model.schedules.planning import (
    AHEAD,
    GRACE,
    LOOK_BEFORE,
    TICK,
    Decided,
    Decision,
    Reason,
    Version,
    decide,
    expected,
    look_early,
    run_at,
)
from mainspring.model.schedules.schedules import CatchUp, Kind, Policies, Schedule
from mainspring.model.schedules.timing import timing

START = datetime(2026, 11, 15, tzinfo=UTC)
MINUTE, HOUR, DAY = 60, 3600, 86400


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def seconds(instant: datetime | None) -> float | None:
    return None if instant is None else (instant - START).total_seconds()


def version(
    kind: Kind, expression: str, *, since: float = -1, until: float | None = None, enabled: bool = True, **policies: Any
) -> Version:
    its = Policies(**policies)
    told = timing(Schedule("report", "job", kind, expression, "UTC", its))
    return Version(told, its, enabled, at(since), None if until is None else at(until))


def every(period: int, **options: Any) -> Version:
    return version("every", str(period), **options)


def outcome(decision: Decision) -> dict[float, Reason | None]:
    """Plan times in seconds, each with the reason why it gets no task."""
    found = {(one.plan_time - START).total_seconds(): one.reason for one in decision.plan_times}
    assert len(found) == len(decision.plan_times)
    return found


# ── on time ─────────────────────────────────────────────────────────────────────────────────────


def test_plan_times_within_the_window_get_tasks_and_the_cursor_stands_behind_them() -> None:
    decision = decide([every(4)], at(0), at(0))
    assert outcome(decision) == {0: None, 4: None, 8: None}
    assert decision.cursor == at(12)
    assert decision.look_at == at(12) - LOOK_BEFORE
    assert all(one.due == one.plan_time for one in decision.plan_times)


def test_the_window_ends_with_an_instant_that_counts() -> None:
    assert outcome(decide([every(10)], at(10), at(0))) == {10: None}
    assert outcome(decide([every(10)], at(10), at(-0.000001))) == {}


def test_nothing_due_moves_nothing_and_says_when_to_look() -> None:
    decision = decide([every(HOUR)], at(HOUR), at(5))
    assert decision == Decision([], at(HOUR), at(HOUR) - LOOK_BEFORE)


def test_who_looks_when_told_finds_the_plan_time_before_its_instant() -> None:
    look_at = decide([every(HOUR)], at(HOUR), at(5)).look_at
    assert look_at is not None
    assert outcome(decide([every(HOUR)], at(HOUR), look_at)) == {HOUR: None}
    assert LOOK_BEFORE < AHEAD, "or a planner would look in vain, and look again at once"


@pytest.mark.parametrize("lead", [0.0, 5.0, 9.0, 25.0, 3600.0])
def test_who_looks_early_finds_the_plan_time_a_lead_before_its_instant(lead: float) -> None:
    early = look_early(lead)
    look_at = decide([every(2 * HOUR)], at(2 * HOUR), at(5), early=early).look_at
    assert look_at is not None
    assert at(2 * HOUR) - (look_at - early) >= timedelta(seconds=lead), "a planner looks that much earlier"
    assert outcome(decide([every(2 * HOUR)], at(2 * HOUR), look_at - early, early=early)) == {2 * HOUR: None}
    planned = decide([every(1)], at(0), at(0), limit=5000, early=early)
    assert planned.look_at is not None
    assert planned.look_at - early > at(0), "or it would look in vain, and look again at once"


def test_who_looks_early_makes_late_tasks_no_faster() -> None:
    early = look_early(25.0)
    decision = decide([every(60, catch_up="all", max_per_tick=2)], at(0), at(HOUR), early=early)
    assert len(decision.plan_times) == 2
    assert decision.look_at == at(HOUR) + TICK + early


def test_a_schedule_without_further_plan_times_has_no_cursor() -> None:
    once = version("once", at(5).isoformat())
    assert decide([once], at(5), at(0)) == Decision([Decided(at(5), at(5), None)], None, None)
    assert decide([once], at(6), at(0)) == Decision([], None, None)
    assert decide([version("daemon", "2")], at(0), at(0)) == Decision([], None, None)


def test_plan_times_end_with_the_end_of_the_schedule() -> None:
    decision = decide([every(4, end=at(5))], at(0), at(0))
    assert outcome(decision) == {0: None, 4: None}
    assert (decision.cursor, decision.look_at) == (None, None)


@pytest.mark.parametrize("cursor", [0.5, 1.0, 3.999999, 4.0])
def test_a_cursor_that_is_no_plan_time_starts_with_the_next(cursor: float) -> None:
    assert outcome(decide([every(4)], at(cursor), at(0))) == {4: None, 8: None}


def test_at_most_so_many_are_decided_in_one_step_and_the_next_goes_on_at_once() -> None:
    decision = decide([every(1)], at(0), at(0), limit=4)
    assert outcome(decision) == {0: None, 1: None, 2: None, 3: None}
    assert (decision.cursor, decision.look_at) == (at(4), at(0))


def test_nothing_before_the_schedule_was_made_is_told() -> None:
    """`since` is when this version began to count."""
    assert outcome(decide([every(4, since=5, catch_up="all")], at(-1000), at(10))) == {
        8: None,
        12: None,
        16: None,
        20: None,
    }


# ── late ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("catch_up", ["skip", "latest", "all"])
def test_a_hiccup_within_the_grace_runs_all_it_missed(catch_up: CatchUp) -> None:
    now = at(0) + GRACE
    assert outcome(decide([every(1, catch_up=catch_up, max_per_tick=1)], at(0), now)) == dict.fromkeys(range(16))


LATE: list[tuple[str, dict[str, Any], dict[float, Reason | None]]] = [
    ("skip", {}, {0: "misfire", 60: "misfire", 120: "misfire", 180: "misfire"}),
    ("latest", {}, {0: "coalesced", 60: "coalesced", 120: "coalesced", 180: None}),
    ("all", {}, {0: None, 60: None, 120: None, 180: None}),
    ("all", {"window": 105.0}, {0: "misfire", 60: "misfire", 120: None, 180: None}),
    ("all", {"window": 104.9}, {0: "misfire", 60: "misfire", 120: "misfire", 180: None}),
    ("all", {"window": 170.0}, {0: "misfire", 60: None, 120: None, 180: None}),
    ("all", {"window": 1.0}, {0: "misfire", 60: "misfire", 120: "misfire", 180: None}),
    ("all", {"window": 0.0}, {0: "misfire", 60: "misfire", 120: "misfire", 180: None}),
    ("skip", {"misfire_after": 105.0}, {0: "misfire", 60: "misfire", 120: None, 180: None}),
    ("latest", {"misfire_after": 105.0}, {0: "misfire", 60: "misfire", 120: "coalesced", 180: None}),
    ("latest", {"misfire_after": 5.0}, {0: "misfire", 60: "misfire", 120: "misfire", 180: "misfire"}),
    ("all", {"misfire_after": 105.0}, {0: "misfire", 60: "misfire", 120: None, 180: None}),
    ("all", {"misfire_after": 5.0}, {0: "misfire", 60: "misfire", 120: "misfire", 180: "misfire"}),
    ("skip", {"delay": 60.0}, {0: "misfire", 60: "misfire", 120: "misfire"}),
    ("latest", {"delay": 60.0}, {0: "coalesced", 60: "coalesced", 120: None}),
    ("all", {"delay": 60.0, "window": 110.0}, {0: "misfire", 60: None, 120: None}),
    ("all", {"max_runs": 2}, {0: None, 60: None}),
    ("latest", {"max_runs": 1}, {0: "coalesced", 60: "coalesced", 120: "coalesced", 180: None}),
    ("all", {"max_per_tick": 3}, {0: None, 60: None, 120: None}),
    ("all", {"max_per_tick": 2, "window": 170.0}, {0: "misfire", 60: None, 120: None}),
    ("skip", {"max_per_tick": 1}, {0: "misfire", 60: "misfire", 120: "misfire", 180: "misfire"}),
]


@pytest.mark.parametrize(("catch_up", "options", "expected"), LATE, ids=[f"{c} {o}" for c, o, _ in LATE])
def test_after_an_outage_catch_up_decides(
    catch_up: CatchUp, options: dict[str, Any], expected: dict[float, Reason | None]
) -> None:
    """Every minute; nobody looked from 0 to 3:45."""
    assert outcome(decide([every(MINUTE, catch_up=catch_up, **options)], at(0), at(225))) == expected


@pytest.mark.parametrize("catch_up", ["skip", "latest", "all"])
def test_what_is_still_to_come_runs_whatever_was_missed(catch_up: CatchUp) -> None:
    found = outcome(decide([every(MINUTE, catch_up=catch_up)], at(0), at(235)))
    assert found[240] is None
    assert (found[180] is None) == (catch_up != "skip"), "one that has passed, and the last that has"


def test_late_tasks_come_so_many_a_tick() -> None:
    versions = [every(MINUTE, catch_up="all", max_per_tick=2)]
    now, cursor, ticks = at(HOUR + 30), at(0), []
    while cursor <= now:
        decision = decide(versions, cursor, now)
        ticks.append(list(outcome(decision)))
        assert decision.cursor is not None
        assert decision.look_at is not None
        if decision.cursor <= now:
            assert decision.look_at == now + TICK
        cursor, now = decision.cursor, max(now, decision.look_at)
    assert [len(tick) for tick in ticks[:30]] == [2] * 30
    made = [second for tick in ticks for second in tick]
    assert made == list(range(0, len(made) * MINUTE, MINUTE))
    assert made[-1] >= HOUR


def test_skips_do_not_count_against_the_tick() -> None:
    found = outcome(decide([every(1, catch_up="all", window=10.0, max_per_tick=4)], at(0), at(100)))
    assert sum(reason is None for reason in found.values()) == 4
    assert len(found) == 94


def test_plan_times_to_come_do_not_count_against_the_tick() -> None:
    found = outcome(decide([every(2, catch_up="all", window=4.0, max_per_tick=3)], at(0), at(100)))
    assert [second for second, reason in found.items() if reason is None] == [96, 98, 100, 102, 104, 106, 108, 110]
    found = outcome(decide([every(2, catch_up="latest", max_per_tick=1)], at(0), at(100)))
    assert [second for second, reason in found.items() if reason is None] == [100, 102, 104, 106, 108, 110]


def test_a_monthly_schedule_finds_its_last_plan_time_after_an_outage_longer_than_the_window() -> None:
    for catch_up in ("latest", "all"):
        monthly = version("cron", "0 9 1 * *", catch_up=catch_up, window=float(DAY))
        now = datetime(2027, 2, 20, tzinfo=UTC)
        decision = decide([monthly], datetime(2026, 12, 1, 9, tzinfo=UTC), now)
        assert [(one.plan_time.month, one.reason is None) for one in decision.plan_times] == [
            (12, False),
            (1, False),
            (2, True),
        ]
        assert decision.cursor == datetime(2027, 3, 1, 9, tzinfo=UTC)


def test_an_outage_longer_than_one_step_ends_with_the_last_plan_time() -> None:
    versions = [every(1, catch_up="latest")]
    cursor = at(0)
    found: dict[float, Reason | None] = {}
    for _ in range(30):
        decision = decide(versions, cursor, at(1000), limit=100)
        found |= outcome(decision)
        assert decision.cursor is not None
        cursor = decision.cursor
    assert [second for second, reason in found.items() if reason is None] == list(range(1000, 1011))
    assert list(found) == list(range(1011))


# ── runs ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("runs", "expected"), [(0, [0, 1, 2]), (1, [0, 1]), (2, [0]), (3, []), (4, [])])
def test_a_schedule_ends_with_its_last_run(runs: int, expected: list[float]) -> None:
    decision = decide([every(1, max_runs=3)], at(0), at(0), runs=runs)
    assert list(outcome(decision)) == expected
    assert (decision.cursor is None) == (not expected), "it ends when all of them are written"
    assert decide([every(1, max_runs=3)], at(3), at(0), runs=3) == Decision([], None, None)


def test_runs_to_come_are_not_counted_before_they_are_planned() -> None:
    decision = decide([every(HOUR, max_runs=1)], at(0), at(0))
    assert (list(outcome(decision)), decision.cursor) == ([0], at(HOUR)), "told as ended when it is looked at next"
    assert decide([every(HOUR, max_runs=1)], at(HOUR), at(HOUR), runs=1) == Decision([], None, None)


def test_only_plan_times_with_a_task_count_as_runs() -> None:
    found = outcome(decide([every(1, catch_up="all", window=3.0, max_runs=2)], at(0), at(20)))
    assert [second for second, reason in found.items() if reason is None] == [17, 18]
    assert list(found) == list(range(19))


# ── delay ───────────────────────────────────────────────────────────────────────────────────────


def test_a_delayed_plan_time_is_planned_and_due_so_long_after_its_time() -> None:
    versions = [every(HOUR, delay=90.0)]
    early = decide(versions, at(0), at(5))
    assert early == Decision([], at(0), at(90) - LOOK_BEFORE)
    decision = decide(versions, at(0), at(85))
    assert [one[:3] for one in decision.plan_times] == [(at(0), at(90), None)]
    assert decision.look_at == at(HOUR + 90) - LOOK_BEFORE


def test_a_delayed_plan_time_is_late_only_after_its_delay() -> None:
    assert outcome(decide([every(HOUR, delay=90.0, catch_up="skip")], at(0), at(95))) == {0: None}
    assert outcome(decide([every(HOUR, delay=90.0, catch_up="skip")], at(0), at(96))) == {0: "misfire"}


# ── versions ────────────────────────────────────────────────────────────────────────────────────


def test_plan_times_before_an_edit_follow_the_old_version_and_later_ones_the_new() -> None:
    versions = [every(10, until=35), every(20, since=35)]
    assert [seconds(found) for found, _ in zip(_times(versions, 0), range(6), strict=False)] == [0, 10, 20, 30, 40, 60]
    found = outcome(decide([versions[0], every(20, since=35, catch_up="all")], at(0), at(100)))
    assert list(found) == [0, 10, 20, 30, 40, 60, 80, 100]


def _times(versions: Sequence[Version], cursor: float) -> list[datetime]:
    found = []
    for plan_time, _ in expected(versions, at(cursor)):
        found.append(plan_time)
        if len(found) > 20:
            break
    return found


def test_the_instant_of_an_edit_belongs_to_the_old_version() -> None:
    found = outcome(decide([every(10, until=20), version("every", "3", since=20)], at(0), at(16)))
    assert list(found) == [0, 10, 20, 21, 24]


def test_each_plan_time_is_caught_up_by_the_policy_of_its_version() -> None:
    versions = [every(10, until=35, catch_up="skip"), every(10, since=35, catch_up="all", window=50.0)]
    assert outcome(decide(versions, at(10), at(105))) == {
        **dict.fromkeys([10, 20, 30, 40, 50], "misfire"),
        **dict.fromkeys([60, 70, 80, 90, 100, 110]),
    }


def test_the_last_plan_time_is_the_last_of_all_versions() -> None:
    versions = [every(10, until=35, catch_up="latest"), every(10, since=35, catch_up="latest")]
    found = outcome(decide(versions, at(10), at(59)))
    assert [second for second, reason in found.items() if reason is None] == [50, 60]


def test_plan_times_of_a_pause_are_kept_as_paused() -> None:
    versions = [
        every(10, until=15, catch_up="all"),
        every(10, since=15, until=45, enabled=False, catch_up="all"),
        every(10, since=45, catch_up="all"),
    ]
    assert outcome(decide(versions, at(10), at(52))) == {
        10: None, 20: "paused", 30: "paused", 40: "paused", 50: None, 60: None,
    }  # fmt: skip


def test_a_long_pause_is_no_outage() -> None:
    """What comes on time after it runs, whatever the catch-up."""
    versions = [every(10, until=45, enabled=False), every(10, since=45, catch_up="skip")]
    assert outcome(decide(versions, at(0), at(53)))[50] is None
    assert outcome(decide(versions, at(0), at(56)))[50] == "misfire"


def test_a_pause_within_which_nothing_comes_leaves_nothing() -> None:
    versions = [every(HOUR, until=45, enabled=False, since=5), every(HOUR, since=45)]
    assert decide(versions, at(6), at(50)) == Decision([], at(HOUR), at(HOUR) - LOOK_BEFORE)


def test_a_delay_that_was_edited_away_holds_up_no_later_plan_time() -> None:
    """The plan time of the old version has its task at once, for the time that was promised."""
    versions = [every(MINUTE, until=30, delay=float(HOUR)), every(MINUTE, since=30)]
    decision = decide(versions, at(0), at(55))
    assert [one[:3] for one in decision.plan_times] == [(at(0), at(HOUR), None), (at(60), at(60), None)]
    assert decision.cursor == at(120)


def test_a_delay_that_was_edited_away_hides_no_outage() -> None:
    versions = [every(MINUTE, until=30, delay=float(HOUR)), every(MINUTE, since=30, catch_up="latest")]
    assert outcome(decide(versions, at(0), at(200))) == {0: None, 60: "coalesced", 120: "coalesced", 180: None}


# ── any number of steps, against plain loops over all plan times ────────────────────────────────


class Listed:
    """Plan times that are written down."""

    def __init__(self, times: Sequence[int]) -> None:
        self.times = [at(time) for time in sorted(times)]

    def after(self, instant: datetime, /) -> datetime | None:
        position = bisect_right(self.times, instant)
        return self.times[position] if position < len(self.times) else None


class Story(NamedTuple):
    versions: list[Version]
    looks: list[datetime]  # when somebody looked
    limit: int


@st.composite
def stories(draw: st.DrawFn) -> Story:
    edits = sorted(draw(st.sets(st.integers(1, 200), max_size=3)))
    bounds = [-1, *edits, None]
    versions = []
    for since, until in pairwise(bounds):
        assert since is not None
        policies = Policies(
            catch_up=draw(st.sampled_from(["skip", "latest", "all"])),
            window=float(draw(st.sampled_from([0, 1, 20, 1000]))),
            max_per_tick=draw(st.sampled_from([1, 2, 100])),
            misfire_after=draw(st.sampled_from([None, 1.0, 8.0, 30.0])),
            delay=float(draw(st.sampled_from([0, 0, 0, 7, 40]))),
            max_runs=draw(st.sampled_from([None, None, 1, 5])),
        )
        times = draw(st.lists(st.integers(0, 220), max_size=25, unique=True))
        enabled = until is None or draw(st.booleans())
        end = None if until is None else at(until)
        versions.append(Version(Listed(times), policies, enabled, at(since), end))
    last_edit = edits[-1] if edits else 0
    looks = sorted(draw(st.lists(st.floats(last_edit, 400), min_size=1, max_size=12)))
    return Story(versions, [at(look) for look in looks], draw(st.sampled_from([1, 3, 500])))


def all_times(versions: Sequence[Version]) -> list[tuple[datetime, Version]]:
    return sorted(
        (
            (time, its)
            for its in versions
            if isinstance(its.timing, Listed)
            for time in its.timing.times
            if time > its.since and (its.until is None or time <= its.until)
        ),
        key=lambda pair: pair[0],
    )


def oracle(
    undecided: list[tuple[datetime, Version]], current: Policies, now: datetime, runs: int, limit: int
) -> list[Decided]:
    """What a look at `now` decides, by one rule after another; `current` are the policies in force."""
    dues = [time + timedelta(seconds=its.policies.delay) for time, its in undecided]
    decided: list[Decided] = []
    late = 0
    for position, ((time, its), due) in enumerate(zip(undecided, dues, strict=True)):
        policies = its.policies
        lateness = now - due
        enabled = [
            due
            for (_, other), due in zip(undecided[: position + 1], dues[: position + 1], strict=True)
            if other.enabled
        ]
        outage = any(now - before > GRACE for before in enabled)
        ends_well = not (
            any(now - before > GRACE for before in enabled[: len(enabled) - its.enabled])
            and timedelta(0) <= lateness <= GRACE
        )
        last = position + 1 == len(undecided) or dues[position + 1] > now
        reason: Reason | None = None
        if not its.enabled:
            reason = "paused"
        elif policies.misfire_after is not None and lateness.total_seconds() > policies.misfire_after:
            reason = "misfire"
        elif outage and due <= now:
            if policies.catch_up == "skip" and policies.misfire_after is None:
                reason = "misfire"
            elif policies.catch_up == "latest" and not last:
                reason = "coalesced"
            elif policies.catch_up == "all" and not last and lateness.total_seconds() > policies.window:
                reason = "misfire"
        is_ahead = its.until is None and due > now + AHEAD
        is_over = current.max_runs is not None and runs >= current.max_runs
        late += reason is None and outage and due <= now
        if is_ahead or is_over or (len(decided) >= limit and ends_well) or late > current.max_per_tick:
            break
        runs += reason is None
        decided.append(Decided(time, due, reason, policies))
    return decided


@settings(max_examples=400)
@given(stories())
def test_looks_at_any_instants_decide_each_plan_time_once_and_as_plain_loops_do(story: Story) -> None:
    versions, looks, limit = story
    undecided = all_times(versions)
    told = list(undecided)
    cursor: datetime | None = at(-1)
    runs = 0
    found: list[Decided] = []
    for now in looks:
        if cursor is None:
            break
        decision = decide(
            [v for v in versions if v.until is None or v.until >= cursor], cursor, now, runs=runs, limit=limit
        )
        assert decision.plan_times == oracle(undecided, versions[-1].policies, now, runs, limit)
        found += decision.plan_times
        runs += sum(one.reason is None for one in decision.plan_times)
        undecided = undecided[len(decision.plan_times) :]
        cursor = decision.cursor
        if cursor is not None:
            assert cursor == undecided[0][0]
            assert decision.look_at is not None
        else:
            assert not undecided or (versions[-1].policies.max_runs or 0) <= runs
    decided = [one.plan_time for one in found]
    assert decided == [time for time, _ in told[: len(decided)]], "none twice, none left out, in order"
    for one, (_, its) in zip(found, told, strict=False):
        assert (one.reason == "paused") == (not its.enabled)
        assert its.policies.misfire_after is not None or one.reason != "misfire" or its.policies.catch_up != "latest"
        assert one.reason != "coalesced" or its.policies.catch_up == "latest"


@settings(max_examples=100)
@given(
    times=st.lists(st.integers(0, 300), max_size=40, unique=True),
    steps=st.lists(st.floats(0, GRACE.total_seconds()), min_size=100, max_size=100),
    catch_up=st.sampled_from(["skip", "latest", "all"]),
    delay=st.sampled_from([0.0, 20.0]),
)
def test_who_looks_all_the_time_skips_nothing(
    times: list[int], steps: list[float], catch_up: CatchUp, delay: float
) -> None:
    versions = [Version(Listed(times), Policies(catch_up=catch_up, delay=delay, max_per_tick=1), True, at(-1))]
    cursor: datetime | None = at(-1)
    found: list[Decided] = []
    now = at(0)
    for step in steps:
        if cursor is not None:
            decision = decide(versions, cursor, now)
            found += decision.plan_times
            cursor = decision.cursor
        now += timedelta(seconds=step)
    told = [at(time) for time in sorted(times)]
    assert [one.plan_time for one in found] == told[: len(found)]
    assert cursor is None or cursor + timedelta(seconds=delay) > now - timedelta(seconds=steps[-1])
    assert {one.reason for one in found} <= {None}


# ── jitter ──────────────────────────────────────────────────────────────────────────────────────


def test_jitter_is_the_same_for_a_plan_time_whoever_computes_it() -> None:
    decided = Decided(at(0), at(30), None)
    times = {run_at("report", decided, scope, 60.0) for scope in map(str, range(200))}
    assert len(times) == 200, "each scope has its own"
    assert all(at(30) <= time < at(90) for time in times)
    assert max(times) - min(times) > timedelta(seconds=40), "spread over all of it"
    # Another server, another version of Python: this very number.
    assert run_at("report", decided, "eu", 60.0) == run_at("report", Decided(at(0), at(30), None), "eu", 60.0)
    assert run_at("report", decided, "eu", 60.0).isoformat() == "2026-11-15T00:01:16.785468+00:00"


def test_without_jitter_a_task_runs_when_it_is_due() -> None:
    assert run_at("report", Decided(at(0), at(30), None), "eu", 0.0) == at(30)
