"""All benchmarks, one after another: `make bench`."""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "throughput",
    "enqueue",
    "pickup",
    "lateness",
    "steps",
    "gateway",
    "cluster",
    "fleet",
    "herd",
    "broadcast",
    "backlog",
    "pinned",
    "limits",
    "flows",
    "planner",
    "wheel",
    "figures",
    "retention",
    "api",
    "holds",
    "manifests",
    "footprint",
    "warm",
)

for name in NAMES:
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json"], check=True)
subprocess.run([sys.executable, "-m", "benchmarks.throughput", "--json", "--processes", "2"], check=True)
