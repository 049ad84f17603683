"""`mainspring task logs`."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_without_follow_nothing_is_waited_for(cli: Cli) -> None:
    cli("job", "create", "hello", "--", "echo", "hello")
    cli("task", "submit", "hello")
    assert cli("task", "logs", "1") == (0, "", "")
