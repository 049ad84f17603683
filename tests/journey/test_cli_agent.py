"""A developer whose handlers run on an agent: `mainspring agent --app shop:app`, with and without a database."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.journey.processes import mainspring, running

SHOP = """
import mainspring

app = mainspring.App("shop")

@app.job(retries=0)
async def order(number: int) -> int:
    return (await bill.enqueue(number)).id

@app.job(retries=0)
def sync_order(number: int) -> int:
    return bill.enqueue_sync(number).id

@app.job(retries=0)
async def order_and_wait(number: int) -> int:
    return await (await bill.enqueue(number)).result(timeout=20)

@app.job
async def bill(number: int) -> int:
    return number * 2
"""


@pytest.mark.parametrize("has_dsn", [False, True], ids=["without a database", "with --dsn"])
def test_a_handler_on_an_agent_enqueues_into_the_database_of_its_server(
    dsn: str, tmp_path: Path, has_dsn: bool
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    home = tmp_path / "home"
    home.mkdir()
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    bare |= {"HOME": str(home), "XDG_DATA_HOME": str(home)}
    options = {"cwd": tmp_path, "env": bare}
    token = mainspring("token", "create", "test", "--dsn", dsn).stdout.strip()
    secret = tmp_path / "token"
    secret.write_text(f"{token}\n")
    serve = ["server", "--app", "shop:app", "--listen", "127.0.0.1:0", "--dsn", dsn, "--json"]
    with running(*serve, cwd=tmp_path) as server:
        agent = ["agent", "--app", "shop:app", "--server", server.ready()["url"], "--json"]
        ways = ["--token", token, "--dsn", dsn] if has_dsn else ["--token-file", str(secret)]
        with running(*agent, *ways, **options) as far:
            far.ready()
            assert any("--token-file" in note for note in far.notes) == has_dsn, "a token that ps shows needs a warning"
            shown = Path(f"/proc/{far.child.pid}")
            if shown.exists():
                assert token not in (shown / "cmdline").read_text()
            if shown.exists() and os.geteuid() == 0:  # any other user may not even open it
                assert (shown / "environ").read_bytes().strip(b"\0") == b""
            for job in ("order", "sync_order"):
                done = mainspring("task", "submit", job, "--arg", "number=21", "--wait", "--dsn", dsn)
                assert done.returncode == 0, done.stderr
                billed = mainspring("task", "wait", done.stdout.strip(), "--json", "--dsn", dsn)
                assert json.loads(billed.stdout)["result"] == 42
            waits = mainspring("task", "submit", "order_and_wait", "--arg", "number=4", "--wait", "--dsn", dsn)
            if has_dsn:
                assert waits.stdout == "8\n"
            else:
                assert waits.returncode == 7
                assert "this process is an agent, which has no database: start it with --dsn" in waits.stderr
    left = {path.name for path in home.rglob("*") if path.is_file()}
    assert left <= {"agent-1.id"}, "only its number is left where an embedded PostgreSQL would be"
