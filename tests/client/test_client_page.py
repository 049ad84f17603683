"""docs/reference/client.md: its example runs, and what it names can be imported."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from tests.client.conftest import ACTOR
from tests.journey.pages import Page

from mainspring.model.tasks.define_job import command, define
from mainspring.operations.definitions import jobs
from mainspring.store.postgres.database import Connection

PAGE = Page("docs/reference/client.md")


async def test_the_example_runs(url: str, token: str, conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "report", define(command(["true"]), {}))
    [block] = PAGE.of("python")
    names: dict[str, Any] = {}
    exec(block.text.replace("https://jobs.example", url).replace("ms_…", token), names)
    assert await names["submit_and_cancel"]() == "cancelled"


def test_what_it_names_is_there() -> None:
    told = re.findall(r"`(\w+)` (?:is )?in\s+`(mainspring\.[\w.]+)`", PAGE.text)
    assert len(told) >= 3
    for name, module in told:
        assert hasattr(import_module(module), name), (name, module)
