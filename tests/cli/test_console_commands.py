"""The commands that empty pages of the console offer: a beginner copies them, so the command line must take them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from mainspring.cli.main import cli

SOURCES = Path(__file__).parents[2] / "console" / "src"
_OFFERED = re.compile(r"""command[=:]\s*\{?(["'`])(mainspring .+?)\1""")


def offered() -> list[str]:
    found = {command for file in SOURCES.rglob("*.tsx") for _, command in _OFFERED.findall(file.read_text())}
    return sorted(re.sub(r"\$\{\w+\}", "name", command) for command in found)


@pytest.mark.parametrize("line", offered())
def test_a_command_that_the_console_offers_is_understood(line: str) -> None:
    command: click.Command = cli
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group):
        name = words.pop(0)
        assert name in command.commands, line
        command = command.commands[name]
    command.make_context(command.name, words).close()


def test_there_are_commands_to_look_at() -> None:
    assert len(offered()) > 10
