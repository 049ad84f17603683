"""Connect: a new connection to the one host of a DSN that accepts writes and is on the newest timeline.

Several hosts are tried in turn, the last good one first. A silent host gets a head start, then the next one is tried
beside it: a machine that died without closing its connections must not use up the time of the others.

A pooler such as PgBouncer invents the backend's process id, which gives it away. Clients use a pooler without prepared
statements, because it may send them to another backend; the engine refuses to run behind one.

Reads  pg_control_system and the timeline, which store/postgres/connecting/timelines.py may refuse
Next:  store/postgres/connecting/client_connections.py
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, NamedTuple

import asyncpg

from mainspring.errors import AccessDenied, MainspringError, StoreUnavailable, ValidationError
from mainspring.store.postgres.connecting.client_connections import connection_class
from mainspring.store.postgres.connecting.connect_errors import check_files, connecting, needs_direct
from mainspring.store.postgres.connecting.timelines import Timelines
from mainspring.store.postgres.connection import SEARCH_PATH, Connection
from mainspring.store.postgres.dsn import Host, check, hosts_of, without_hosts
from mainspring.store.postgres.errors import UNAVAILABLE

OLDEST_SERVER = 14
CONNECT_TIMEOUT = 10.0
HEAD_START = 0.5  # seconds before the next host is tried beside a silent one

# A dead peer is noticed within 10 s. PostgreSQL gets the same by its settings: see database.py.
_SOCKET_OPTIONS = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 8_000}


def _may_read(table: str) -> str:
    return f"""
        select pg_catalog.has_table_privilege(t.oid, 'select')
          from pg_catalog.pg_class t join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) t.relnamespace
         where n.nspname operator(pg_catalog.=) 'mainspring'::pg_catalog.name
           and t.relname operator(pg_catalog.=) '{table}'::pg_catalog.name
    """


# One statement, and a standby answers it too. Every name in it is qualified: the path is not set yet. It sets the path
# only on the backend that this client was told of: behind a pooler, another client would inherit it. A role that may
# read its own tasks and not those of others is a producer.
_IDENTITY = f"""
    select pg_catalog.current_setting('transaction_read_only') as read_only, pg_catalog.pg_backend_pid() as backend,
           {{timeline}},
           ({_may_read("own_task")}) and not ({_may_read("task")}) as is_producer,
           case when $2 and pg_catalog.pg_backend_pid() operator(pg_catalog.=) $1
                then pg_catalog.set_config('search_path', '{SEARCH_PATH}', false) end
