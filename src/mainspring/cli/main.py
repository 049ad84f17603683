"""Main: the command `mainspring`.

Next: cli/base.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from mainspring import __version__
from mainspring.cli.base import Group, LazyCommands, examples
from mainspring.cli.errors import INTERRUPTED, USAGE, flush_output, report

# Where each command is. A process loads its own only: together they take 4 MB and a twentieth of a second.
MODULES = {
    "processes.run": ("up", "worker"),
    "processes.serve": ("server", "agent", "api"),
    "processes.demo": ("demo",),
    "processes.status": ("migrate", "stats"),
    "processes.doctor": ("doctor",),
    "processes.backup": ("backup", "restore", "db"),
    "jobs.holds": ("job", "hold", "release"),  # it adds to the commands of jobs.jobs
    "jobs.rules": ("rule",),
    "manifests.manifests": ("plan", "apply", "export"),
    "schedules.schedules": ("schedule",),
    "tasks.tasks": ("task",),
    "tasks.batches": ("batch",),
    "fleet.daemons": ("daemon",),
    "fleet.agents": ("agents",),
    "fleet.servers": ("servers",),
    "fleet.segments": ("segments",),
    "fleet.settings": ("settings",),
    "fleet.autoscale": ("autoscale",),
    "access.sessions": ("login", "logout", "sessions"),
    "access.tokens": ("token",),
    "access.audit": ("audit",),
    "access.secrets": ("secret",),
    "access.roles": ("grant", "revoke"),
    "alerts.rules": ("alert",),
    "alerts.channels": ("channel",),
}


@click.group(
    cls=Group,
    commands=LazyCommands({name: f"mainspring.cli.{module}" for module, names in MODULES.items() for name in names}),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "mainspring demo                              see it at work for 20 seconds",
        "mainspring up                                everything in one process",
        "mainspring job create hello -- echo hello    a job that runs a command",
        "mainspring task submit hello --wait          one run of it",
        "mainspring schedule preview daily at 09:00   when it would run",
        "mainspring worker shop:app                   a Python application",
    ),
)
@click.version_option(__version__, message="mainspring %(version)s")
def cli() -> None:
    """Mainspring, a distributed job scheduler on PostgreSQL."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Raises nothing."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _tolerate_odd_text()
    try:
        status = cli.main(given, prog_name="mainspring", standalone_mode=False)
        flush_output()  # here, where a closed pipe or a full disk can still be handled
    except (BrokenPipeError, SystemExit):  # click raises the second for the first, and we raise it nowhere
        return 0  # the reader has seen enough
    except click.exceptions.NoArgsIsHelpError as error:
        with suppress(OSError):  # stderr is closed; the exit code remains
            error.show()
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:
        return report(error, as_json=_wants_json(given))
    finally:
        _discard_unwritten()
    return status if isinstance(status, int) else 0


def _tolerate_odd_text() -> None:
    """Let stdout escape what it cannot encode, as stderr does."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _wants_json(given: Sequence[str]) -> bool:
    """Whether errors are to be JSON. Read from the line itself, which may be what click cannot parse."""
    ours = given[: given.index("--")] if "--" in given else given
    return "--json" in ours


def _discard_unwritten() -> None:
    """Python flushes both streams at exit; if that failed, it would print a traceback and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
