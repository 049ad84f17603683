"""Lease: when an agent must stop, on its own clock."""

from __future__ import annotations

from mainspring.agent.connection.lease import Lease


def test_what_runs_is_stopped_and_gone_before_the_end() -> None:
    lease = Lease()
    lease.renew(100.0, 15.0)
    assert not lease.is_ending(112.4)
    assert lease.is_ending(112.6)
    assert 112.6 + lease.grace(112.6) < lease.kill_at < 115.0
    assert lease.grace(200.0) == 0.0


def test_answers_out_of_turn_never_shorten_it() -> None:
    lease = Lease()
    lease.renew(100.0, 15.0)
    lease.renew(105.0, 15.0)
    lease.renew(102.0, 13.0)
    assert lease.kill_at > 119.0
    assert lease.length == 15.0


def test_without_a_lease_nothing_ends() -> None:
    lease = Lease()
    assert not lease.is_ending(1e9)
    lease.renew(100.0, 15.0)
    lease.forget()
    assert not lease.is_ending(1e9)
