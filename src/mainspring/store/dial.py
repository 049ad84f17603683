"""Dial: a new connection to the one host of a DSN that can be written to and is not of the past.

Several hosts are tried in turn, the one that was good last first. One that is silent gets a head start, then the next
one is tried beside it: a machine that died without a word must not use up the time of the others.

Reads  pg_control_system, the timeline; refuses by store/timelines.py
Next:  store/migrate.py
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import asyncpg

from mainspring.errors import AccessDenied, MainspringError, StoreUnavailable, ValidationError
from mainspring.store.connection import Connection
from mainspring.store.faults import AWAY, connecting
from mainspring.store.hosts import Host, check_session_attributes, hosts_of
from mainspring.store.timelines import Timelines

OLDEST_SERVER = 14
CONNECT_TIMEOUT = 10.0
HEAD_START = 0.5  # seconds that a silent host has before the next one is tried as well

# A peer that is gone without a word is noticed within 10 s. PostgreSQL gets the same from settings: see database.py.
_SOCKET_OPTIONS = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 8_000}

# One statement, and nothing in it that a standby would refuse to answer.
_IDENTITY = """
    select current_setting('transaction_read_only') = 'on' as read_only,
           (select system_identifier::text from pg_control_system()) as system,
           case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end as timeline
"""

_READ_ONLY = """
    select current_setting('transaction_read_only') = 'on' as read_only, null as system, null as timeline
"""


class Dialer:
    def __init__(self, dsn: str, timelines: Timelines) -> None:
        self._dsn = dsn
        self._timelines = timelines
        self._hosts = hosts_of(dsn)

    async def dial(self, settings: dict[str, str], command_timeout: float | None) -> Connection:
        """StoreUnavailable says of each host why it will not do."""
        check_session_attributes(self._dsn)
        if len(self._hosts) < 2:
            return await self._try(None, settings, command_timeout)
        attempts: dict[asyncio.Task[Connection], Host] = {}
        waiting = list(self._hosts)
        faults: dict[Host, MainspringError] = {}
        try:
            while waiting or attempts:
                if waiting:
                    host = waiting.pop(0)
                    attempts[asyncio.create_task(self._try(host, settings, command_timeout))] = host
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

    async def _try(self, host: Host | None, settings: dict[str, str], command_timeout: float | None) -> Connection:
        """A connection to this host; None: wherever the DSN and the environment lead the driver."""
        where = str(host or (self._hosts[0] if self._hosts else "the host of the DSN"))
        place = {} if host is None else {"host": host.name, "port": host.port}
        with connecting:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    conn: Connection = await asyncpg.connect(
                        self._dsn,
                        **place,
                        target_session_attrs="any" if self._hosts else "read-write",  # we see for ourselves
                        timeout=None,
                        command_timeout=command_timeout,
                        server_settings=settings,
                    )
                    try:
                        _watch_peer(conn)
                        await self._look(conn, where)
                    except BaseException:
                        conn.terminate()
                        raise
                    return conn
            except TimeoutError:
                raise StoreUnavailable(
                    f"PostgreSQL at {where} does not answer (silent for {CONNECT_TIMEOUT:g} s)"
                ) from None

    async def _look(self, conn: Connection, where: str) -> None:
        """See who answers, in one question; StoreUnavailable if it will not do."""
        version = conn.get_server_version().major
        if version < OLDEST_SERVER:
            raise StoreUnavailable(f"PostgreSQL {version} is too old; Mainspring needs {OLDEST_SERVER} or newer")
        try:
            found = await conn.fetchrow(_IDENTITY)
        except asyncpg.PostgresError as error:
            if isinstance(error, AWAY):
                raise
            # A managed service may keep these functions to itself: then its failovers are its own business too.
            found = await conn.fetchrow(_READ_ONLY)
        if found["read_only"]:
            raise StoreUnavailable(
                f"PostgreSQL at {where} is read-only: a standby, or told to be; name its primary in the DSN as well"
            )
        if found["timeline"] and found["system"]:
            self._timelines.admit(conn, where, found["system"], int(found["timeline"], 16))

    def _prefer(self, host: Host) -> None:
        self._hosts.sort(key=lambda other: other != host)  # stable


def _none_will_do(faults: dict[Host, MainspringError]) -> MainspringError:
    for error in faults.values():
        if isinstance(error, ValidationError):
            return error  # the DSN itself is wrong
    if all(isinstance(error, AccessDenied) for error in faults.values()):
        return next(iter(faults.values()))
    told = ", ".join(f"{host} {_reason(host, error)}" for host, error in faults.items())
    return StoreUnavailable(f"none of PostgreSQL's hosts will do: {told}; one of them must be a primary that answers")


def _reason(host: Host, error: MainspringError) -> str:
    """Without its subject, and without its advice: there is one for all."""
    return error.message.removeprefix("PostgreSQL ").removeprefix(f"at {host} ").partition(";")[0]


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
