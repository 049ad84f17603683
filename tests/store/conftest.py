"""PostgreSQL servers of the tests' own, for those that break them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import directory_for_a_server
from tests.postgres import PostgreSQL, Primary, standby_of


@pytest.fixture
def primary(server_directory: Path) -> Iterator[PostgreSQL]:
    with Primary(server_directory / "a") as primary:
        yield primary


@pytest.fixture(scope="module")
def lasting() -> Iterator[PostgreSQL]:
    """A primary for the tests that do it no harm."""
    with directory_for_a_server() as directory, Primary(directory / "a") as primary:
        yield primary


@pytest.fixture(scope="module")
def lasting_standby(lasting: PostgreSQL) -> Iterator[PostgreSQL]:
    with standby_of(lasting, lasting.directory.with_name("b")) as standby:
        yield standby


@pytest.fixture
def standby(primary: PostgreSQL, server_directory: Path) -> Iterator[PostgreSQL]:
    """A commit of the primary waits for it."""
    with standby_of(primary, server_directory / "b") as standby:
        primary.wait_for_standby()
        yield standby
