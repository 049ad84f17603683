"""The server that `--server URL|NAME` names, and the token for it.

Next: client/remote.py
"""

from __future__ import annotations

from mainspring.client.remote import Client
from mainspring.config import Settings


def remote_client(server: str, settings: Settings) -> Client:
    return Client(server, settings.token)
