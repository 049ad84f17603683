"""Waits: each reason why no agent takes a task."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.model.limits.limits import Rate
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.jobs import Placement
from mainspring.model.tasks.waits import Known, Limited, Retried, able_names, until_retry, why, why_limited


def agent(name: str, *, slots: int = 10, due: int = 0, draining: bool = False, **facts: Any) -> Known:
    labels = {key: value for key, value in facts.items() if isinstance(value, str)}
    offers = {key: float(value) for key, value in facts.items() if isinstance(value, (int, float))}
    return Known(1, name, slots, labels, offers, draining, due)


ASKED = Requirements({"gpu": "a100"})
SHOP = Requirements({"app": "shop"})


@pytest.mark.parametrize(
    ("requirements", "agents", "code", "reason"),
    [
        (
            ASKED,
            [],
            "no_agents",
            "no agent is connected; start one with `mainspring up`, `worker` or `agent`, and see that a server runs",
        ),
        (
            ASKED,
            [agent("alpha", gpu="t4"), agent("beta")],
            "no_labels",
            "no agent has gpu=a100; agents there are: alpha (gpu=t4), beta",
        ),
        (
            Requirements({"gpu": "a100", "zone": "b"}),
            [agent("alpha", gpu="a100"), agent("beta", zone="b")],
            "no_labels",
            "no agent has gpu=a100, zone=b together; agents there are: alpha (gpu=a100), beta (zone=b)",
        ),
        (
            SHOP,
            [agent("alpha", app="blog")],
            "no_application",
            "no agent runs the application 'shop'; start `mainspring worker MODULE:APP`, or `mainspring up MODULE:APP`;"
            " agents there are: alpha (app=blog)",
        ),
        (
            Requirements({"app": "shop", "zone": "b"}),
            [agent("alpha", app="shop", zone="a"), agent("beta", zone="b")],
            "no_labels",
            "no agent of the application 'shop' has zone=b; agents there are: alpha (app=shop, zone=a)",
        ),
        (
            Requirements({}, Placement(needs={"gpu": 4.0})),
            [agent("alpha", gpu=2), agent("beta")],
            "no_amounts",
            "no agent offers gpu=4; the most that one offers is gpu=2",
        ),
        (
            Requirements({}, Placement(needs={"gpu": 1.0, "memory_gb": 64.0})),
            [agent("alpha", gpu=2), agent("beta", memory_gb=64)],
            "no_amounts",
            "no agent offers gpu=1, memory_gb=64 together; agents there are: alpha (gpu=2), beta (memory_gb=64)",
        ),
        (
            ASKED,
            [agent("alpha", gpu="a100", draining=True), agent("beta")],
            "all_draining",
            "every agent that could run it is draining: alpha; "
            "`mainspring agents undrain alpha` lets it take tasks again",
        ),
        (
            ASKED,
            [agent("alpha", gpu="a100", slots=2, due=2), agent("beta")],
            "all_busy",
            "every agent that could run it is busy: alpha (2 of 2 slots)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_the_reason_is_named(requirements: Requirements, agents: list[Known], code: str, reason: str) -> None:
    wait = why(requirements, agents)
    assert wait is not None
    assert (wait.code, wait.reason) == (code, reason)
    assert wait.is_unrunnable is (code != "all_busy")


def test_one_agent_that_can_is_enough() -> None:
    can = agent("alpha", gpu="a100", due=9)
    assert why(ASKED, [agent("beta"), can, agent("gamma", gpu="a100", draining=True)]) is None
    assert able_names(ASKED, [agent("beta"), can, can]) == ["alpha"]


def test_amounts_that_others_use_make_an_agent_busy() -> None:
    asked = Requirements({}, Placement(needs={"gpu": 1.0}))
    using = Known(1, "alpha", 10, {}, {"gpu": 2.0}, used={"gpu": 1.5}, due=2)
    wait = why(asked, [using])
    assert wait is not None
    assert wait.code == "all_busy"
    assert why(asked, [Known(1, "alpha", 10, {}, {"gpu": 2.0}, used={"gpu": 1.0}, due=1)]) is None


def test_a_long_list_of_agents_is_cut_short() -> None:
    wait = why(ASKED, [agent(f"a{number}") for number in range(8)])
    assert wait is not None
    assert wait.reason.endswith("agents there are: a0, a1, a2, a3, a4 and 3 more")


@pytest.mark.parametrize(
    ("limited", "code", "reason"),
    [
        (
            Limited(key="shop:7", key_limit=1, holders=[41]),
            "concurrency_key",
            "concurrency key 'shop:7': task 41 has it",
        ),
        (Limited(key="k", key_limit=2, holders=[1, 2]), "concurrency_key", "concurrency key 'k': tasks 1, 2 have it"),
        (Limited(max_running=5, running=5), "max_running", "max_running: 5 of 5 run"),
        (Limited(rate=Rate(100, 60.0), next_in=0.6), "rate", "rate 100/minute: next in 0.6 s"),
    ],
)
def test_a_task_at_a_gate_says_which_limit_it_waits_for(limited: Limited, code: str, reason: str) -> None:
    wait = why_limited(limited)
    assert wait is not None
    assert (wait.code, wait.reason, wait.is_unrunnable) == (code, reason, False)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Retried(8.0, 1, 2, error="exit code 3"), "retry in 8.0 s, attempt 2 of 3, after: exit code 3"),
        (Retried(600.0, 3, 2), "retry in 10 min, attempt 4"),  # its agents crashed, which a schedule outlives
        (Retried(9000.0, 0, 3, error="snoozed"), "retry in 2.5 h, attempt 1 of 4, after: snoozed"),
        (Retried(1.5, 7, 3, daemon=True, error="exit code 1\nmore"), "starts again in 1.5 s, after: exit code 1"),
        (Retried(1.0, 1, 1, error="x" * 100_000), f"retry in 1.0 s, attempt 2 of 2, after: {'x' * 200}"),
    ],
)
def test_a_task_that_failed_says_when_it_runs_again(task: Retried, reason: str) -> None:
    wait = until_retry(task)
    assert (wait.code, wait.reason, wait.is_unrunnable) == ("retry", reason, False)


@pytest.mark.parametrize(
    "limited",
    [
        Limited(),
        Limited(key="k", key_limit=2, holders=[1]),
        Limited(key="k", key_limit=None, holders=[1]),
        Limited(max_running=5, running=4),
        Limited(rate=Rate(1, 1.0), next_in=-0.1),
    ],
)
def test_a_task_that_is_about_to_pass_waits_for_nothing(limited: Limited) -> None:
    assert why_limited(limited) is None
