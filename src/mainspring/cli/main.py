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
from mainspring.cli.access.audit import audit
from mainspring.cli.access.roles import grant, revoke
from mainspring.cli.access.sessions import login, sessions
from mainspring.cli.access.tokens import token
from mainspring.cli.alerts.alerts import alert
from mainspring.cli.alerts.channels import channel
from mainspring.cli.alerts.rules import alert_rule, list_rules
from mainspring.cli.base import Group, examples
from mainspring.cli.errors import INTERRUPTED, USAGE, flush_output, report
from mainspring.cli.fleet.agents import agents
from mainspring.cli.fleet.autoscale import autoscale
from mainspring.cli.fleet.daemons import daemon
from mainspring.cli.fleet.segments import segments
from mainspring.cli.fleet.servers import servers
from mainspring.cli.fleet.settings import settings
from mainspring.cli.jobs.holds import hold, release
from mainspring.cli.jobs.jobs import job
from mainspring.cli.jobs.rules import rule
from mainspring.cli.manifests.manifests import apply, export, plan
from mainspring.cli.processes.backup import backup, db, restore
from mainspring.cli.processes.demo import demo
from mainspring.cli.processes.doctor import doctor
from mainspring.cli.processes.run import up, worker
from mainspring.cli.processes.serve import agent, api, server
from mainspring.cli.processes.status import migrate, stats
from mainspring.cli.schedules.schedules import schedule
from mainspring.cli.tasks.batches import batch
from mainspring.cli.tasks.tasks import task


@click.group(
    cls=Group,
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


for command in (up, server, agent, worker, api, demo, migrate, job, schedule, daemon, task, batch, rule):
    cli.add_command(command)
for command in (hold, release, agents, servers, segments, settings, stats, autoscale, doctor):
    cli.add_command(command)
for command in (plan, apply, export):
    cli.add_command(command)
for command in (login, sessions, token, audit):
    cli.add_command(command)
for command in (alert, channel):
    cli.add_command(command)
for command in (list_rules, alert_rule):
    alert.add_command(command)
for command in (grant, revoke, backup, restore, db):
    cli.add_command(command)


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
