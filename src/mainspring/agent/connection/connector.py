"""Connector: connects to the servers of the list in turn.

Next: wire/websocket.py
"""

from __future__ import annotations

import logging
import random
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from websockets.asyncio.client import connect as _connect
from websockets.exceptions import InvalidMessage, InvalidStatus, WebSocketException

from mainspring.errors import AccessDenied, ValidationError, shown
from mainspring.model.messages import AgentMessage, ServerMessage
from mainspring.wire.channel import Channel, ChannelBusy, ChannelClosed
from mainspring.wire.websocket import KEEP, MAX_FRAME, PATH, WebSocketChannel

log = logging.getLogger("mainspring")

DIAL_WITHIN = 5.0  # seconds

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


class connect(_connect):
    """Follows no redirect: the agent speaks to the servers that it was given, and to no other."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


def server_urls(text: str) -> list[str]:
    """The URLs of a list such as `ws://a:7070,wss://b`, also with http, https or only host:port."""
    urls = []
    for given in filter(None, (part.strip() for part in text.split(","))):
        try:
            parts = urlsplit(given if "://" in given else f"ws://{given}")
            scheme, port, is_plain = _SCHEMES.get(parts.scheme), parts.port, not parts.username and not parts.query
        except ValueError:  # a bracket that is not closed, a port that is no number
            scheme = None
        if scheme is None or not parts.hostname or not is_plain:
            raise ValidationError(f"server: {shown(given)}; write ws://host:7070, or wss:// with TLS", field="server")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        urls.append(f"{scheme}://{host}{f':{port}' if port else ''}{PATH}")
    if not urls:
        raise ValidationError("server: name at least one, such as ws://host:7070", field="server")
    return urls


class Connector:
    def __init__(self, urls: Sequence[str], token: str, tls: ssl.SSLContext | None = None) -> None:
        self._urls = urls
        self._token = token
        self._tls = tls
        self._next = random.randrange(len(urls))  # so that agents spread over the servers
        self.url = ""  # of the last server that answered
        self._is_quiet = False
        self._refusals = 0  # in a row

    def beside(self) -> Connector:
        """Another one, to renew the session. It begins with the last server that answered this one."""
        urls = sorted(self._urls, key=lambda url: url != self.url)
        other = Connector([f"{url}?{KEEP}" for url in urls], self._token, self._tls)
        other._next, other._is_quiet = 0, True
        return other

    async def __call__(self, credential: str | None) -> Channel[AgentMessage, ServerMessage]:
        """A connection to the next server. Raises AccessDenied once every server in a row has refused."""
        url = self._urls[self._next % len(self._urls)]
        self._next += 1
        try:
            socket = await connect(
                url,
                additional_headers={"Authorization": f"Bearer {credential or self._token}"},
                ssl=self._tls if url.startswith("wss:") else None,
                compression=None,
                max_size=MAX_FRAME,
                ping_interval=None,
                open_timeout=DIAL_WITHIN,
                close_timeout=1,
                proxy=None,
                user_agent_header=None,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status in (401, 403):
                why = "it is unknown, revoked, or of another role than agent"
                advice = "make one with `mainspring token create NAME` on the server's side"
                raise self._refused(f"{url} refuses the token: {why}; {advice}") from None
            if status == 503:
                self.url = url
                raise ChannelBusy(f"{url} takes no connection now") from None
            raise ChannelClosed(f"{url} answers with HTTP status {status}") from None
        except ssl.SSLCertVerificationError as error:
            advice = "is it signed by the authority that --tls-ca names?"
            raise self._refused(
                f"{url} shows a certificate that is not trusted: {error.verify_message}; {advice}"
            ) from None
        except InvalidMessage:
            raise ChannelClosed(
                f"{url} does not speak WebSocket; is it a server of ours, and wss:// if it has TLS?"
            ) from None
        except ssl.SSLError:
            raise ChannelClosed(f"{url} does not speak TLS; is it ws://?") from None
        except (OSError, TimeoutError, WebSocketException) as error:  # also a reset before the first byte
            raise ChannelClosed(f"{url} cannot be reached ({str(error) or type(error).__name__})") from None
        self._refusals = 0
        self.url = url
        if not self._is_quiet:
            log.info("connected to %s", url)
        return WebSocketChannel(socket, ServerMessage)

    def _refused(self, message: str) -> AccessDenied | ChannelClosed:
        """AccessDenied only once every server has refused."""
        self._refusals += 1
        return AccessDenied(message) if self._refusals >= len(self._urls) else ChannelClosed(message)
