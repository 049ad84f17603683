"""The client over TLS, from its first call to a stream of output; a certificate that it does not trust."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.api.fronted import fronted
from tests.api.test_output import END, write
from tests.conftest import MakeTask

import mainspring
from mainspring.errors import ServerUnavailable
from mainspring.model.access.actors import Role
from mainspring.model.tasks.states import TaskState
from mainspring.operations.work import tasks
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.tasks import Piece


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture
def trusting(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate[0])


@pytest.fixture
def url(dsn: str, certificate: tuple[Path, Path]) -> Iterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    with fronted(dsn, tls=context) as url:
        assert url.startswith("https://")
        yield url


@pytest.fixture
async def secret(conn: Connection) -> str:
    _, secret = await tokens.create(conn, "client", role=Role.ADMIN)
    return secret


async def test_calls_bulk_and_streams_pass_through_tls(
    url: str, secret: str, trusting: ssl.SSLContext, conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task(TaskState.RUNNING, token=5, session=1, attempt=1)
    async with mainspring.Client(url, secret, tls=trusting) as client:
        assert (await client.tasks.show(id)).state == "running"
        assert (await asyncio.to_thread(lambda: client.sync.call(tasks.show, id))).id == id

        async def lines() -> AsyncIterator[bytes]:
            for number in range(2_000):
                yield b'{"job": "job", "args": {"text": "%b", "n": %d}}\n' % (b"x" * 500, number)

        source = lines()

        async def receive() -> bytes | None:
            return await anext(source, None)

        told = [answer async for answer in client.submit_lines(receive)]
        assert sum(len(getattr(answer, "ids", ())) for answer in told) == 2_000
        await write(conn, id, 1, 2)
        found: list[str] = []
        async for event in client.follow(id, wait=True):
            assert isinstance(event, Piece)
            found.append(event.data.decode().strip())
            if len(found) == 2:
                await write(conn, id, 3)
                await conn.execute(END, id)
        assert found == ["line 1", "line 2", "line 3"]


async def test_a_certificate_that_nobody_vouches_for_is_refused(url: str, secret: str) -> None:
    async with mainspring.Client(url, secret) as client:
        with pytest.raises(ServerUnavailable, match="certificate verify failed"):
            await client.tasks.count()


async def test_plain_text_to_a_port_with_tls_is_told_as_unreachable(url: str, secret: str) -> None:
    async with mainspring.Client(url.replace("https:", "http:"), secret, timeout=5) as client:
        with pytest.raises(ServerUnavailable, match="cannot be reached"):
            await client.tasks.count()
