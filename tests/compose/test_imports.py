"""What a process does not serve, it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

WEB = {"uvicorn", "starlette", "httptools", "prometheus_client", "mainspring.api", "mainspring.front.http_server"}


@pytest.mark.parametrize(
    "script",
    [
        "import mainspring; mainspring.App, mainspring.Task",
        "import mainspring.testing",
        "import mainspring.compose.network",  # of server and agent
        "from mainspring.cli.main import main; main(['worker', '--help']); main(['agent', '--help'])",
        "import asyncio, sys, mainspring\n"
        "app = mainspring.App('shop', dsn=sys.argv[1])\n"
        "async def main():\n"
        "    async with app.running(): pass\n"
        "asyncio.run(main())",
    ],
    ids=["sdk", "testing", "compose", "help", "running"],
)
def test_without_http_nothing_of_it_is_imported(script: str, dsn: str) -> None:
    script += f"\nimport sys; print('loaded', sorted({WEB} & sys.modules.keys()))"
    command = [sys.executable, "-c", script, dsn]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("loaded []\n"), done.stdout + done.stderr
