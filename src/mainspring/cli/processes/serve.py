"""`mainspring server`, `mainspring agent` and `mainspring api`: processes on different machines

Next: compose/network.py
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mainspring import __version__
from mainspring.cli.base import command
from mainspring.cli.processes.run import agent_options, place_of, run_process, tls_options
from mainspring.cli.render import note, print_if_json

if TYPE_CHECKING:
    from mainspring.sdk.app import App


@command(
    "server",
    "mainspring server                  for agents on this machine",
    "mainspring server --app shop:app   and what `app` in shop.py defines",
    "mainspring server --listen 0.0.0.0:7070 --tls-cert server.pem --tls-key server.key",
)
@click.option("--listen", metavar="HOST:PORT", help="For agents and the HTTP API; 127.0.0.1:7070. Port 0: any.")
@click.option("--name", "server_name", metavar="NAME", help="Name of this server; the name of the host.")
@click.option("--app", metavar="MODULE:APP", help="Application whose jobs and schedules are registered.")
@tls_options
def server(app: str | None, without_tls: bool, **given: Any) -> None:
    """Plan, dispatch and record for agents on any machine.

    Start as many servers as you like over one PostgreSQL. Agents need a token: `mainspring token create`.
    """
    run_process(app, given, partial(_serve, without_tls=without_tls))


@command(
    "api",
    "mainspring api --dsn postgresql://scheduler@db/shop",
    "mainspring api --listen 0.0.0.0:7070 --tls-cert server.pem --tls-key server.key",
    short_help="The HTTP API alone.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where it is served; 127.0.0.1:7070. Port 0: any.")
@tls_options
def api(without_tls: bool, **given: Any) -> None:
    """Serve the HTTP API without a server, from PostgreSQL alone.

    Servers have it too; with the setting `api = off` they do not, and their event loops are theirs alone.
    """
    if given["listen"] is not None:
        given["api_listen"] = given["listen"]  # it is the API's, whatever the settings say for servers
    run_process(None, given, partial(_serve_api, without_tls=without_tls))


@command(
    "agent",
    "mainspring agent --server wss://10.0.0.1:7070 --token-file token",
    "mainspring agent --server wss://a:7070,wss://b:7070 --tls-ca ca.pem --slots 20 --label gpu=a100",
    "MAINSPRING_TOKEN=ms_… mainspring agent --server ws://127.0.0.1:7070 --app shop:app",
    "mainspring agent --server wss://10.0.0.1:7070 --token-file token --exit-when-idle 5m",
)
@click.option("--server", metavar="URL[,URL…]", help="Servers to connect to; one at a time.")
@click.option("--token-file", metavar="FILE", help="Holds what `mainspring token create` printed; -: standard input.")
@click.option("--token", metavar="TOKEN", help="The token itself, which `ps` shows; better in MAINSPRING_TOKEN.")
@click.option("--app", metavar="MODULE:APP", help="Application whose handlers this agent runs.")
@click.option("--tls-ca", metavar="FILE", help="Authority that signed the servers' certificates.")
@click.option("--without-tls", is_flag=True, help="Connect to other machines in plain text.")
@click.option("--exit-when-idle", metavar="DURATION", help="End, with 0, once it has held no task for so long.")
@agent_options
def agent(app: str | None, without_tls: bool, **given: Any) -> None:
    """Run tasks for servers on other machines.

    Handlers submit tasks through the server. With --dsn they also have `current_task().transaction()`,
    `result()` and all else that needs the database.
    """
    if given["token"] is not None:
        note("--token: any user of this machine could read the token with ps; use --token-file or MAINSPRING_TOKEN")
    run_process(app, given, partial(_run_agent, without_tls=without_tls))


async def _serve(app: App | None, overrides: dict[str, Any], *, without_tls: bool) -> None:
    """Run until a signal; then agents connect to another server."""
    from mainspring.cli.runtime import StopSignals, settle_memory
    from mainspring.compose.admin_token import ensure_admin_token
    from mainspring.compose.network import running_server
    from mainspring.compose.stores import data_directory, open_database, register
    from mainspring.config import load

    signals = StopSignals()
    settings = load(overrides) if app is None else app.settings(**overrides)
    async with open_database(settings) as database:
        if app is not None:
            await register(database, app.definitions, app.name, app.version, app.schedules)
        name, providers = (None, {}) if app is None else (app.name, app.schedules.providers)
        async with running_server(settings, database, name, providers, without_tls=without_tls) as urls:
            settle_memory()
            where = place_of(settings)
            if settings.dsn is None and urls.api is not None:
                await ensure_admin_token(database, data_directory(settings))
            url = urls.agents or ""
            flag = " --without-tls" if without_tls and url.startswith("ws:") else ""
            print_if_json({"url": url, "api_url": urls.api, **where})
            api = (
                ""
                if urls.api is None
                else f"\n  console   {urls.api}   (`mainspring login` makes a link that opens it)"
            )
            note(
                f"""
Mainspring {__version__}, server.
  database  {where.get("dsn") or f"embedded PostgreSQL in {where['data']}"}
  agents    mainspring agent --server {url}{flag} --token-file …   (`mainspring token create NAME` makes one){api}

Ctrl-C stops; agents and what they run go on with another server.
"""
            )
            await signals.asked.wait()
            note("stopping")
    note("stopped")


async def _serve_api(_app: App | None, overrides: dict[str, Any], *, without_tls: bool) -> None:
    """Run until a signal. A shared PostgreSQL is left as it is: servers and `mainspring migrate` change its schema."""
    from mainspring.cli.runtime import StopSignals, settle_memory
    from mainspring.compose.network import serving_api
    from mainspring.compose.stores import open_database
    from mainspring.config import load

    signals = StopSignals()
    settings = load(overrides)
    async with (
        open_database(settings, prepare=settings.dsn is None) as database,
        serving_api(settings, database, without_tls=without_tls) as url,
    ):
        settle_memory()
        where = place_of(settings)
        print_if_json({"url": url, **where})
        note(f"the HTTP API is at {url}; Ctrl-C stops")
        await signals.asked.wait()
        note("stopping")
    note("stopped")


async def _run_agent(app: App | None, overrides: dict[str, Any], *, without_tls: bool) -> None:
    """Run until a signal, then drain."""
    from mainspring.cli.runtime import StopSignals, settle_memory
    from mainspring.compose.network import RemoteAgent
    from mainspring.config import load

    signals = StopSignals()
    settings = load(overrides) if app is None else app.settings(**overrides)
    handlers, name = ({}, None) if app is None else (app.handlers, app.name)
    running = RemoteAgent(settings, handlers, name, without_tls=without_tls)
    async with AsyncExitStack() as stack:
        if app is not None:
            running.agent.failures.hooks = app.failure_hooks
            await stack.enter_async_context(app.attached(running.database))
        await stack.enter_async_context(running)
        session = await running.joined(signals.asked)
        if session is not None:
            signals.hurry = lambda: running.agent.runner.stop_all("shutdown")
            settle_memory()
            name = running.agent.name
            print_if_json({"agent": name, "slots": settings.slots, "session": session})
            note(f"agent {name} is connected, {settings.slots} slots; Ctrl-C stops")
            await running.until(signals.asked)
            note("stopping" if signals.asked.is_set() else f"idle for {settings.exit_when_idle:g} s; stopping")
    note("stopped")
