"""The reference pages name all that there is: options, parameters, exceptions, SQLSTATEs and chores."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import mainspring
from mainspring import MainspringError, NotFound
from mainspring.model.schedules.define_schedule import When
from mainspring.sdk.job import Job
from mainspring.sdk.schedules import JobOptions
from mainspring.server.cluster.janitor import Janitor
from mainspring.store.postgres.database import Connection, Database

DOCS = Path(__file__).parents[2] / "docs"
_CODE = re.compile(r"^```.*?^```$|`([^`]+)`", re.MULTILINE | re.DOTALL)


def named(*pages: str) -> set[str]:
    """The words of all that stands in backticks, blocks apart."""
    texts = [(DOCS / page).read_text(encoding="utf-8") for page in pages]
    return {word for text in texts for code in _CODE.findall(text) for word in re.findall(r"\w+", code)}


def missing(names: Iterable[str], *pages: str) -> list[str]:
    return sorted({*names} - named(*pages))


def test_the_sdk_page_and_those_it_leads_to_have_every_option_of_a_job_and_of_a_schedule() -> None:
    assert missing(JobOptions.__annotations__, "reference/sdk.md", "reference/schedules.md", "how-to/daemons.md") == []
    assert missing(When.__annotations__, "reference/schedules.md", "how-to/daemons.md") == []


def test_the_sdk_page_has_every_parameter_of_using() -> None:
    assert missing({*inspect.signature(Job.using).parameters} - {"self"}, "reference/sdk.md") == []


def test_the_page_of_errors_has_every_exception_of_the_package() -> None:
    found = [getattr(mainspring, name) for name in mainspring.__all__]
    errors = [one for one in found if inspect.isclass(one) and issubclass(one, MainspringError)]
    assert missing((error.__name__ for error in errors), "reference/errors.md") == []
    codes = {error.code for error in errors if error not in (MainspringError, NotFound)}  # the roots of branches
    assert missing(codes, "reference/errors.md") == []


async def test_the_page_of_sql_has_every_parameter_and_every_sqlstate(conn: Connection) -> None:
    sources = await conn.fetch(
        "select proname, proargnames, prosrc from pg_proc where pronamespace = 'mainspring'::regnamespace"
    )
    public = {"enqueue", "enqueue_many", "enqueue_flow", "open_batch", "close_batch"}
    parameters = {name for row in sources if row["proname"] in public for name in row["proargnames"] or ()}
    assert missing(parameters, "reference/sql.md") == []
    states = {state for row in sources for state in re.findall(r"MS[A-Z]\d\d", row["prosrc"])}
    assert missing(states, "reference/sql.md") == []


def test_the_page_of_maintenance_has_every_chore(dsn: str) -> None:
    janitor = Janitor(Database(dsn), keep_succeeded=timedelta(days=1), keep_failed=timedelta(days=1))
    page = (DOCS / "reference/maintenance.md").read_text(encoding="utf-8")
    assert [name for name in janitor.tallies if name not in page] == []
