"""Admin token: the file `admin.token` in the data directory of an embedded PostgreSQL, for programs of its owner.

The first start makes it. It is replaced if the database no longer knows it, or if others can read it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import islice
from pathlib import Path

from mainspring.compose.private_files import read_private, write_private
from mainspring.errors import AccessDenied
from mainspring.model.access.actors import Role
from mainspring.operations.actors import this_user
from mainspring.store.access import audit, tokens
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.database import Database

log = logging.getLogger("mainspring")

NAME = "admin.token"  # of the file, and of the token
_LISTENING = "0A"


class _Unwritable(Exception):
    """The file cannot be written. Not an OSError: that would be taken for one of the connection."""


async def ensure_admin_token(database: Database, directory: Path) -> Path | None:
    """Make the file and its token, unless there are both; returns where it is.

    None, with a warning, if the file cannot be written: a server works without it, and there is no token then.

    Of two processes that start at once the second waits, and finds the file of the first. The token is committed
    after the file is written: if the process dies between, the next start replaces the file.
    """
    path = directory / NAME
    async with database.acquire() as conn:
        try:
            async with conn.transaction():
                await tokens.hold_admin_token(conn)
                if not await _is_valid(conn, path):
                    await _replace(conn, path)
        except _Unwritable as error:
            log.warning("no admin token: %s", error)
            return None
    return path


async def _replace(conn: Connection, path: Path) -> None:
    await tokens.revoke_admin_tokens(conn, NAME)  # the secret of the one before is lost, or known to others
    id, secret = await tokens.create(conn, NAME, role=Role.ADMIN, created_by=this_user().name)
    await audit.record(conn, this_user(), "token.create", f"token:{id}", {"name": NAME, "role": Role.ADMIN})
    try:
        await asyncio.to_thread(write_private, path, f"{secret}\n")
    except OSError as error:
        raise _Unwritable(str(error)) from error


async def _is_valid(conn: Connection, path: Path) -> bool:
    try:
        secret = read_private(path)
    except AccessDenied as error:
        log.warning("%s; a new token is written in its place", error.message)
        return False
    except OSError:
        return False  # if it cannot be written either, that says why
    token = None if secret is None else await tokens.find(conn, secret.strip())
    return token is not None and token.role is Role.ADMIN and not token.jobs


def token_for(port: int, directory: Path) -> str | None:
    """The secret for whatever listens on this port of this machine; None unless that is a process of the directory's
    owner: any user may listen where no server does, and would be sent an admin's token."""
    try:
        return admin_token(directory) if listeners(port) == {directory.stat().st_uid} else None
    except OSError:
        return None


def listeners(port: int) -> set[int]:
    """The users whose processes listen on a TCP port of this machine, by the kernel's own list; empty where it has
    none for everybody to read."""
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            for line in islice(lines, 1, None):
                _, local, _, state, _, _, _, uid, *_ = line.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    found.add(int(uid))
    return found


def admin_token(directory: Path) -> str | None:
    """The secret in the file; None if there is none that this process may read."""
    try:
        secret = read_private(directory / NAME)
    except (AccessDenied, OSError):
        return None
    return None if secret is None else secret.strip()
