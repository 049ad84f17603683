"""The session and lease protocol holds L3, L4 and L6 in every world it can reach; each broken variant is refuted."""

from __future__ import annotations

import pytest

from mainspring.model.tasks.jobs import Delivery
from tests.protocol.__main__ import told
from tests.protocol.explore import explore
from tests.protocol.variants import VARIANTS, Variant
from tests.protocol.world import Protocol


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_the_protocol_holds_in_every_world(delivery: Delivery) -> None:
    found = told(f"the protocol, {delivery}", explore(Protocol(delivery)))
    assert not found.broken, "\n".join([*found.trace, found.broken])
    assert found.worlds > 10_000, "the agent must get somewhere"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_broken_variant_is_refuted_by_a_trace(variant: Variant) -> None:
    found = told(variant.name, variant.explore())
    assert found.broken.startswith(variant.breaks)
    assert found.trace
