"""A process on the same machine that died is seen at once; one that cannot be seen is never called dead."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from mainspring.server.cluster import dead_processes as dead_processes_module
from mainspring.server.cluster.dead_processes import DeadProcessesLoop, is_dead_process, process_identity
from mainspring.store.cluster import agents, leases
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import rescue

pytestmark = pytest.mark.usefixtures("no_servers")

_SERVER = """
    insert into mainspring.server (id, name, version, status, process, lease_until)
    values ($1, 'server', '1', 'active', $2, mainspring.now() + interval '1 hour')
"""

here = pytest.mark.skipif(process_identity() is None, reason="this system does not show its processes")


@here
def test_a_process_that_lives_is_not_dead() -> None:
    own = process_identity()
    assert own is not None
    assert not is_dead_process(own)


@here
async def test_a_process_that_died_is_seen_before_its_lease_is_over(conn: Connection, database: Database) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(child.pid)
    assert identity is not None
    session = await agents.begin(conn, agents.AgentInfo("agent", 10, {}, identity), 3600.0)
    other = await agents.begin(conn, agents.AgentInfo("other", 10, {}, process_identity()), 3600.0)
    for number, process in ((1, identity), (2, process_identity())):
        await conn.execute(_SERVER, uuid.UUID(int=number), process)
    dead_processes_loop = DeadProcessesLoop(database)
    assert not is_dead_process(identity)
    assert await dead_processes_loop.step() == 0
    child.kill()
    child.wait()
    if child.stdin is not None:
        child.stdin.close()
    assert is_dead_process(identity)
    assert await dead_processes_loop.step() == 2
    assert await rescue.gone(conn) == [session], f"and session {other} lives"
    over = await conn.fetch("select id from mainspring.server where lease_until <= mainspring.now()")
    assert [row["id"].int for row in over] == [1]
    assert await dead_processes_loop.step() == 0, "told once"


@here
async def test_a_server_that_has_started_again_in_the_meantime_keeps_its_lease(conn: Connection) -> None:
    await conn.execute(_SERVER, uuid.UUID(int=1), "its new life")
    assert await leases.end(conn, ["the life before"]) == ([], [])
    assert await conn.fetchval("select lease_until > mainspring.now() from mainspring.server")


@here
def test_another_process_with_the_same_number_is_another() -> None:
    own = process_identity()
    assert own is not None
    boot, namespace, pid, started = own.split()
    assert is_dead_process(f"{boot} {namespace} {pid} {int(started) - 1}")


@here
@pytest.mark.parametrize("place", [0, 1], ids=["another boot", "another namespace"])
def test_a_process_that_cannot_be_seen_from_here_is_never_called_dead(place: int) -> None:
    own = process_identity()
    assert own is not None
    parts = own.split()
    parts[2] = str(2**22 + 1)  # nobody
    assert is_dead_process(" ".join(parts))
    parts[place] = "elsewhere"
    assert not is_dead_process(" ".join(parts))


@here
def test_a_process_of_another_user_that_the_system_hides_is_not_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid, or ProtectProc of systemd, /proc shows as little of it as of one that is gone."""
    identity = process_identity(os.getppid())
    assert identity is not None
    shown = dead_processes_module._status
    monkeypatch.setattr(dead_processes_module, "_status", lambda pid: shown(pid) if pid == os.getpid() else None)
    assert not is_dead_process(identity)
    boot, namespace, _, started = identity.split()
    assert is_dead_process(f"{boot} {namespace} {2**22 + 1} {started}"), "nobody is there"


@here
def test_a_name_with_blanks_and_brackets_does_not_confuse() -> None:
    name = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 (x', 0, 0, 0); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    identity = process_identity(child.pid)
    assert identity is not None
    assert len(identity.split()) == 4
    assert identity.split()[3].isdigit()
    assert not is_dead_process(identity)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
