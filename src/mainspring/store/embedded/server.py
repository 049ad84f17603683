"""Embedded: a real PostgreSQL server from a wheel, shared by the processes of one machine.

The first process starts it, the last one stops it. Each holds locks that the kernel releases when the holder dies,
so a kill -9 of any process, at any time, leaves nothing that blocks the next start:

    start.lock     exclusive: one process at a time starts or stops the server
    users.lock     shared: held by every user of the server
    server.lock    exclusive: inherited by the server and its children, held while any of them lives

Runs   PostgreSQL, through store/embedded/data_directory.py
Next:  store/postgres/migrate.py
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mainspring.errors import EmbeddedUnavailable
from mainspring.store.embedded.account import Account, account_for, find_wheel
from mainspring.store.embedded.data_directory import DataDirectory, Postmaster

with suppress(ImportError):  # as in store/embedded/account.py
    import fcntl

_START_SECONDS = 300.0  # a recovery reads up to max_wal_size of log
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.005

log = logging.getLogger(__name__)


class Embedded:
    """A use of the embedded server, from `start` to `stop`. Blocking: call it with asyncio.to_thread."""

    def __init__(self, dsn: str, files: DataDirectory, users_lock: int) -> None:
        self.dsn = dsn
        self.directory = files.directory
        self._files = files
        self._users_lock: int | None = users_lock

    @classmethod
    def start(cls, directory: Path | None = None) -> Embedded:
        """Start the server of this directory, or attach to it if it runs."""
        wheel = find_wheel()
        directory = (directory or default_directory()).resolve()  # one name for one server
        try:
            _own(directory)
            return cls._start(directory, wheel)
        except OSError as error:
            raise EmbeddedUnavailable(f"no PostgreSQL can run in {directory}: {error}") from error

    @classmethod
    def _start(cls, directory: Path, wheel: Path) -> Embedded:
        with _starting(directory):
            account = account_for(directory / "data")
            _check_reachable(directory, account)
            files = DataDirectory(directory, account)
            users_lock = _lock(directory / "users.lock", shared=True)
            if users_lock is None:
                raise EmbeddedUnavailable(f"{directory}/users.lock is held by a foreign process: end it")
            try:
                postmaster = _find_or_launch(files, wheel)
            except BaseException:
                os.close(users_lock)
                raise
        return cls(postmaster.dsn, files, users_lock)

    def revive(self) -> None:
        """Restart the server if it has died."""
        try:
            with _starting(self.directory):
                _find_or_launch(self._files, find_wheel())
        except OSError as error:  # such as a full disk
            raise EmbeddedUnavailable(f"PostgreSQL cannot be restarted in {self.directory}: {error}") from error

    def stop(self) -> None:
        """Release the server; its last user stops it. A second call changes nothing."""
        users_lock, self._users_lock = self._users_lock, None
        if users_lock is None:
            return
        os.close(users_lock)
        with _starting(self.directory), _locked(self.directory / "users.lock") as alone:
            if alone is not None:
                _shut_down(self._files)


def default_directory() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/mainspring")
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data_home if data_home.is_absolute() else Path.home() / ".local/share") / "mainspring"


def _find_or_launch(files: DataDirectory, wheel: Path) -> Postmaster:
    """The server, once it answers. Called under start.lock."""
    began, launched = time.monotonic(), False
    for _ in _polls(_START_SECONDS):
        if postmaster := files.answering():
            log.info(
                "PostgreSQL %s in %.2f s, in %s",
                "started" if launched else "attached",
                time.monotonic() - began,
                files.directory,
            )
            return postmaster
        with _locked(files.directory / "server.lock") as server_lock:
            if server_lock is None:
                continue  # it starts, recovers or stops: it will answer, or release the lock
            if launched:
                raise files.failure("PostgreSQL does not start")
            files.launch(wheel, server_lock)
            launched = True
    raise files.failure(f"PostgreSQL did not answer within {_START_SECONDS:.0f} s")


def _shut_down(files: DataDirectory) -> None:
    postmaster = files.answering()
    if postmaster is None:
        return  # it crashed; the next start recovers
    files.stop(postmaster)
    for _ in _polls(_STOP_SECONDS):
        with _locked(files.directory / "server.lock") as server_lock:
            if server_lock is not None:
                files.clean_up(postmaster)
                return
    log.warning("PostgreSQL in %s still shuts down after %.0f s", files.directory, _STOP_SECONDS)


def _own(directory: Path) -> None:
    """Make the directory if it is missing; refuse one that another user can write to."""
    # The account that runs PostgreSQL enters root's directory, and cannot change anything in it.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    with suppress(FileExistsError):
        directory.mkdir(mode, parents=True)
        directory.chmod(mode)  # whatever the umask is
    found = directory.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o002:
        raise EmbeddedUnavailable(
            f"{directory} belongs to another user or is writable by everybody: choose one of your own"
        )


def _check_reachable(directory: Path, account: Account) -> None:
    if not account.switch or account.can_enter(directory):
        return
    closed = next(step for step in (*reversed(directory.parents), directory) if not account.can_enter(step))
    raise EmbeddedUnavailable(
        f"PostgreSQL runs as {account.name}, which cannot enter {closed}: "
        f"choose another directory than {directory}, or allow it with chmod o+x {closed}"
    )


@contextmanager
def _starting(directory: Path) -> Iterator[None]:
    for _ in _polls(_START_SECONDS + _STOP_SECONDS):
        with _locked(directory / "start.lock") as descriptor:
            if descriptor is not None:
                yield
                return
    raise EmbeddedUnavailable(f"another process keeps {directory}/start.lock: end it and try again")


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """An exclusive lock for the block, by its descriptor; None if it is taken."""
    descriptor = _lock(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(path: Path, *, shared: bool = False) -> int | None:
    """A descriptor that holds the lock, or None if it is taken. Closing its last copy releases it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _polls(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_SECONDS)
