"""Torture from the command line: a seed decides what goes wrong, and replays it.

    python -m tests.torture --seed 7 --seconds 180
    python -m tests.torture --check DIR          check again what an earlier run with --keep left behind
    python -m tests.torture --mutations          see that broken code is caught
Next: tests/torture/run.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from tests.torture.evidence import Evidence, load
from tests.torture.invariants import check_all
from tests.torture.plan import GROUPS, Sizes, make_plan
from tests.torture.report import summary, tell
from tests.torture.run import Trial, torture


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    if options.mutations:
        from tests.torture.prove import prove

        return asyncio.run(prove(options.only))
    if options.check:
        return _judge(load(options.check / "evidence.json"), options, again="")
    sizes = Sizes(options.servers, options.agents, options.workers)
    groups = options.faults.split(",")
    plan = make_plan(options.seed, options.seconds, sizes, groups)
    if not options.json:
        print(f"seed {options.seed}, {options.seconds:g} s, {len(plan)} faults", *plan, sep="\n  ", flush=True)
    trial = Trial(options.seed, options.seconds, plan, sizes)
    evidence = asyncio.run(torture(trial, options.keep))
    again = (
        f"python -m tests.torture --seed {options.seed} --seconds {options.seconds:g} --servers {options.servers} "
        f"--agents {options.agents} --workers {options.workers} --faults {options.faults}"
    )
    return _judge(evidence, options, again)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.torture", description="Kill, stop, cut off; then compare.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="of load and faults; it settles after that")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--faults", default=",".join(GROUPS), help="of these")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep evidence, ledger and logs in this directory")
    parser.add_argument("--json", action="store_true", help="the result for programs, on stdout")
    parser.add_argument("--check", type=Path, metavar="DIR", help="check the evidence of an earlier run again")
    parser.add_argument("--mutations", action="store_true", help="prove that broken code is caught")
    parser.add_argument("--only", default="", metavar="NAME", help="one mutation")
    return parser.parse_args(arguments)


def _judge(evidence: Evidence, options: argparse.Namespace, again: str) -> int:
    violations = check_all(evidence)
    told = summary(evidence, violations)
    if options.json:
        print(json.dumps({**told, "replay": again}))
        return 1 if violations else 0
    print(*tell(evidence, violations), sep="\n")
    print(" ".join(f"{name}={value}" for name, value in told.items() if name != "violations"))
    if violations:
        broken = ", ".join(sorted({violation.invariant for violation in violations}))
        print(f"FAILED with seed {evidence.seed}: {broken}. Replay:\n  {again}")
        return 1
    print(f"passed with seed {evidence.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
