"""Real PostgreSQL servers of a test's own, on loopback: primaries and standbys that are promoted, stopped, killed.

    with Primary(directory / "a") as primary, standby_of(primary, directory / "b") as standby:
        dsn = dsn_of(primary, standby)      # a list of hosts, as an operator would write it
        primary.kill()
        standby.promote()

All calls block until they are done; beside a running engine use asyncio.to_thread. `directory` must be one that the
account of the embedded server can enter, such as the fixture `server_directory`. fsync is off: processes die in
tests, machines do not.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg

from mainspring.store.embedded.account import account_for, find_wheel, programs_for

DATABASE = USER = "mainspring"
PATIENCE = 30.0  # seconds for a start, a stop or a promotion
_WHEEL_PROGRAMS = find_wheel() / "pginstall18" / "bin"

_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 32MB
fsync = off
jit = off
log_line_prefix = '%m [%p] '
wal_receiver_status_interval = 1s
wal_retrieve_retry_interval = 100ms
"""


class PostgreSQL:
    """A server in `directory`, on `port` of loopback, which stays the same over restarts."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "postgres.log"
        self.port = port or free_port()
        if not directory.exists():
            directory.mkdir(parents=True)
            directory.chmod(0o711)
        self._account = account_for(self.data)
        self._programs = programs_for(self._account, find_wheel(), directory)
        self._pid: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def dsn(self) -> str:
        return dsn_of(self)

    @property
    def pid(self) -> int:
        assert self._pid is not None, "the server is not running"
        return self._pid

    def start(self) -> Self:
        """Start it, as whatever its files say it is, and wait until it answers."""
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # of a life that a kill ended
        self._run("pg_ctl", "start", "--no-wait", "--silent", f"--log={self.log}", "-o", f"-p {self.port}")
        deadline = time.monotonic() + PATIENCE
        while self._status() not in ("ready", "standby"):
            assert time.monotonic() < deadline, self._log_text()
            time.sleep(0.005)
        self._pid = int((self.data / "postmaster.pid").read_text().split()[0])
        return self

    def stop(self) -> None:
        """A clean stop: open transactions are rolled back."""
        self._run("pg_ctl", "stop", "--mode=fast", "--silent", f"--timeout={PATIENCE:.0f}")
        self._pid = None

    def kill(self) -> None:
        """kill -9 of the server and all its processes, as if its machine had died. Again: changes nothing."""
        self.freeze()  # so that the list does not grow while it is made
        processes, self._pid = self._processes(), None
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + PATIENCE
        while any(map(_lives, processes)):
            assert time.monotonic() < deadline, f"{processes} do not die"
            time.sleep(0.002)

    def freeze(self) -> None:
        """It hangs: connections stay, the kernel goes on to accept new ones, nobody answers and nobody resets."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGSTOP)  # first, so that it starts no more of them
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def promote(self) -> None:
        """A standby becomes a primary, on the next timeline."""
        self._run("pg_ctl", "promote", "--silent", f"--timeout={PATIENCE:.0f}")

    def ask(self, statement: str, *parameters: object) -> Any:
        """The first value of the first row, from a connection of its own; None where there is no row."""
        with psycopg.connect(self.dsn, autocommit=True, connect_timeout=5) as conn:
            cursor = conn.execute(statement.encode(), parameters or None)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def wait_for_standby(self) -> None:
        """From now on a commit waits for a standby: what is acknowledged survives a failover."""
        self.ask("alter system set synchronous_standby_names = '*'")
        self.ask("select pg_reload_conf()")
        deadline = time.monotonic() + PATIENCE
        while not self.ask("select count(*) from pg_stat_replication where sync_state = 'sync'"):
            assert time.monotonic() < deadline, self._log_text()
            time.sleep(0.01)

    def wait_for_nobody(self) -> None:
        """Commits wait for no standby any more: for a primary whose standby is gone."""
        self.ask("alter system reset synchronous_standby_names")
        self.ask("select pg_reload_conf()")

    def _processes(self) -> list[psutil.Process]:
        if self._pid is None:
            return []
        with suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(self._pid)
            return [postmaster, *postmaster.children(recursive=True)]
        return []

    def _status(self) -> str:
        with suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[7].strip() if len(lines) > 7 else ""
        return ""

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else f"{self.log} is missing"

    def _run(self, program: str, *arguments: str) -> None:
        status = self._account.run(
            [self._programs / program, *arguments], environment={"PGDATA": str(self.data), "TZ": "UTC"}
        )
        assert status == 0, f"{program} {arguments} gave {status}\n{self._log_text()}"

    def _give(self) -> None:
        """What root made belongs to the server's account."""
        self.log.touch()
        if self._account.switch:
            for path in (self.log, self.data, *self.data.rglob("*")):
                os.chown(path, self._account.uid, self._account.gid, follow_symlinks=False)


class Primary(PostgreSQL):
    """A new server with an empty database, started."""

    def __init__(self, directory: Path, port: int | None = None, *, settings: str = "") -> None:
        super().__init__(directory, port)
        self.data.mkdir(mode=0o700)
        self._give()
        self._run("initdb", f"--username={USER}", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS + settings)
        self.start()
        with psycopg.connect(host="127.0.0.1", port=self.port, user=USER, dbname="postgres", autocommit=True) as conn:
            conn.execute(f"create database {DATABASE}".encode())


def standby_of(primary: PostgreSQL, directory: Path, port: int | None = None) -> PostgreSQL:
    """A new standby that follows `primary`, started. A directory that is there is overwritten: it follows anew."""
    shutil.rmtree(directory, ignore_errors=True)
    standby = PostgreSQL(directory, port)
    subprocess.run(
        [
            _WHEEL_PROGRAMS / "pg_basebackup",
            *(f"--dbname={primary.dsn}", f"--pgdata={standby.data}", "--wal-method=stream", "--checkpoint=fast"),
            *("--write-recovery-conf", "--no-sync", "--no-slot"),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    standby._give()
    return standby.start()


def _lives(process: psutil.Process) -> bool:
    """A dead one may wait long for whoever inherited it to take note."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def dsn_of(*servers: PostgreSQL) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{USER}@{hosts}/{DATABASE}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
