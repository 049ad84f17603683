"""Connections that cannot be made: what is said, by a real PostgreSQL with TLS and rules of its own."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import psycopg
import pytest
from tests.conftest import Eventually
from tests.debian import debians_postgresql, needs_debians
from tests.postgres import Primary, free_port

from mainspring.errors import AccessDenied, MainspringError, StoreUnavailable, ValidationError
from mainspring.store.postgres import roles
from mainspring.store.postgres.connecting.connect_errors import not_connected
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.migrate import migrate, plan

_RULES = """
local   all all                     trust
host    all anybody   127.0.0.1/32  trust
hostssl all tls_only  127.0.0.1/32  trust
host    all secretive 127.0.0.1/32  scram-sha-256
"""
_ROLES = """
    create role anybody login; create role tls_only login; create role secretive login password 'x';
    revoke connect on database closed from public;
"""


def _certificate(directory: Path, name: str) -> tuple[Path, Path]:
    cert, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName=DNS:{name}", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """db.crt is PostgreSQL's, for the host db.example; other.crt has nothing to do with it."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl; scripts/debian-network installs it")
    directory = tmp_path_factory.mktemp("certificates")
    _certificate(directory, "db.example")
    _certificate(directory, "other")
    (directory / "no.crt").write_text("no certificate")
    return directory


@pytest.fixture(scope="module")
def guarded(certificates: Path) -> Iterator[str]:
    """host:port of a PostgreSQL that speaks TLS and has rules about who comes in how."""
    port = free_port()
    files = {
        "pg_hba.conf": _RULES,
        "server.crt": (certificates / "db.example.crt").read_text(),
        "server.key": (certificates / "db.example.key").read_text(),
    }
    settings = ("ssl=on", "listen_addresses=127.0.0.1", "max_connections=12")
    with debians_postgresql(files, settings, port) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("create database closed")
            conn.execute(_ROLES.encode())
        yield f"127.0.0.1:{port}"


CASES: list[tuple[str, type[MainspringError], str]] = [
    (
        "tls_only@{at}/postgres?sslmode=disable",
        AccessDenied,
        r"PostgreSQL at {at} .* without TLS \(no pg_hba.conf entry.*; add sslmode=require to the DSN, or add a line",
    ),
    ("stranger@{at}/postgres?sslmode=require", AccessDenied, r"SSL encryption\); add a line to its pg_hba.conf$"),
    ("secretive@{at}/postgres", AccessDenied, "password authentication failed .*; check user and password of the DSN"),
    ("anybody@{at}/closed", AccessDenied, 'permission denied for database "closed".*; .*GRANT CONNECT ON DATABASE'),
    ("anybody@{at}/nowhere", StoreUnavailable, 'database "nowhere" does not exist; create it'),
    (
        "anybody@{at}/postgres?sslmode=verify-full",
        ValidationError,
        r"dsn: .*need the certificate of the authority .*root.crt.*; add sslrootcert=FILE to the DSN$",
    ),
    (
        "anybody@{at}/postgres?sslmode=verify-full&sslrootcert=/no/such.crt",
        StoreUnavailable,
        r"dsn: sslrootcert: /no/such.crt cannot be read \(No such file or directory\); correct the DSN$",
    ),
    (
        "anybody@{at}/postgres?sslmode=verify-full&sslrootcert=system",
        StoreUnavailable,
        "sslrootcert: system cannot be read .*ca-certificates.crt$",
    ),
    (
        "anybody@{at}/postgres?sslmode=verify-full&sslrootcert={certificates}/no.crt",
        StoreUnavailable,
        r"PostgreSQL at {at}: TLS fails \(NO_CERTIFICATE_OR_CRL_FOUND\); check sslmode and the files in the DSN",
    ),
    (
        "anybody@{at}/postgres?sslmode=verify-full&sslrootcert={certificates}/other.crt",
        StoreUnavailable,
        r"PostgreSQL at {at} has a certificate that is not trusted \(self.signed certificate\); .*sslrootcert=FILE$",
    ),
    (
        "anybody@{at}/postgres?sslmode=verify-full&sslrootcert={certificates}/db.example.crt",
        StoreUnavailable,
        r"has a certificate for another name \(IP address mismatch, .* '127.0.0.1'\); use the name .*verify-ca$",
    ),
]


def _hung_up(guarded: str) -> Callable[[], Awaitable[bool]]:
    port = int(guarded.partition(":")[2])

    async def no_connection() -> bool:
        return not any(one.raddr and one.raddr.port == port for one in psutil.Process().net_connections("tcp"))

    return no_connection


