"""Where `mainspring demo` listens; tests/journey/test_cli_demo.py runs it."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest

from mainspring.cli.processes.demo import _listening
from mainspring.config import load


async def test_the_demo_listens_where_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = f"127.0.0.1:{taken.getsockname()[1]}"  # behind the few ports that are tried where none is given
        async with AsyncExitStack() as stack:
            assert _listening(stack, load({"listen": given})) is None
        assert capsys.readouterr().err.startswith(f"no console: listen: {given}: Address already in use; ")
    async with AsyncExitStack() as stack:
        assert _listening(stack, load({"listen": given})) is not None
