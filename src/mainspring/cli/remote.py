"""The server that `--server URL|NAME` names, and the token for it.

The token is that of MAINSPRING_TOKEN, else the one that `mainspring login URL` has kept, else, for a server on this
machine, the one that its first start has written to its data directory.
Next: client/remote.py
"""

from __future__ import annotations

from urllib.parse import urlsplit

from mainspring.cli.access.logins import check_server, find_login, logins_file, read_logins
from mainspring.client.remote import Client
from mainspring.compose.admin_token import token_for
from mainspring.compose.network import agent_tls, is_loopback
from mainspring.compose.stores import data_directory
from mainspring.config import Settings


def remote_client(server: str, settings: Settings) -> Client:
    if "://" not in server:
        login = find_login(logins_file(), server)
        return client_of(login.url, settings.token or login.token, settings)
    logins = read_logins(logins_file()).values()
    kept = next((login for login in logins if login.url == server.rstrip("/")), None)
    if kept is not None:  # plain text, if it is that, was asked for then
        return client_of(kept.url, settings.token or kept.token, settings)
    url = check_server(server)
    return client_of(url, settings.token or _token_of_this_machine(url, settings), settings)


def client_of(url: str, token: str | None, settings: Settings) -> Client:
    client = Client(url, token, tls=None if settings.tls_ca is None else agent_tls(settings))
    client.without_token = (
        f"`mainspring login {url}` keeps one for it, or set MAINSPRING_TOKEN; on the machine of the server "
        "`mainspring token create NAME --role viewer` makes one"
    )
    return client


def _token_of_this_machine(url: str, settings: Settings) -> str | None:
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or ""):
        return None
    return token_for(parts.port or (443 if parts.scheme == "https" else 80), data_directory(settings))
