"""Data directory: the files of an embedded PostgreSQL, its settings, data, socket and log.

    DIRECTORY/                  owned by this process's user; the account cannot write here
        postgresql.conf, pg_hba.conf, pg_ident.conf     written on every start
        postgres.log
        start.lock, users.lock, server.lock             see store/embedded/server.py
        data/       0700        the account's
        socket/     0700        the account's; elsewhere if the path is too long for a socket

Runs   initdb, postgres, pg_ctl
Next:  store/postgres/migrate.py
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlencode

from mainspring.errors import EmbeddedUnavailable
from mainspring.store.embedded.account import MAJOR, Account, programs_for

with suppress(ImportError):  # as in store/embedded/account.py
    import pwd

DATABASE = ROLE = "mainspring"
_PORT = 5432  # names the socket file, nothing listens on it
_SOCKET_FILE = f".s.PGSQL.{_PORT}"
_SOCKET_PATH_BYTES = 100  # the kernel's limit is 108 on Linux, 104 on macOS
_LOG_BYTES = 10 * 2**20
_LOG_TAIL_LINES = 12

# Durability (fsync, synchronous_commit, full_page_writes) is PostgreSQL's default, on purpose.
_SETTINGS = """\
# Written by Mainspring on every start. To change a setting for good: ALTER SYSTEM.
data_directory = {data}
unix_socket_directories = {socket}
unix_socket_permissions = 0700
listen_addresses = ''
port = {port}
cluster_name = 'mainspring'
max_connections = 300
client_connection_check_interval = 5s  # end the statements of dead clients
shared_buffers = 128MB
max_wal_size = 4GB                    # fewer checkpoints, so fewer full-page images
checkpoint_timeout = 15min
wal_compression = on
wal_init_zero = off                   # new files of the log are not written twice: all commits wait meanwhile
jit = off
autovacuum_naptime = 10s              # queues produce dead rows quickly
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] '
log_checkpoints = off
log_autovacuum_min_duration = -1
"""

_HBA = """\
local all         all peer map=mainspring
local replication all peer map=mainspring
"""


_SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # a server in any state answers it with one byte


@dataclass(frozen=True)
class Postmaster:
    """A server that answers."""

    pid: int
    socket_directory: Path

    @property
    def dsn(self) -> str:
        place = {"host": str(self.socket_directory), "port": _PORT, "user": ROLE}
        return f"postgresql:///{DATABASE}?{urlencode(place, quote_via=quote)}"


class DataDirectory:
    def __init__(self, directory: Path, account: Account) -> None:
        self.directory = directory
        self.account = account
        self.data = directory / "data"
        self.log = directory / "postgres.log"

    def answering(self) -> Postmaster | None:
        """The server if it is up. Its pid file proves nothing: it survives a kill, and pids are reused."""
        try:
            lines = os.fsdecode((self.data / "postmaster.pid").read_bytes()).splitlines()
        except FileNotFoundError:
            return None
        if len(lines) < 8 or lines[7].strip() != "ready":
            return None
        if Path(lines[1]) != self.data:
            return None  # these files are a copy of another server's
        postmaster = Postmaster(int(lines[0]), Path(lines[4]))
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(postmaster.socket_directory / _SOCKET_FILE))
                probe.sendall(_SSL_REQUEST)  # the kernel accepts connections even for a server that is being killed
                return postmaster if probe.recv(1) else None
            except OSError:
                return None

    def launch(self, wheel: Path, server_lock: int) -> None:
        """Start a server, detached. It inherits `server_lock`, which proves that it lives.

        The caller holds that lock, so files of an earlier server are stale.
        """
        self._check_version()
        programs = programs_for(self.account, wheel, self.directory)
        socket_directory = self._make_socket_directory()
        self._write_settings(socket_directory)
        with self._open_log() as output:
            if not self.data.exists():
                self._initialise(programs, output)
            for stale in (self.data / "postmaster.pid", socket_directory / f"{_SOCKET_FILE}.lock"):
                stale.unlink(missing_ok=True)
            # pg_ctl only detaches: its own wait polls ten times a second, ours is faster.
            with _batch_scheduling():
                self.account.run(
                    [programs / "pg_ctl", "start", "--no-wait", "--silent"],
                    environment={"PGDATA": str(self.directory)},
                    output=output,
                    descriptors=[server_lock],
                )

    def stop(self, postmaster: Postmaster) -> None:
        """Ask for a fast shutdown: open transactions are rolled back, the next start needs no recovery."""
        self.account.run(["/bin/sh", "-c", 'kill -INT "$0"', str(postmaster.pid)])

    def clean_up(self, postmaster: Postmaster) -> None:
        """Remove a socket directory outside of this one, once the server has ended."""
        if self.directory not in postmaster.socket_directory.parents:
            with suppress(OSError):
                postmaster.socket_directory.rmdir()

    def failure(self, what: str) -> EmbeddedUnavailable:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return EmbeddedUnavailable("\n".join([f"{what}; the end of {self.log}:", *lines[-_LOG_TAIL_LINES:]]))

    def _check_version(self) -> None:
        try:
            version = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            if self.data.exists():
                raise EmbeddedUnavailable(
                    f"{self.data} exists and holds no PostgreSQL data: remove it or choose another directory"
                ) from None
            return
        if version != str(MAJOR):
            raise EmbeddedUnavailable(
                f"{self.data} was made by PostgreSQL {version}, and the embedded one is {MAJOR}: "
                f"carry it over with pg_dump or pg_upgrade, or choose another directory"
            )

    def _initialise(self, programs: Path, output: IO[bytes]) -> None:
        """Make the data directory under another name first, so that a crash leaves nothing that blocks the next try."""
        for left_over in self.directory.glob("initialising-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix="initialising-", dir=self.directory))
        self._give(draft)
        # The built-in locale sorts and folds case alike on every machine, unlike the system's library.
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        create = f"create database {DATABASE}".encode()
        initdb = [f"--pgdata={draft}", f"--username={ROLE}", "--auth=peer", "--no-instructions", *locale]
        single = ["--single", "-D", str(draft), "-c", "exit_on_error=on", "template1"]
        if (
            self.account.run([programs / "initdb", *initdb], output=output) != 0
            or self.account.run([programs / "postgres", *single], stdin=create, output=output) != 0
        ):
            raise self.failure("PostgreSQL cannot make its data directory")
        draft.rename(self.data)
        sync(self.directory)

    def _write_settings(self, socket_directory: Path) -> None:
        # The socket directories are a list; its items are quoted again inside.
        socket_item = '"{}"'.format(str(socket_directory).replace('"', '""'))
        settings = _SETTINGS.format(data=_quoted(str(self.data)), socket=_quoted(socket_item), port=_PORT)
        # Only the account itself and root may log in as the database's role.
        users = sorted({self.account.name, pwd.getpwuid(0).pw_name})
        ident = "".join(f'mainspring "{user}" {ROLE}\n' for user in users)
        for name, text in (("postgresql.conf", settings), ("pg_hba.conf", _HBA), ("pg_ident.conf", ident)):
            draft = self.directory / f"{name}.new"
            draft.write_text(text)
            draft.chmod(0o644)  # the account reads it
            draft.replace(self.directory / name)

    def _make_socket_directory(self) -> Path:
        place = self.directory / "socket"
        # A comma would separate hosts in a connection string.
        if len(os.fsencode(place / _SOCKET_FILE)) > _SOCKET_PATH_BYTES or "," in str(place):
            digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:16]
            place = Path(tempfile.gettempdir()) / f"mainspring-{digest}"
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        if place.lstat().st_uid == os.geteuid():  # new, or the last start crashed before this line
            self._give(place)
        found = place.lstat()  # in a shared directory another user may have made it first
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077 or found.st_uid != self.account.uid:
            raise EmbeddedUnavailable(
                f"{place} is not a private directory of {self.account.name}: remove it, "
                "or choose another directory with a short path"
            )
        return place

    def _open_log(self) -> IO[bytes]:
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        return open(self.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))

    def _give(self, path: Path) -> None:
        if self.account.switch:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


@contextmanager
def _batch_scheduling() -> Iterator[None]:
    """Linux: what is started in the block does not preempt the processes that wake it (decision 58).

    Else a backend that gets a statement often takes the processor from the event loop that has just sent it, until the
    next tick of the kernel, and what is due meanwhile fires so much late.
    """
    is_changed = _set_scheduling("SCHED_OTHER", "SCHED_BATCH")  # of this thread; children inherit it
    try:
        yield
    finally:
        if is_changed:
            _set_scheduling("SCHED_BATCH", "SCHED_OTHER")


def _set_scheduling(before: str, after: str) -> bool:
    """False if this thread has another class, or the system has none or does not let us choose: it is no condition."""
    with suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == getattr(os, before):
            os.sched_setscheduler(0, getattr(os, after), os.sched_param(0))
            return True
    return False


def sync(directory: Path) -> None:
    """Make renames within the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
