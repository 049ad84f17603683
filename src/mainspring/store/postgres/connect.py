"""Dial: a new connection to the one host of a DSN that can be written to and is not of the past.

Several hosts are tried in turn, the one that was good last first. One that is silent gets a head start, then the next
one is tried beside it: a machine that died without a word must not use up the time of the others.

A pooler between us and PostgreSQL, such as PgBouncer, is told by the number of the backend, which it makes up. Clients
go through it without prepared statements, which it may send to another backend; the engine does not go through it.

Reads  pg_control_system, the timeline; refuses by store/postgres/timelines.py
Next:  store/postgres/migrate.py
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, NamedTuple

import asyncpg

from mainspring.errors import AccessDenied, MainspringError, StoreUnavailable, ValidationError
from mainspring.store.postgres.connect_errors import check_files, connecting, needs_direct
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.dsn import Host, check, hosts_of, without_hosts
from mainspring.store.postgres.errors import AWAY
from mainspring.store.postgres.timelines import Timelines

OLDEST_SERVER = 14
CONNECT_TIMEOUT = 10.0
HEAD_START = 0.5  # seconds that a silent host has before the next one is tried as well

# A peer that is gone without a word is noticed within 10 s. PostgreSQL gets the same from settings: see database.py.
_SOCKET_OPTIONS = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 8_000}

# One statement, and nothing in it that a standby would refuse to answer.
_IDENTITY = """
    select current_setting('transaction_read_only') = 'on' as read_only,
           pg_backend_pid() as backend,
           (select system_identifier::text from pg_control_system()) as system,
           case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end as timeline
"""

_READ_ONLY = """
    select current_setting('transaction_read_only') = 'on' as read_only,
           pg_backend_pid() as backend, null as system, null as timeline
"""


class _Arguments(NamedTuple):
    settings: dict[str, str]
    command_timeout: float | None
    direct: bool


class Dialer:
    """`pooled` says whether a pooler has answered; from then on no statement is prepared for later."""

    def __init__(self, dsn: str, timelines: Timelines) -> None:
        self._dsn = dsn
        self._timelines = timelines
        self._hosts = hosts_of(dsn)
        self.pooled = False

    async def dial(self, settings: dict[str, str], command_timeout: float | None, *, direct: bool) -> Connection:
        """StoreUnavailable says of each host why it will not do; ValidationError if it must be `direct` and is not."""
        check(self._dsn)
        check_files(self._dsn)
        arguments = _Arguments(settings, command_timeout, direct)
        if len(self._hosts) < 2:
            return await self._try(self._hosts[0] if self._hosts else None, arguments)
        attempts: dict[asyncio.Task[Connection], Host] = {}
        waiting = list(self._hosts)
        faults: dict[Host, MainspringError] = {}
        try:
            while waiting or attempts:
                if waiting:
                    host = waiting.pop(0)
                    attempts[asyncio.create_task(self._try(host, arguments))] = host
                done, _ = await asyncio.wait(
                    attempts, timeout=HEAD_START if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in done:
                    host = attempts.pop(attempt)
                    try:
                        conn = attempt.result()
                    except MainspringError as error:
                        faults[host] = error
                    else:
                        self._prefer(host)
                        return conn
            raise _none_will_do(faults)
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_hang_up)

    async def _try(self, host: Host | None, arguments: _Arguments) -> Connection:
        """A connection to this host; None: wherever the DSN and the environment lead the driver."""
        where = _shown(host)
        with connecting(where, direct=arguments.direct):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    knows_pooler = self.pooled
                    conn = await self._connect(host, where, arguments)
                    if self.pooled and not knows_pooler:  # it may have statements prepared that it must not use
                        conn.terminate()
                        conn = await self._connect(host, where, arguments)
                    return conn
            except TimeoutError:
                raise StoreUnavailable(
                    f"PostgreSQL at {where} does not answer (silent for {CONNECT_TIMEOUT:g} s)"
                ) from None

    async def _connect(self, host: Host | None, where: str, arguments: _Arguments) -> Connection:
        place = {} if host is None else {"host": host.name, "port": host.port}
        unprepared = {"statement_cache_size": 0} if self.pooled else {}
        conn: Connection = await asyncpg.connect(
            self._dsn if host is None else without_hosts(self._dsn),
            **place,
            **unprepared,
            target_session_attrs="any" if self._hosts else "read-write",  # we see for ourselves
            timeout=None,
            command_timeout=arguments.command_timeout,
            server_settings=arguments.settings,
        )
        try:
            _watch_peer(conn)
            await self._look(conn, where, direct=arguments.direct)
        except BaseException:
            conn.terminate()
            raise
        return conn

    async def _look(self, conn: Connection, where: str, *, direct: bool) -> None:
        """See who answers, in one question; StoreUnavailable if it will not do."""
        version = conn.get_server_version().major
        if version < OLDEST_SERVER:
            raise StoreUnavailable(f"PostgreSQL {version} is too old; Mainspring needs {OLDEST_SERVER} or newer")
        try:
            found = await _ask(conn, _IDENTITY)
        except asyncpg.PostgresError as error:
            if isinstance(error, AWAY):
                raise
            # A managed service may keep these functions to itself: then its failovers are its own business too.
            found = await _ask(conn, _READ_ONLY)
        if found["backend"] != conn.get_server_pid():
            if direct:
                raise needs_direct(where)
            self.pooled = True
        if found["read_only"]:
            raise StoreUnavailable(
                f"PostgreSQL at {where} is read-only: a standby, or told to be; name its primary in the DSN as well"
            )
        if found["timeline"] and found["system"]:
            self._timelines.admit(conn, where, found["system"], int(found["timeline"], 16))

    def _prefer(self, host: Host) -> None:
        self._hosts.sort(key=lambda other: other != host)  # stable


async def _ask(conn: Connection, query: str) -> Any:
    """One row, by a statement without a name: behind a pooler another client may have taken the name."""
    return await (await conn.prepare(query, name="")).fetchrow()


def _shown(host: Host | None) -> str:
    """The place for people, with the port that the driver takes where none is given."""
    if host is None:
        return os.environ.get("PGHOST") or "localhost"
    default = os.environ.get("PGPORT", "5432")
    return str(host if host.port or not default.isdecimal() else host._replace(port=int(default)))


def _none_will_do(faults: dict[Host, MainspringError]) -> MainspringError:
    for error in faults.values():
        if isinstance(error, ValidationError):
            return error  # the DSN itself is wrong
    if all(isinstance(error, AccessDenied) for error in faults.values()):
        return next(iter(faults.values()))
    told = ", ".join(f"{_shown(host)} {_reason(host, error)}" for host, error in faults.items())
    return StoreUnavailable(f"none of PostgreSQL's hosts will do: {told}; one of them must be a primary that answers")


def _reason(host: Host, error: MainspringError) -> str:
    """Without its subject, and without its advice: there is one for all."""
    return error.message.removeprefix("PostgreSQL ").removeprefix(f"at {_shown(host)} ").partition(";")[0]


def _hang_up(attempt: asyncio.Task[Connection]) -> None:
    """Of an attempt that is not needed any more; it may have succeeded in the same moment."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


def _watch_peer(conn: Connection) -> None:
    """Let the kernel see whether the other machine is still there. Sockets of this machine need no such thing."""
    transport = getattr(conn, "_transport", None)
    peer: Any = None if transport is None else transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # where the system has no such option, the timeouts of statements find out
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SOCKET_OPTIONS.items():
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