"""
_WITH_TIMELINE = _IDENTITY.format(
    timeline="""
           (select c.system_identifier::pg_catalog.text from pg_catalog.pg_control_system() c) as system,
           case when not pg_catalog.pg_is_in_recovery()
                then pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) end as timeline
    """
)
_WITHOUT_TIMELINE = _IDENTITY.format(timeline="null as system, null as timeline")


class _Arguments(NamedTuple):
    settings: dict[str, str]
    session: dict[str, str]
    command_timeout: float | None
    direct: bool
    pinned: bool


class PrimaryConnector:
    """`behind_pooler`: a pooler has answered; from then on no statement is prepared for later.

    `is_producer`: the role of the DSN reads only its own tasks; its connections read them from views.
    """

    def __init__(self, dsn: str, timelines: Timelines) -> None:
        self._dsn = dsn
        self._timelines = timelines
        self._hosts = hosts_of(dsn)
        self.behind_pooler = False
        self.is_producer = False

    def for_thread(self) -> PrimaryConnector:
        """For another event loop, with the same knowledge of timelines."""
        return PrimaryConnector(self._dsn, self._timelines)

    async def connect(
        self,
        settings: dict[str, str],
        session: dict[str, str],
        command_timeout: float | None,
        *,
        direct: bool,
        pinned: bool = True,
    ) -> Connection:
        """StoreUnavailable names the fault of each host; ValidationError if a pooler answers and `direct` is asked.

        `settings` are startup parameters. `session` is set once it is known that no pooler stands in between.
        """
        check(self._dsn)
        check_files(self._dsn)
        arguments = _Arguments(settings, session, command_timeout, direct, pinned)
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
                    tried = attempts.pop(attempt)
                    try:
                        conn = attempt.result()
                    except MainspringError as error:
                        faults[tried] = error
                    else:
                        self._hosts.sort(key=lambda other: other != tried)  # stable: the others keep their order
                        return conn
            raise _no_host_usable(faults)
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_discard)

    async def _try(self, host: Host | None, arguments: _Arguments) -> Connection:
        """A connection to this host; None: the driver takes the host from the DSN and the environment."""
        where = _shown(host)
        with connecting(where, direct=arguments.direct):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    known = self.behind_pooler, self.is_producer
                    conn = await self._open(host, where, arguments)
                    if known != (self.behind_pooler, self.is_producer):  # it needs another kind of connection
                        conn.terminate()
                        conn = await self._open(host, where, arguments)
                    return conn
            except TimeoutError:
                raise StoreUnavailable(
                    f"PostgreSQL at {where} does not answer (silent for {CONNECT_TIMEOUT:g} s)"
                ) from None

    async def _open(self, host: Host | None, where: str, arguments: _Arguments) -> Connection:
        place = {} if host is None else {"host": host.name, "port": host.port}
        unprepared = {"statement_cache_size": 0} if self.behind_pooler else {}
        pooled, producer = (self.behind_pooler, self.is_producer) if arguments.pinned else (False, False)
        conn: Connection = await asyncpg.connect(
            self._dsn if host is None else without_hosts(self._dsn),
            **place,
            **unprepared,
            connection_class=connection_class(pooled=pooled, producer=producer, timed=arguments.pinned),
            target_session_attrs="any" if self._hosts else "read-write",  # else _inspect checks it
            timeout=None,
            command_timeout=arguments.command_timeout,
            server_settings=arguments.settings,
        )
        try:
            _enable_keepalive(conn)
            await self._inspect(conn, where, arguments)
            if arguments.session and not self.behind_pooler:
                await _set(conn, arguments.session)
        except BaseException:
            conn.terminate()
            raise
        return conn

    async def _inspect(self, conn: Connection, where: str, arguments: _Arguments) -> None:
        """Learn in one query what answers; StoreUnavailable if it cannot be used."""
        version = conn.get_server_version().major
        if version < OLDEST_SERVER:
            raise StoreUnavailable(f"PostgreSQL {version} is too old; Mainspring needs {OLDEST_SERVER} or newer")
        try:
            found = await _fetch(conn, _WITH_TIMELINE, conn.get_server_pid(), arguments.pinned)
        except asyncpg.PostgresError as error:
            if isinstance(error, UNAVAILABLE):
                raise
            # A managed service may deny these functions; then it fences its old primaries as well.
            found = await _fetch(conn, _WITHOUT_TIMELINE, conn.get_server_pid(), arguments.pinned)
        if found["backend"] != conn.get_server_pid():
            if arguments.direct:
                raise needs_direct(where)
            self.behind_pooler = True
        self.is_producer = bool(found["is_producer"])
        if found["read_only"] == "on":
            raise StoreUnavailable(
                f"PostgreSQL at {where} is read-only: a standby, or told to be; name its primary in the DSN as well"
            )
        if found["timeline"] and found["system"]:
            self._timelines.admit(conn, where, found["system"], int(found["timeline"], 16))


async def _set(conn: Connection, session: dict[str, str]) -> None:
    """In one round trip. It overrides what was set for the role and the database."""
    known = {
        name: value
        for name, value in session.items()
        if name != "transaction_timeout" or conn.get_server_version().major >= 17
    }
    await conn.execute("; ".join(f"set {name} = '{value}'" for name, value in known.items()))


async def _fetch(conn: Connection, query: str, *args: Any) -> Any:
    """One row, by an unnamed statement: behind a pooler another client may have taken the name."""
    return await (await conn.prepare(query, name="")).fetchrow(*args)


def _shown(host: Host | None) -> str:
    """The host for people, with the port that the driver uses if none is given."""
    if host is None:
        return os.environ.get("PGHOST") or "localhost"
    default = os.environ.get("PGPORT", "5432")
    return str(host if host.port or not default.isdecimal() else host._replace(port=int(default)))


def _no_host_usable(faults: dict[Host, MainspringError]) -> MainspringError:
    for error in faults.values():
        if isinstance(error, ValidationError):
            return error  # the DSN itself is wrong
    if all(isinstance(error, AccessDenied) for error in faults.values()):
        return next(iter(faults.values()))
    reasons = ", ".join(f"{_shown(host)} {_reason(host, error)}" for host, error in faults.items())
    return StoreUnavailable(
        f"none of PostgreSQL's hosts will do: {reasons}; one of them must be a primary that answers"
    )


def _reason(host: Host, error: MainspringError) -> str:
    """Without the subject and the advice: all hosts share them."""
    return error.message.removeprefix("PostgreSQL ").removeprefix(f"at {_shown(host)} ").partition(";")[0]


def _discard(attempt: asyncio.Task[Connection]) -> None:
    """Close what a cancelled attempt opened; it may have succeeded in the same moment."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


def _enable_keepalive(conn: Connection) -> None:
    """Let the kernel probe the other machine. Unix sockets need no probe."""
    transport = getattr(conn, "_transport", None)
    peer: Any = None if transport is None else transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # without these options the timeouts of statements notice it
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SOCKET_OPTIONS.items():
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
