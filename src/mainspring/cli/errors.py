"""Errors: one line on stderr and an exit code for each class of the error tree.

0 ok · 1 failure · 2 usage · 3 not found · 4 conflict · 5 access · 6 unreachable · 7 the task failed · 124 timed out
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from typing import NamedTuple

import click

from mainspring import errors
from mainspring.cli.render import readable, visible

FAILURE, USAGE, INTERRUPTED = 1, 2, 130

_EXIT_CODES: tuple[tuple[type[errors.MainspringError], int], ...] = (
    (errors.ValidationError, USAGE),
    (errors.NotFound, 3),
    (errors.Conflict, 4),
    (errors.QueueFull, 4),
    (errors.AccessDenied, 5),
    (errors.StoreUnavailable, 6),
    (errors.EmbeddedUnavailable, 6),
    (errors.ServerUnavailable, 6),
    (errors.TaskFailed, 7),
    (errors.BatchFailed, 7),
    (errors.WaitTimeout, 124),
)


class Problem(NamedTuple):
    """What went wrong, for people and for programs."""

    exit_code: int
    code: str
    message: str
    field: str | None = None


def explain(error: BaseException) -> Problem:
    """The problem behind an error of the tree, of click or of the system. Any other exception is a bug."""
    problem = _problem(error)
    return problem._replace(message=errors.shortened(problem.message))  # of click and the system too: they echo input


def _problem(error: BaseException) -> Problem:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if getattr(error, "sqlstate", None) == "42501":  # such as a server with the role of a viewer
        from mainspring.store.postgres.errors import denied

        error = denied(error)
    match error:
        case errors.MainspringError():
            exit_code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILURE)
            return Problem(exit_code, error.code, _with_advice(error), error.field)
        case click.ClickException():
            return Problem(USAGE, "usage", errors.shortened(_usage(error)), _parameter(error))
        case OSError() if _is_of_output(error):
            return Problem(FAILURE, "output", f"cannot write output: {error.strerror or error}")
        case OSError():
            where = f"{errors.shortened(str(error.filename))}: " if error.filename else ""
            return Problem(FAILURE, "system", f"{where}{error.strerror or error}")
        case _:
            told = "".join(traceback.format_exception_only(error)).strip()
            return Problem(FAILURE, "bug", f"{errors.shortened(told)}; this is a bug, MAINSPRING_DEBUG=1 shows where")


def flush_output() -> None:
    """Write what is buffered; OSError if stdout is closed."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_of_output(error: OSError) -> bool:
    """Whether a standard stream failed, not a file. The error has no name: only the frame that wrote tells."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code in (click.echo.__code__, flush_output.__code__)


def _with_advice(error: errors.MainspringError) -> str:
    """The message; where it does not say what to do, because that depends on the caller, with advice."""
    if type(error) is not errors.StoreUnavailable or ";" in error.message:
        return error.message
    return f"{error.message}; check that it runs and that the DSN is right, then try again"


def _usage(error: click.ClickException) -> str:
    message = _words(error)
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    see = " See" if message.endswith("?") else "; see"
    return f"{message}{see} `{context.command_path} --help`"


# What people type → what they mean, where there is such a command or option: the nearest by its letters may do harm.
_SAID = {
    "status": "show", "get": "show", "info": "show", "describe": "show", "ls": "list", "add": "create", "new": "create",
    "rm": "delete", "remove": "delete", "stop": "cancel", "kill": "cancel", "run": "submit", "log": "logs",
    "output": "logs", "create": "set", "edit": "set", "--at": "--run-at", "--time": "--run-at", "--in": "--delay",
    "--after": "--delay",
}  # fmt: skip


def _meant(error: click.ClickException) -> list[str]:
    """The commands or options that may be meant."""
    context: click.Context | None = getattr(error, "ctx", None)
    said = getattr(error, "command_name", None) or getattr(error, "option_name", None)
    if context is not None and (meant := _SAID.get(str(said))) is not None:
        command = context.command
        known = {option for parameter in command.params for option in parameter.opts}
        if meant in (command.commands if isinstance(command, click.Group) else known):
            return [meant]
    return list(getattr(error, "possibilities", None) or ())


def _words(error: click.ClickException) -> str:
    """The message of click in the words of our errors."""
    message = " ".join(error.message.split()).rstrip(".")
    parameter: click.Parameter | None = getattr(error, "param", None)
    name = None if parameter is None else parameter.get_error_hint(getattr(error, "ctx", None)).replace("'", "")
    match error:
        case click.MissingParameter() if name is not None:
            return f"{name} is missing"
        case click.BadParameter() if name is not None:
            return f"{name}: {message}"
    close = _meant(error)
    return f"{message}, did you mean {' or '.join(close)}?" if close else message


def _parameter(error: click.ClickException) -> str | None:
    parameter = getattr(error, "param", None)
    name = getattr(parameter, "name", None) or getattr(error, "option_name", None)
    return None if name is None else errors.shortened(name)


def report(error: BaseException, *, as_json: bool) -> int:
    """Print the error on stderr; returns its exit code."""
    if os.environ.get("MAINSPRING_DEBUG") == "1":
        traceback.print_exception(error)
    problem = explain(error)
    if as_json:
        told = {"code": problem.code, "message": problem.message}
        line = json.dumps(told if problem.field is None else told | {"field": problem.field})
    else:
        line = f"mainspring: {visible(problem.message, lines=True)}"
    with suppress(OSError):  # stderr is closed; the exit code remains
        click.echo(line if as_json else readable(line), file=sys.stderr)
    return problem.exit_code