@needs_debians
@pytest.mark.parametrize(("dsn", "kind", "said"), CASES)
async def test_what_postgresql_refuses_is_told_with_the_way_out(
    guarded: str,
    certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    eventually: Eventually,
    dsn: str,
    kind: type[MainspringError],
    said: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no ~/.postgresql
    with pytest.raises(kind, match=said.replace("{at}", re.escape(guarded))) as told:
        await Database(f"postgresql://{dsn.format(at=guarded, certificates=certificates)}").open()
    assert type(told.value) is kind
    assert "\n" not in told.value.message
    await eventually(_hung_up(guarded))  # TLS ends in steps, and the loop of the test must not end before it


@needs_debians
@pytest.mark.parametrize("mode", ["require", "verify-ca"])
async def test_what_is_asked_for_right_is_let_in(guarded: str, certificates: Path, mode: str) -> None:
    database = Database(
        f"postgresql://tls_only@{guarded}/postgres?sslmode={mode}&sslrootcert={certificates}/db.example.crt"
    )
    await database.open()
    await database.close()


@needs_debians
async def test_a_postgresql_that_is_full_is_told_as_such(guarded: str) -> None:
    dsn = f"postgresql://anybody@{guarded}/postgres?sslmode=disable"
    async with AsyncExitStack() as held:
        with pytest.raises(asyncpg.TooManyConnectionsError):
            while True:
                conn = await asyncpg.connect(dsn)
                held.push_async_callback(conn.close)
        with pytest.raises(StoreUnavailable, match=r"has no connection left \(.*\); raise max_connections"):
            await Database(dsn).open()


async def test_a_postgresql_without_tls_is_told_as_such(server_directory: Path) -> None:
    with (
        Primary(server_directory / "a") as primary,
        pytest.raises(StoreUnavailable, match=f"at 127.0.0.1:{primary.port} speaks no TLS, and the DSN wants it"),
    ):
        await Database(f"{primary.dsn}?sslmode=require").open()


async def test_an_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = r"^PostgreSQL at nowhere\.invalid:5432 cannot be found \(Name or service not known\); correct the host"
    with pytest.raises(StoreUnavailable, match=said):
        await Database("postgresql://me:secret@nowhere.invalid/x").open()
    with pytest.raises(StoreUnavailable, match=r"do: a\.invalid:5432 cannot be found .*, b\.invalid:1 cannot be"):
        await Database("postgresql://me:secret@a.invalid,b.invalid:1/x").open()


def test_a_postgresql_that_starts_is_worth_another_try() -> None:
    error = asyncpg.CannotConnectNowError("the database system is starting up")
    told = not_connected(error, "db:5432")
    assert isinstance(told, StoreUnavailable)
    assert (
        told.message == "PostgreSQL at db:5432 is not ready (the database system is starting up); try again in a moment"
    )


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
async def test_an_ipv6_address_leads_to_postgresql(server_directory: Path) -> None:
    """Alone, in a list, and with brackets in the password, which urllib reads differently from release to release."""
    try:
        primary = Primary(server_directory / "a", settings="listen_addresses = '127.0.0.1,::1'\n")
    except AssertionError as error:
        pytest.skip(f"PostgreSQL cannot listen on ::1: {error}")
    with primary:
        here = f"[::1]:{primary.port}/mainspring"
        for dsn in (f"mainspring@{here}", f"mainspring:a[b]c@127.0.0.1:1,{here}"):
            database = Database(f"postgresql://{dsn}")
            await database.open()
            await database.close()


# ── rights ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def restricted(server_directory: Path) -> Iterator[Primary]:
    """A server of its own, because roles belong to all of its databases."""
    with Primary(server_directory / "a") as primary:
        for role in ("owner", '"the other"'):
            primary.ask(f"create role {role} login")
        yield primary


async def test_a_role_without_create_is_told_what_to_ask_for(restricted: Primary) -> None:
    outsider = Database(restricted.dsn.replace("mainspring@", "the%20other@"))
    said = r'"the other" may not .*for database mainspring\); .*GRANT CREATE ON DATABASE mainspring TO "the other"$'
    with pytest.raises(AccessDenied, match=said) as told:
        await migrate(outsider)
    restricted.ask(told.value.message.partition("type: ")[2])
    assert await migrate(outsider)


async def test_a_schema_of_another_role_is_told_as_such(restricted: Primary) -> None:
    restricted.ask("grant create on database mainspring to owner")
    owner = Database(restricted.dsn.replace("mainspring@", "owner@"))
    await migrate(owner)
    outsider = Database(restricted.dsn.replace("mainspring@", "the%20other@"))
    for call in (plan, migrate):
        with pytest.raises(AccessDenied, match='belongs to owner: .* mainspring grant server "the other"'):
            await call(outsider)
    async with owner.acquire() as conn:
        await roles.run(conn, await roles.grant_statements(conn, "server", "the other"))
    await owner.close()
    assert await plan(outsider) == []
