"""Prove that the torture run notices broken code: each mutation is caught, and the code as it is passes the same plan.

Next: tests/torture/run.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.torture.invariants import check_all
from tests.torture.mutations import MUTATIONS, Mutation
from tests.torture.plan import Fault
from tests.torture.report import tell
from tests.torture.run import SOURCE, Trial, torture

SEED = 1

Conditions = tuple[tuple[Fault, ...], Mapping[str, int], Mapping[float, int]]  # plan of faults, jobs, seconds at work


def apply(mutation: Mutation, directory: Path) -> Path:
    """A copy of the source with these edits; returns where it is."""
    source = directory / "src"
    shutil.copytree(SOURCE / "mainspring", source / "mainspring", ignore=shutil.ignore_patterns("__pycache__"))
    for edit in mutation.edits:
        path = source / "mainspring" / edit.file
        text = path.read_text()
        assert text.count(edit.old) == 1, (
            f"mutation {mutation.name!r}: {edit.file} has this {text.count(edit.old)} times, not once; "
            f"the code has moved on, and the mutation must follow:\n{edit.old}"
        )
        path.write_text(text.replace(edit.old, edit.new))
    return source


async def prove(only: str = "") -> int:
    """Each mutation is caught, and what catches it is quiet about the code as it is."""
    wrong = 0
    passed: list[Conditions] = []  # that the code as it is survives
    for mutation in MUTATIONS:
        if only and only != mutation.name:
            continue
        conditions = (mutation.plan, mutation.jobs, mutation.waits)
        if conditions not in passed:
            found = await _broken(mutation, SOURCE)
            if found:
                print(f"WRONG   {mutation.name}: its plan breaks {sorted(found)} without the mutation", flush=True)
                wrong += 1
                continue
            passed.append(conditions)
        with tempfile.TemporaryDirectory(prefix="mainspring-mutation-") as directory:
            found = await _broken(mutation, apply(mutation, Path(directory)), quiet=True)
        caught = found & mutation.caught_by
        print(
            f"{'caught' if caught else 'MISSED':7} {mutation.name}: {', '.join(sorted(found)) or 'nothing'}", flush=True
        )
        wrong += not caught
    return 1 if wrong else 0


async def _broken(mutation: Mutation, source: Path, *, quiet: bool = False) -> set[str]:
    evidence = await torture(
        Trial(
            SEED,
            mutation.seconds,
            mutation.plan,
            mutation.sizes,
            source,
            mutation.jobs,
            mutation.holds,
            mutation.alerts,
            mutation.crowd,
            mutation.waits,
        )
    )
    violations = check_all(evidence)
    if violations and not quiet:
        print(*tell(evidence, violations), sep="\n", file=sys.stderr)
    return {violation.invariant for violation in violations}
