"""Connect errors: why a connection to PostgreSQL failed, and what to type.

Reads  the certificate files that a DSN names
Next:  store/postgres/errors.py
"""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import asyncpg

from mainspring.errors import AccessDenied, MainspringError, StoreUnavailable, ValidationError
from mainspring.store.postgres.dsn import option_of
from mainspring.store.postgres.errors import described, first_line, translate, translating

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_UNSUPPORTED = re.compile(r"unsupported startup parameter(?: in options)?: (\S+)")  # PgBouncer's words
_NO_RULE = "no pg_hba.conf entry"


def connecting(where: str, *, direct: bool) -> AbstractContextManager[None]:
    """`with connecting(where, direct=…):` raises errors as ours. `direct`: no pooler may be in between."""
    return translating(partial(not_connected, where=where, direct=direct))


def needs_direct(where: str) -> ValidationError:
    """The engine cannot work through a pooler."""
    return ValidationError(
        f"dsn: at {where} is PgBouncer or another pooler; servers, workers, migrations and backups need a direct "
        "connection, for LISTEN, for locks and for their settings: name PostgreSQL itself in the DSN",
        field="dsn",
    )


def check_files(dsn: str) -> None:
    """StoreUnavailable if the DSN names a certificate or a key that cannot be read; it may appear later."""
    for name in _FILES:
        file = option_of(dsn, name)
        if not file:
            continue
        try:
            with Path(file).open("rb"):
                pass
        except OSError as error:
            hint = "the system's are in /etc/ssl/certs/ca-certificates.crt" if file == "system" else "correct the DSN"
            raise StoreUnavailable(
                f"dsn: {name}: {file} cannot be read ({error.strerror or error}); {hint}", field="dsn"
            ) from None


def not_connected(error: BaseException, where: str, direct: bool = False) -> MainspringError | None:
    """The error of ours for a connection that failed."""
    match error:
        case asyncpg.PostgresError():
            return _refused(error, where, direct)
        case ssl.SSLError():  # before ValueError: some of them are both
            return _untrusted(error, where)
        case ValueError() | OverflowError():
            return _unreadable(error)
        case socket.gaierror():
            return StoreUnavailable(
                f"PostgreSQL at {where} cannot be found ({error.strerror or error}); correct the host, or check DNS"
            )
        case ConnectionRefusedError():
            return StoreUnavailable(f"PostgreSQL at {where} does not answer (connection refused)")
        case ConnectionError() if "rejected SSL upgrade" in str(error):
            return StoreUnavailable(
                f"PostgreSQL at {where} speaks no TLS, and the DSN wants it; turn ssl on there, or take sslmode out"
            )
        case OSError() | TimeoutError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return StoreUnavailable(f"PostgreSQL at {where} does not answer ({described(error)})")
        case _:
            return translate(error)


def _refused(error: asyncpg.PostgresError, where: str, direct: bool) -> MainspringError | None:
    """PostgreSQL, or a pooler in front of it, answers with a refusal."""
    said = first_line(error)
    match getattr(error, "sqlstate", None) or "":
        case "28000" if _NO_RULE in said:
            way_out = "add sslmode=require to the DSN, or " if "no encryption" in said else ""
            without = " without TLS" if way_out else ""
            return AccessDenied(
                f"PostgreSQL at {where} lets nobody in from here as this user{without} ({said}); {way_out}add "
                "a line to its pg_hba.conf"
            )
        case state if state.startswith("28"):
            return AccessDenied(
                f"PostgreSQL at {where} refuses the connection ({said}); check user and password of the DSN"
            )
        case "42501":
            return AccessDenied(
                f"PostgreSQL at {where} refuses the connection ({said}); its owner can type: "
                "GRANT CONNECT ON DATABASE … TO …"
            )
        case "3D000":
            return StoreUnavailable(f"PostgreSQL at {where}: {said}; create it, or correct the DSN")
        case "42704":  # the driver passes parameters that it does not know on to the server
            return ValidationError(f"dsn: {said}; take it out of the DSN", field="dsn")
        case "08P01" if found := _UNSUPPORTED.search(said):
            if direct:
                return needs_direct(where)
            return ValidationError(
                f"dsn: the pooler at {where} does not take the setting {found[1]}; take it out of the DSN, or name it "
                "in PgBouncer's ignore_startup_parameters",
                field="dsn",
            )
        case "53300":
            return StoreUnavailable(
                f"PostgreSQL at {where} has no connection left ({said}); raise max_connections, or run less beside it"
            )
        case "57P03":
            return StoreUnavailable(f"PostgreSQL at {where} is not ready ({said}); try again in a moment")
        case _:  # such as 55000: the database takes no connections now
            return translate(error) or StoreUnavailable(f"PostgreSQL at {where} refuses the connection ({said})")


def _untrusted(error: ssl.SSLError, where: str) -> MainspringError:
    """The certificate is not trusted, or TLS fails in another way."""
    why = getattr(error, "verify_message", None)
    if not why:
        return StoreUnavailable(
            f"PostgreSQL at {where}: TLS fails ({error.reason or error}); check sslmode and the files in the DSN"
        )
    if "mismatch" in why:
        return StoreUnavailable(
            f"PostgreSQL at {where} has a certificate for another name ({why.rstrip('.')}); use the name that it "
            "is made for, or sslmode=verify-ca"
        )
    return StoreUnavailable(
        f"PostgreSQL at {where} has a certificate that is not trusted ({why}); name that of its authority: "
        "sslrootcert=FILE"
    )


def _unreadable(error: ValueError | OverflowError) -> MainspringError:
    said = first_line(error) if isinstance(error, asyncpg.InterfaceError) else ""  # others quote parts of the DSN
    if said.startswith("root certificate file"):
        return ValidationError(
            f"dsn: sslmode=verify-full and verify-ca need the certificate of the authority that signed PostgreSQL's "
            f"({said}); add sslrootcert=FILE to the DSN",
            field="dsn",
        )
    reason = f" ({said})" if said else ""
    return ValidationError(
        f"dsn: cannot be read{reason}; write postgresql://user:password@host:5432/database", field="dsn"
    )
