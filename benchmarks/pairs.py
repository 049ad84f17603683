"""Pairs: the same benchmark on another commit and on this one, in turns, compared as ratios.

The machine is noisy and its speed changes from day to day: only runs of the same minutes can be compared. Both commits
are measured by the benchmarks of this one: a new benchmark, flag or figure can be compared with a commit before it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BENCHMARKS = Path(__file__).parent.name


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The commit in a directory of its own, with the benchmarks of this one."""
    with tempfile.TemporaryDirectory(prefix="mainspring-against-") as parent:
        tree = Path(parent) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            shutil.rmtree(tree / BENCHMARKS, ignore_errors=True)
            shutil.copytree(ROOT / BENCHMARKS, tree / BENCHMARKS, ignore=shutil.ignore_patterns("__pycache__"))
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


def _measure(tree: Path, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-m", module, "--json", *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(module: str, arguments: Sequence[str], against: str, pairs: int) -> dict[str, Any]:
    """By figure: the medians of both, the ratio of those, and the ratio in each pair."""
    before: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    with checked_out(against) as tree:
        for number in range(1, pairs + 1):
            turns = [(tree, before), (ROOT, after)]
            for its_tree, results in turns if number % 2 else reversed(turns):  # neither is always the first
                results.append(_measure(its_tree, module, arguments))
            print(
                f"pair {number} of {pairs}: {json.dumps(_ratios(before[-1], after[-1]))}", file=sys.stderr, flush=True
            )
    figures: dict[str, Any] = {}
    for key in _ratios(before[0], after[0]):
        was, now = (statistics.median(result[key] for result in results) for results in (before, after))
        ratios = [_ratios(one, other).get(key) for one, other in zip(before, after, strict=True)]
        figures[key] = {"before": was, "now": now, "ratio": round(now / was, 3) if was else None, "pairs": ratios}
    probes = [result.get("probe") for result in (*before, *after)]
    return {"benchmark": module, "against": against, "figures": figures, "probes": probes}


def _ratios(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float | None]:
    return {
        key: round(after[key] / was, 3) if was else None
        for key, was in before.items()
        if isinstance(was, (int, float)) and isinstance(after.get(key), (int, float)) and key != "runs"
    }
