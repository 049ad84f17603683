"""`mainspring up` and `mainspring worker`: processes that run tasks

Next: compose/local.py
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mainspring import __version__
from mainspring.cli.base import command, shared, with_options
from mainspring.cli.parse import Whole
from mainspring.cli.render import note, print_if_json

if TYPE_CHECKING:
    from mainspring.config import Settings
    from mainspring.sdk.app import App

_PASSWORD = re.compile(r"(?<=://)([^:/?#@]*):[^/?#]*@|([?&](?:ssl)?password=)[^&#]*")


def _joined(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
    return ",".join(values) or None


# Their values are settings.
agent_options = with_options(
    click.option("--slots", type=Whole(), metavar="N", help="Tasks at the same time; 100."),
    click.option("--threads", type=Whole(), metavar="N", help="Sync handlers at the same time; 32."),
    click.option(
        "--name", "agent_name", metavar="NAME", help="Name of this agent; the host's, with a number for a second one."
    ),
    click.option(
        "--label", "labels", multiple=True, callback=_joined, metavar="NAME=VALUE", help="For jobs that require it."
    ),
    click.option(
        "--offer",
        "offers",
        multiple=True,
        callback=_joined,
        metavar="NAME=AMOUNT",
        help="For jobs that need it: gpu=2.",
    ),
)


@command(
    "up",
    "mainspring up                      commands only",
    "mainspring up shop:app             and the handlers of `app` in shop.py",
    "mainspring up --data ./mainspring  with the data in a directory of your own",
    short_help="PostgreSQL, a server and an agent in one process.",
)
@click.argument("app", required=False)
@agent_options
def up(app: str | None, **given: Any) -> None:
    """Run everything in one process: PostgreSQL, a server and an agent.

    APP is MODULE:ATTRIBUTE of a mainspring.App, imported from the working directory. Ctrl-C stops,
    once running tasks have ended; Ctrl-C again stops them too.
    """
    run_process(app, given, partial(_work, name=app))


@command(
    "worker",
    "mainspring worker shop.jobs:app --dsn postgresql://scheduler@db/shop",
    "mainspring worker shop.jobs:app --slots 20",
    "mainspring worker shop.jobs:app --reload   while you write it",
)
@click.argument("app")
@click.option("--reload", is_flag=True, help="Start again when a .py file of the application has changed.")
@agent_options
def worker(app: str, reload: bool, **given: Any) -> int:
    """Run the jobs of a Python application.

    APP is MODULE:ATTRIBUTE of a mainspring.App, imported from the working directory. Start as many
    workers as you like: they share the work through the database.
    """
    if reload:
        from mainspring.cli.processes.reload import reload_worker

        keep_private(shared().overrides())
        return reload_worker(app, sys.argv[1:])
    run_process(app, given, partial(_work, name=app))
    return 0


def run_process(
    app: str | None, given: dict[str, Any], main: Callable[[App | None, dict[str, Any]], Coroutine[Any, Any, None]]
) -> None:
    """Set up logging, load the application, and run `main` with it and the settings that were given."""
    import logging

    from mainspring.cli.load import load_app
    from mainspring.cli.runtime import add_log_context, leave_threads_behind, log_to_stderr, run

    overrides = shared().overrides() | {key: value for key, value in given.items() if value is not None}
    keep_private(overrides)
    log_to_stderr(logging.INFO)
    loaded = None if app is None else load_app(app)
    add_log_context()  # also to the handlers that the application has set up
    run(main(loaded, overrides))
    leave_threads_behind(0)


def keep_private(overrides: dict[str, Any]) -> None:
    """Hide the secrets of this process from its commands and from other users. Call it before there are threads."""
    from mainspring.agent.guardian.privacy import forbid_dumps, hide_arguments, hide_environment

    passwords = [found[0] for found in _PASSWORD.finditer(overrides.get("dsn", ""))]
    hide_arguments([*passwords, overrides.get("token", "")])
    hide_environment()
    forbid_dumps()


async def _work(loaded: App | None, overrides: dict[str, Any], *, name: str | None) -> None:
    """Run until a signal, then drain."""
    from mainspring.cli.runtime import StopSignals, settle_memory
    from mainspring.sdk.app import App

    app = loaded or App("mainspring up")
    signals = StopSignals()
    settings = app.settings(**overrides)
    async with app.running(**overrides):
        engine = app.engine
        assert engine is not None
        signals.hurry = lambda: engine.agent.runner.stop_all("shutdown")
        settle_memory()
        _announce(settings, engine.agent.name, app, name, overrides)
        await signals.asked.wait()  # a bug in the engine cancels this
        running = engine.agent.runner.running
        note(f"stopping; {_still(running, settings.stop_patience)}" if running else "stopping")
    note("stopped")


def _still(running: int, patience: float) -> str:
    tasks = "1 task still runs and has" if running == 1 else f"{running} tasks still run and have"
    return f"{tasks} {patience:g} s to end; Ctrl-C again stops now"


def place_of(settings: Settings) -> dict[str, str]:
    """Where the data is, without secrets."""
    from mainspring.store.embedded.server import default_directory

    if settings.dsn is not None:
        return {"dsn": mask(settings.dsn)}
    return {"data": settings.data_directory or str(default_directory())}


def _announce(settings: Settings, agent: str, app: App, name: str | None, overrides: dict[str, Any]) -> None:
    place = place_of(settings)
    print_if_json({"agent": agent, "slots": settings.slots, "jobs": list(app.jobs), **place})
    database = place.get("dsn") or f"embedded PostgreSQL in {place['data']}"
    runs = "commands" if name is None else f"commands and the {len(app.jobs)} jobs of {name}"
    where = _where(overrides)
    note(
        f"""
Mainspring {__version__} is up.
  database  {database}
  agent     {agent}, {settings.slots} slots, runs {runs}

Submit a first task from another terminal:
  mainspring job create hello{where} -- echo hello
  mainspring task submit hello --wait{where}
  mainspring task list{where}

Ctrl-C stops.
"""
    )


def _where(overrides: dict[str, Any]) -> str:
    """The options that make another command use the same database, without a password."""
    if "data_directory" in overrides:
        return f" --data {shlex.quote(overrides['data_directory'])}"
    if "dsn" in overrides:
        masked = mask(overrides["dsn"])
        return f" --dsn {shlex.quote(masked)}" if masked == overrides["dsn"] else " --dsn …"
    return ""


def mask(dsn: str) -> str:
    """The DSN without its password."""
    return _PASSWORD.sub(lambda match: f"{match[2]}***" if match[2] else f"{match[1]}:***@", dsn)
