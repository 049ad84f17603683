"""A real PgBouncer of a test's own, in transaction mode, with so few connections that clients share them.

`scripts/debian-pgbouncer` installs it where that is possible.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mainspring.store.embedded.account import account_for
from mainspring.store.postgres.dsn import hosts_of, option_of
from tests.postgres import PATIENCE, free_port

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="PgBouncer is not installed; scripts/debian-pgbouncer does that"
)

_SETTINGS = """
[databases]
* = host={host} port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
{more}
"""


@contextmanager
def pgbouncer(server_dsn: str, directory: Path, *, more: str = "") -> Iterator[str]:
    """A PgBouncer before this server; gives a DSN without a database. Like PostgreSQL it does not run as root."""
    assert PROGRAM is not None
    host, user, own_port = hosts_of(server_dsn)[0], option_of(server_dsn, "user"), free_port()
    config, log = directory / "pgbouncer.ini", directory / "pgbouncer.log"
    config.write_text(_SETTINGS.format(host=host.name, port=host.port or 5432, user=user, own_port=own_port, more=more))
    account = account_for(directory / "none")  # the one that the embedded server lets in
    become = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.switch else {}
    with log.open("wb") as output:
        process = subprocess.Popen(  # type: ignore[call-overload]
            [PROGRAM, str(config)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", env={}, **become
        )
    try:
        _until_it_answers(own_port, process, log)
        yield f"postgresql://anybody@127.0.0.1:{own_port}"
    finally:
        process.kill()
        process.wait()


def _until_it_answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.01)
