"""`mainspring up` and `mainspring worker`: processes that run tasks

Next: compose/local.py
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mainspring import __version__
from mainspring.cli.base import command, shared, with_options
from mainspring.cli.parse import Whole
from mainspring.cli.render import note, print_if_json

if TYPE_CHECKING:
    from mainspring.compose.listening import Listening
    from mainspring.config import Settings
    from mainspring.sdk.app import App
    from mainspring.store.postgres.database import Database

LAST_PORT = 7079  # that `up` tries, from that of the setting on
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


tls_options = with_options(
    click.option("--tls-cert", metavar="FILE", help="Certificate to show to agents and clients."),
    click.option("--tls-key", metavar="FILE", help="Its key."),
    click.option("--without-tls", is_flag=True, help="Listen on other addresses than loopback in plain text."),
)


@command(
    "up",
    "mainspring up                      commands only",
    "mainspring up shop:app             and the handlers of `app` in shop.py",
    "mainspring up --data ./mainspring  with the data in a directory of your own",
    "mainspring up --open               and the console in the browser",
    short_help="PostgreSQL, a server and an agent in one process.",
)
@click.argument("app", required=False)
@click.option("--listen", metavar="HOST:PORT", help="For API and agents; the first free of 127.0.0.1:7070 to 7079.")
@click.option("--open", "open_browser", is_flag=True, help="Open the console in the browser.")
@tls_options
@agent_options
def up(app: str | None, open_browser: bool, without_tls: bool, **given: Any) -> None:
    """Run everything in one process: PostgreSQL, a server and an agent.

    APP is MODULE:ATTRIBUTE of a mainspring.App, imported from the working directory; without it only commands
    and HTTP calls run. Ctrl-C stops, once running tasks have ended; Ctrl-C again stops them too.
    """
    how = partial(_work, name=app, listens=True, without_tls=without_tls, open_browser=open_browser)
    run_process(app, given, how)


@command(
    "worker",
    "mainspring worker shop.jobs:app --dsn postgresql://scheduler@db/shop",
    "mainspring worker shop.jobs:app --slots 20",
    "mainspring worker shop.jobs:app --reload   while you write it",
)
@click.argument("app")
@click.option("--reload", is_flag=True, help="Start again when a .py file of the application has changed.")
@click.option("--listen", metavar="HOST:PORT", help="Serve the HTTP API, and agents, there; without it, nowhere.")
@tls_options
@agent_options
def worker(app: str, reload: bool, without_tls: bool, **given: Any) -> int:
    """Run the jobs of a Python application.

    APP is MODULE:ATTRIBUTE of a mainspring.App, imported from the working directory. Start as many
    workers as you like: they share the work through the database.
    """
    if reload:
        from mainspring.cli.processes.reload import reload_worker

        keep_private(shared().overrides())
        return reload_worker(app, sys.argv[1:])
    listens = given["listen"] is not None
    run_process(app, given, partial(_work, name=app, listens=listens, without_tls=without_tls))
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


async def _work(
    loaded: App | None,
    overrides: dict[str, Any],
    *,
    name: str | None,
    listens: bool,
    without_tls: bool,
    open_browser: bool = False,
) -> None:
    """Run until a signal, then drain."""
    from mainspring.cli.runtime import StopSignals, settle_memory
    from mainspring.compose.network import listening_for
    from mainspring.sdk.app import App

    app = loaded or App("mainspring up")
    signals = StopSignals()
    settings = app.settings(**overrides)
    async with AsyncExitStack() as stack:
        listening = _listening(settings, overrides, without_tls=without_tls) if listens else None
        if listening is not None:
            stack.push_async_callback(listening.close)
            listening.preload()
        await stack.enter_async_context(app.running(**overrides))
        engine = app.engine
        assert engine is not None
        signals.hurry = lambda: engine.agent.runner.stop_all("shutdown")
        url = None
        if listening is not None:
            url = (await stack.enter_async_context(listening_for(engine, app.database, listening))).api
        link = None if url is None else await console_link(app.database, url, settings)
        settle_memory()
        _announce(settings, engine.agent.name, app, name, overrides, url, link)
        if open_browser and link is not None:
            _open(link)
        await signals.asked.wait()  # a bug in the engine cancels this
        running = engine.agent.runner.running
        note(f"stopping; {_still(running, settings.stop_patience)}" if running else "stopping")
    note("stopped")


def _listening(settings: Settings, overrides: dict[str, Any], *, without_tls: bool) -> Listening | None:
    """Where this process listens. Unless an address is given, on the first free one of a few ports."""
    from mainspring.compose.listening import Listening
    from mainspring.config import DEFAULT_LISTEN

    is_given = "listen" in overrides or settings.listen != DEFAULT_LISTEN
    if not is_given and not settings.api:
        return None
    return Listening(settings, without_tls=without_tls, last_port=None if is_given else LAST_PORT)


async def console_link(database: Database, url: str, settings: Settings) -> str:
    """The link that opens the console, once. In an embedded PostgreSQL's directory is a token for programs, too."""
    from mainspring.compose.admin_token import ensure_admin_token
    from mainspring.compose.stores import data_directory
    from mainspring.operations.access import create_login
    from mainspring.operations.actors import this_user

    if settings.dsn is None:
        await ensure_admin_token(database, data_directory(settings))
    async with database.acquire() as conn:
        login = await create_login(conn, this_user())
    return f"{url}/login#{login.code}"


def _open(link: str) -> None:
    """Open it in the browser, in a thread: a browser in a terminal does not return before it is closed."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()


def _still(running: int, patience: float) -> str:
    tasks = "1 task still runs and has" if running == 1 else f"{running} tasks still run and have"
    return f"{tasks} {patience:g} s to end; Ctrl-C again stops now"


def place_of(settings: Settings) -> dict[str, str]:
    """Where the data is, without secrets."""
    from mainspring.store.embedded.server import default_directory

    if settings.dsn is not None:
        return {"dsn": mask(settings.dsn)}
    return {"data": settings.data_directory or str(default_directory())}


def _announce(
    settings: Settings,
    agent: str,
    app: App,
    name: str | None,
    overrides: dict[str, Any],
    url: str | None,
    link: str | None,
) -> None:
    place = place_of(settings)
    served = {} if url is None else {"url": url, "login_url": link}
    print_if_json({"agent": agent, "slots": settings.slots, "jobs": list(app.jobs), **served, **place})
    database = place.get("dsn") or f"embedded PostgreSQL in {place['data']}"
    runs = "commands" if name is None else f"commands and the {len(app.jobs)} jobs of {name}"
    where = _where(overrides)
    hint = f"opens once, within 10 minutes; `mainspring login{where}` makes another"
    console = "" if link is None else f"\n  console   {link}\n            {hint}"
    note(
        f"""
Mainspring {__version__} is up.
  database  {database}
  agent     {agent}, {settings.slots} slots, runs {runs}{console}

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
