"""The embedded PostgreSQL dies under an application that nobody watches over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import mainspring
from mainspring.errors import StoreUnavailable
from tests.conftest import eventually


async def test_an_application_starts_its_embedded_postgresql_again(server_directory: Path) -> None:
    app = mainspring.App(data_directory=str(server_directory))

    @app.job
    async def double(number: int) -> int:
        return 2 * number

    async def submitted() -> mainspring.Task[int] | None:
        try:
            return await double.enqueue(2)
        except StoreUnavailable:  # it was cut off in the middle: try again
            return None

    async with app.running():
        assert await (await double.enqueue(1)).result(timeout=10) == 2
        postmaster = int((server_directory / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        task = await eventually(submitted, timeout=30)
        assert await task.result(timeout=30) == 4
