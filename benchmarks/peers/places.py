"""Places: where the peers keep their tasks: a database for each in one PostgreSQL, and one Redis.

Each turn begins with a copy of the database that the peer has prepared, so that no turn feels the one before.
Next: benchmarks/peers/process.py
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import connection
from benchmarks.peers.catalogue import Peer
from mainspring.store.postgres.dsn import at_database

REDIS_SECONDS = 10.0
IN_MEMORY = "memory"


@dataclass(frozen=True)
class Places:
    dsn: str  # of the PostgreSQL; its own database is used to create others
    redis: int | None  # its port

    def address(self, peer: Peer) -> str:
        if peer.place == "memory":
            return IN_MEMORY
        if peer.place == "redis":
            return f"redis://127.0.0.1:{self.redis}/0"
        return at_database(self.dsn, _name(peer))

    def template(self, peer: Peer) -> str:
        return at_database(self.dsn, _name(peer) + "_template") if peer.place == "postgresql" else self.address(peer)

    async def create_template(self, peer: Peer) -> None:
        """The empty database that the driver prepares."""
        if peer.place == "postgresql":
            async with connection(self.dsn) as conn:
                await conn.execute(f'create database "{_name(peer)}_template"')

    async def clear(self, peer: Peer) -> None:
        """As if nothing had ever run."""
        if peer.place == "redis":
            await asyncio.to_thread(self.ask_redis, "FLUSHALL")
        if peer.place == "postgresql":
            async with connection(self.dsn) as conn:
                await conn.execute(f'drop database if exists "{_name(peer)}" with (force)')
                await conn.execute(f'create database "{_name(peer)}" template "{_name(peer)}_template"')
                await conn.execute("checkpoint")

    async def settle(self, peer: Peer) -> None:
        """After a queue is filled: statistics for those whose plans need them, and no checkpoint in the middle."""
        if peer.place == "postgresql":
            async with connection(self.address(peer)) as conn:
                await conn.execute("vacuum analyze")
                await conn.execute("checkpoint")

    async def finished(self, peer: Peer, timeout: float) -> float:
        """Wait until the peer has recorded every end; returns when that was."""
        async with asyncio.timeout(timeout):
            if peer.place == "redis":
                while any([await asyncio.to_thread(self.ask_redis, command) for command in peer.unfinished]):
                    await asyncio.sleep(0.005)
                return time.time()
            async with connection(self.address(peer)) as conn:
                while any([await conn.fetchval(statement) for statement in peer.unfinished]):
                    await asyncio.sleep(0.005)
                return time.time()

    def ask_redis(self, command: str) -> int:
        """One command whose answer is a number, or begins with one, or is just OK (0)."""
        with socket.create_connection(("127.0.0.1", self.redis or 0), timeout=REDIS_SECONDS) as client:
            client.sendall(command.encode() + b"\r\n")
            return redis_number(client.makefile("rb").read1(4096).decode())


def redis_number(answer: str) -> int:
    """`:5` is a number; `*4` is a list, of which the first line is taken; `+OK` stands for 0."""
    lines = answer.split("\r\n")
    if lines[0].startswith("-"):
        raise RuntimeError(f"Redis: {lines[0][1:]}")
    number = lines[1] if lines[0].startswith("*") else lines[0]
    return int(number[1:]) if number.startswith(":") else 0


def _name(peer: Peer) -> str:
    return "peer_" + peer.name.replace("-", "_")


@contextmanager
def redis_server() -> Iterator[int | None]:
    """A Redis of our own on loopback, with its default snapshots; yields its port, or None where there is no Redis."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="mainspring-redis-") as directory, socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = int(chosen.getsockname()[1])
        chosen.close()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory]
        log = Path(directory) / "log"
        child = subprocess.Popen([program, *options, "--logfile", str(log)], env=dict(os.environ))
        try:
            _until_redis_answers(port, child)
            yield port
        finally:
            child.terminate()
            try:
                child.wait(timeout=REDIS_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _until_redis_answers(port: int, child: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + REDIS_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if child.poll() is not None or time.monotonic() > limit:
                raise RuntimeError("redis-server does not answer") from None
            time.sleep(0.02)
