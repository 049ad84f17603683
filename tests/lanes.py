"""Lanes: what `make test-fast` leaves out. A path is a file or a directory below tests/.

A test is in the slow lane by what it needs, not by how long it took once: processes, PostgreSQL servers and networks of
its own, or leases, timeouts and rates that must run out.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent

PROCESSES = (
    "agent/executors/test_command.py",
    "agent/executors/test_command_policy.py",
    "agent/executors/test_prewarm.py",
    "agent/guardian",
    "benchmarks/peers/test_parts.py",
    "cli/schedules/test_story.py",
    "cli/test_main.py",
    "cli/test_terminal.py",
    "compose/test_imports.py",
    "journey",
    "sdk/test_commands.py",
    "sdk/test_pgbouncer.py",
    "sdk/test_testing.py",
    "store/embedded",
    "store/maintenance/test_backup.py",
    "store/postgres/test_connect_errors.py",
    "store/postgres/test_failover.py",
    "store/postgres/test_roles.py",
    "test_namespaces.py",
    "typing",
)
LEASES = (
    "front/test_http.py",
    "sdk/test_cancel.py",
    "sdk/test_daemons.py",
    "sdk/test_outcomes.py",
    "server/agents/test_hostile_agents.py",
    "server/agents/test_network.py",
    "server/agents/test_tokens.py",
    "server/cluster/test_leader.py",
    "server/planning/test_limits.py",
    "server/planning/test_overlap.py",
    "store/postgres/test_outages.py",
    "store/postgres/test_reconnect.py",
    "test_proxy.py",
    "test_watchdog.py",
)


def lanes(path: Path) -> list[str]:
    """The markers of the tests in this file."""
    return [
        name
        for name, places in (("processes", PROCESSES), ("leases", LEASES))
        if any(path.is_relative_to(TESTS / place) for place in places)
    ]


def missing() -> list[str]:
    """Entries that lead nowhere: their tests were moved."""
    return [place for place in (*PROCESSES, *LEASES) if not (TESTS / place).exists()]
