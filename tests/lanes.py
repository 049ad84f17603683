"""Lanes: what `make test-fast` leaves out, and what a run begins with. A path is a file or a directory below tests/.

A test is in the slow lane by what it needs, not by how long it took once: processes, PostgreSQL servers and networks of
its own, or leases, timeouts and rates that must run out, or seconds of computing, as it tries thousands of cases.
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
    "console",
    "journey",
    "sdk/test_commands.py",
    "sdk/test_pgbouncer.py",
    "sdk/test_testing.py",
    "store/embedded",
    "store/flows/test_kills.py",
    "store/maintenance/test_backup.py",
    "store/postgres/connecting/test_connect_errors.py",
    "store/postgres/connecting/test_failover.py",
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
    "server/agents/test_idle_agents.py",
    "server/agents/test_network.py",
    "server/agents/test_tokens.py",
    "server/cluster/test_leader.py",
    "server/planning/test_limits.py",
    "server/planning/test_overlap.py",
    "store/postgres/test_outages.py",
    "store/postgres/connecting/test_reconnect.py",
    "test_proxy.py",
    "test_watchdog.py",
)

MANY_CASES = (
    "api/test_fuzz.py",
    "model/scaling/test_simulation.py",
    "model/schedules/test_cron_oracle.py",
    "operations/planning/test_forecast_sums.py",
    "protocol",
    "sdk/test_wrong_types.py",
    "store/batches/test_interleaving.py",
)


# The longest, in the order in which a run begins them, after the console. A run is over when its last file is, and a
# file is run by one process: what takes a minute must not begin at the end. Then come journeys, then what waits, then
# what only computes.
FIRST = (
    "journey/test_network_faults.py",
    "journey/test_debian_postgres.py",
    "journey/test_blocked_loop.py",
    "journey/test_network_hosts.py",
    "journey/test_first_hour.py",
    "journey/test_quickstart.py",
    "journey/test_cluster.py",
    "journey/test_cli_up.py",
    "journey/test_faults.py",
    "sdk/test_outcomes.py",
    "server/agents/test_network.py",
    "store/maintenance/test_backup.py",
    "store/postgres/test_outages.py",
    "api/test_events.py",
    "protocol/test_protocol.py",
    "api/test_fuzz.py",
    "typing/test_types.py",
)


# Two processes of a run have the console to themselves: each starts one server for it. They begin with it, as browsers
# compute while the journeys of the other processes wait.
CONSOLE = TESTS / "console"
CONSOLES = 2


def unit(nodeid: str) -> str:
    """What one process runs from its beginning to its end: a file, or a share of the console's files."""
    path = TESTS.parent / nodeid.partition("::")[0]
    if not path.is_relative_to(CONSOLE):
        return nodeid.partition("::")[0]
    return f"console {sorted(CONSOLE.glob('test_*.py')).index(path) % CONSOLES}"


def turn(path: Path) -> int:
    """When this file begins, among all."""
    if path.is_relative_to(CONSOLE):
        return -1
    for number, place in enumerate(FIRST):
        if path == TESTS / place:
            return number
    if path.is_relative_to(TESTS / "journey"):
        return len(FIRST)
    return len(FIRST) + (1 if lanes(path) else 2)


def lanes(path: Path) -> list[str]:
    """The markers of the tests in this file."""
    return [
        name
        for name, places in (("processes", PROCESSES), ("leases", LEASES), ("many_cases", MANY_CASES))
        if any(path.is_relative_to(TESTS / place) for place in places)
    ]


def missing() -> list[str]:
    """Entries that lead nowhere: their tests were moved."""
    return [place for place in (*PROCESSES, *LEASES, *MANY_CASES, *FIRST) if not (TESTS / place).exists()]
