"""Admin token: the file `admin.token` in the data directory of an embedded PostgreSQL, for programs of its owner.

The first start makes it. It is replaced if the database no longer knows it, or if others can read it.
"""

from __future__ import annotations

import asyncio
import logging
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


def admin_token(directory: Path) -> str | None:
    """The secret in the file, for a program on the server's own machine; None if there is none that it may read."""
    try:
        secret = read_private(directory / NAME)
    except (AccessDenied, OSError):
        return None
    return None if secret is None else secret.strip()
