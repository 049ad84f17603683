"""`mainspring login`, `mainspring logout` and `mainspring sessions [list] | revoke`

Next: operations/access.py
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, command, examples, operation
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, name_of
from mainspring.cli.render import confirm, note, print_if_json, table
from mainspring.errors import ServerUnavailable, ValidationError

if TYPE_CHECKING:
    from mainspring.config import Settings

LONGEST_LINE = 1000
_TOKEN = re.compile(r"ms_[\w-]{40,200}")


@operation(
    "login",
    "mainspring login                                   a link that opens the console once",
    "mainspring login --role viewer --jobs 'report*'    the same, for somebody else",
    "mainspring login https://jobs.example --name prod  keeps a token for --server prod",
)
@click.argument("url", required=False)
@click.option("--name", type=name_of("name"), metavar="NAME", help="With URL: name for --server; the host.")
@click.option("--without-tls", is_flag=True, help="With URL: send the token to another machine in plain text.")
@click.option("--role", type=click.Choice(["viewer", "submitter", "operator", "admin"]), help="Without URL; admin.")
@click.option("--jobs", multiple=True, metavar="PATTERN", help="Without URL: only these jobs; repeatable.")
async def login(
    client: Client, url: str | None, name: str | None, without_tls: bool, role: str | None, jobs: tuple[str, ...]
) -> None:
    """Open the console, or keep the token of a server.

    Without URL: prints a link for a browser, which works once and within 10 minutes.
    With URL: asks for a token of that server, or reads it from the standard input, checks it there, and keeps
    it in a file that only you can read.
    """
    if url is not None:
        if role is not None or jobs:
            raise ValidationError("role, jobs: belong to a link; the token of a server has its own", field="role")
        await _keep(url, name, without_tls, client.settings)
        return
    if name is not None or without_tls:
        raise ValidationError("name: belongs to a URL; `mainspring login URL --name NAME`", field="name")
    from mainspring.model.access.actors import Role

    base = client.url or await _console_url(client)
    given = None if role is None else Role(role)
    made = await client.call(operations.access.create_login, role=given, jobs=jobs or None)
    if made.code is None:  # it was lost with an answer, and is shown only once
        made = await client.call(operations.access.create_login, role=given, jobs=jobs or None)
    link = f"{base}/login#{made.code}"
    if not print_if_json({"url": link, "role": made.role, "jobs": made.jobs, "expires_at": made.expires_at}):
        click.echo(link)
        note("opens once, within 10 minutes")


async def _console_url(client: Client) -> str:
    """That of a server on this machine, else of any that others can reach, else what the settings call public."""
    from socket import gethostname
    from urllib.parse import urlsplit

    from mainspring.compose.network import is_loopback

    found = [one for one in await client.every(operations.cluster.servers) if one.status == "active" and one.api_url]
    found.sort(key=lambda one: one.started_at, reverse=True)
    here = [one.api_url for one in found if one.host == gethostname()]
    elsewhere = [one.api_url for one in found if not is_loopback(urlsplit(one.api_url or "").hostname or "")]
    url = next((url for url in (*here, *elsewhere) if url), None) or client.settings.public_url
    if url is None:
        raise ServerUnavailable(
            "no server of this database serves the console now; start one with `mainspring up` or `server`, or name "
            "the database of the one that runs with --data or --dsn"
        )
    return url.rstrip("/")


async def _keep(url: str, name: str | None, without_tls: bool, settings: Settings) -> None:
    from mainspring.cli.access import logins
    from mainspring.cli.remote import client_of

    base = logins.check_server(url, without_tls=without_tls)
    known_as = logins.check_login_name(name, base)
    path = logins.logins_file()
    logins.read_logins(path)  # an unusable file is refused before anything is asked
    token = _ask_token()
    if not _TOKEN.fullmatch(token):
        raise ValidationError(
            "token: not one of ours; `mainspring token create NAME --role …` makes one", field="token"
        )
    async with client_of(base, token, settings) as server:
        who = await server.access.session()  # before it replaces one that works
    logins.keep_login(path, known_as, logins.Login(base, token))
    told = {"name": known_as, "url": base, "file": str(path), "who": who.name, "role": who.role, "jobs": who.jobs}
    of = f" of {', '.join(who.jobs)}" if who.jobs else ""
    confirm(told, f"you are {who.name}, {who.role}{of}; kept in {path}, use it with --server {known_as}")


@command("logout", "mainspring logout prod")
@click.argument("name", type=name_of("name"))
def logout(name: str) -> None:
    """Forget the token that `mainspring login URL` has kept under this name. The token itself stays valid."""
    from mainspring.cli.access import logins

    path = logins.logins_file()
    logins.forget_login(path, name)
    confirm({"name": name, "file": str(path), "forgotten": True}, f"forgotten; it is no longer in {path}")


def _ask_token() -> str:
    """Without echo on a terminal; else the first line of the standard input."""
    if sys.stdin is not None and sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True, err=True)).strip()
    return "" if sys.stdin is None else sys.stdin.readline(LONGEST_LINE).strip()


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=examples("mainspring sessions", "mainspring sessions revoke 3"),
)
@click.pass_context
def sessions(context: click.Context) -> None:
    """See who is logged in to the console, and end sessions."""
    if context.invoked_subcommand is None:
        context.invoke(list_sessions)


@sessions.operation("list", "mainspring sessions list")
async def list_sessions(client: Client) -> None:
    """Show the sessions of the console that are open."""
    found = await client.every(operations.access.list_sessions)
    if print_if_json(found):
        return
    table(
        ["ID", "LOGIN OF", "ROLE", "JOBS", "FROM", "CREATED", "LAST SEEN", "EXPIRES"],
        [
            [
                *(one.id, one.actor, one.role, ", ".join(one.jobs) or None, one.address),
                *(one.created_at, one.last_seen_at, one.expires_at),
            ]
            for one in found
        ],
        empty="nobody is logged in; `mainspring login` makes a link",
        room=Room(cut=("LOGIN OF", "JOBS"), drop=("CREATED", "EXPIRES", "FROM", "JOBS")),
    )


@sessions.operation("revoke", "mainspring sessions revoke 3")
@click.argument("id", type=Whole(1, 2**31 - 1))
async def revoke_session(client: Client, id: int) -> None:
    """End a session: its browser has to log in again."""
    await client.call(operations.access.revoke_session, id)
    confirm({"id": id, "revoked": True}, "revoked")
