"""Explore the protocol and its broken variants, and print how each of those breaks: python -m tests.protocol"""

from __future__ import annotations

import sys

from tests.protocol.explore import Explored, explore
from tests.protocol.variants import VARIANTS
from tests.protocol.world import Protocol


def main() -> int:
    wrong = 0
    for delivery in ("at_least_once", "at_most_once"):
        wrong += bool(told(f"the protocol, {delivery}", explore(Protocol(delivery))).broken)
    for variant in VARIANTS:
        found = told(f"{variant.name}, {variant.delivery}", variant.explore())
        wrong += not found.broken.startswith(variant.breaks)
    return 1 if wrong else 0


def told(name: str, found: Explored) -> Explored:
    print(f"{name}: {found.worlds} worlds, {'BROKEN' if found.broken else 'all properties hold'}", flush=True)
    for number, step in enumerate(found.trace, 1):
        print(f"  {number:3}  {step}")
    if found.broken:
        print(f"       {found.broken}")
    return found


if __name__ == "__main__":
    sys.exit(main())
