"""Lead: slow and busy agents are armed earlier, within bounds."""

from __future__ import annotations

from mainspring.model.placement.lead import Lead


def test_an_idle_agent_nearby_has_the_default() -> None:
    assert Lead().of(0.0, 0.0) == 5.0


def test_slow_and_busy_agents_have_more_within_bounds() -> None:
    lead = Lead(5.0, 1.0, 8.0, latency_factor=4.0, load_factor=1.0)
    assert lead.of(0.25, 0.0) == 6.0
    assert lead.of(0.0, 0.5) == 5.5
    assert lead.of(10.0, 1.0) == 8.0
    assert Lead(0.1, 1.0).of(0.0, 0.0) == 1.0
