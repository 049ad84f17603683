"""The server that `--server URL|NAME` names, and the token for it.

The token is that of MAINSPRING_TOKEN, else the one that `mainspring login URL` has kept, else, for a server on this
machine, the one that its first start has written to its data directory.
Next: client/remote.py
"""

from __future__ import annotations

from urllib.parse import urlsplit

from mainspring.cli.access.logins import check_server, find_login, logins_file, read_logins
from mainspring.client.remote import Client
from mainspring.compose.admin_token import admin_token
from mainspring.compose.local import data_directory
from mainspring.compose.network import agent_tls, is_loopback
from mainspring.config import Settings


def remote_client(server: str, settings: Settings) -> Client:
    tls = None if settings.tls_ca is None else agent_tls(settings)
    if "://" not in server:
        login = find_login(logins_file(), server)
        return Client(login.url, settings.token or login.token, tls=tls)
    url = check_server(server)
    return Client(url, settings.token or _token_for(url, settings), tls=tls)


def _token_for(url: str, settings: Settings) -> str | None:
    kept = next((login.token for login in read_logins(logins_file()).values() if login.url == url), None)
    if kept is None and is_loopback(urlsplit(url).hostname or ""):
        return admin_token(data_directory(settings))
    return kept
