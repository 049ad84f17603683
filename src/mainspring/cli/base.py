"""Base: what all commands share: the options that go before or after any of them, and examples in their help.

`mainspring --help` loads this module and those of the commands, so they import nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Shared:
    """The values of the shared options, wherever on the line they stand."""

    dsn: str | None = None
    data: str | None = None
    json: bool = False
    wide: bool = False

    def overrides(self) -> dict[str, str]:
        """The settings that were given."""
        if self.dsn is not None and self.data is not None:
            raise click.UsageError("--dsn and --data: give one of them, not both")
        given = {"dsn": self.dsn, "data_directory": self.data}
        return {name: value for name, value in given.items() if value is not None}


def shared() -> Shared:
    """The shared options of the command that runs."""
    context = click.get_current_context(silent=True)
    return Shared() if context is None else context.find_root().ensure_object(Shared)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        setattr(context.find_root().ensure_object(Shared), str(parameter.name), value)


def _shared_options() -> list[click.Parameter]:
    def option(name: str, **how: Any) -> click.Option:
        return click.Option([name], expose_value=False, callback=_remember, **how)

    return [
        option("--dsn", metavar="URL", help="PostgreSQL to use, else MAINSPRING_DSN, else the embedded one."),
        option("--data", metavar="DIR", help="Directory of the embedded PostgreSQL."),
        option("--json", is_flag=True, help="JSON, for programs."),
        option("--wide", is_flag=True, help="Tables with all columns, however narrow the terminal."),
    ]


class Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class Group(click.Group):
    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


EXAMPLE_COLUMNS = 76  # of the 80 of a terminal, less the indent


def examples(*lines: str) -> str:
    """An epilog of examples; two spaces divide a command from what it does."""
    return "\n".join(["\b", "Examples:", *(f"  {part}" for line in lines for part in _example(line))])


def _example(line: str) -> list[str]:
    """A line that is too long for a terminal, broken as a shell would read it."""
    if len(line) <= EXAMPLE_COLUMNS:
        return [line]
    typed, _, told = line.partition("  ")
    parts = [""]
    for word in re.findall(r"""\s*(?:'[^']*'|"[^"]*"|\$\([^)]*\)|\S)+""", typed):
        if len(parts[-1] + word) > EXAMPLE_COLUMNS - 2:  # room for the backslash
            parts[-1] += " \\"
            parts.append(f"    {word.lstrip()}")
        else:
            parts[-1] += word
    return [*parts, f"    {told.lstrip()}"] if told else parts
