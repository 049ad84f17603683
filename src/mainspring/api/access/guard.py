"""Guard: who calls, by a token, by the cookie of a console session, or as the application says that mounts us.

What was found is believed for a second, so that a revoked token is void on every server within two. While PostgreSQL
does not answer, those who ask how things are (metrics, health) are believed longer: that is when they need to know.
Reads   store.access.tokens, store.access.sessions
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from mainspring.api.access.bounds import Bounds
from mainspring.api.access.buckets import Buckets
from mainspring.api.access.origins import Origin, Origins
from mainspring.errors import Forbidden, MainspringError, StoreUnavailable, Unauthorized
from mainspring.model.access.actors import Access, Actor, Role
from mainspring.operations import Connections
from mainspring.store.access import sessions, tokens
from mainspring.store.cluster.settings import database_id

log = logging.getLogger("mainspring")

BELIEVED = 1.0  # seconds
BELIEVED_OFFLINE = 900.0  # seconds, while PostgreSQL does not answer
PATIENCE_OFFLINE = 1.0  # seconds for PostgreSQL to answer, where the caller is believed without
NOTE_EVERY = 10.0  # seconds between notes of which tokens were used
MOST_REMEMBERED = 10_000
SAFE = ("GET", "HEAD", "OPTIONS")
MOST_COOKIES = 8192  # characters of the header


Authorize = Callable[[Any], Access | Awaitable[Access | None] | None]


class Caller(NamedTuple):
    actor: Actor
    identity: str  # whose idempotency keys, rates and streams count together
    csrf: str | None = None  # of a session; None: it came with a token
    rate: float | None = None  # requests a second; None: as many as it likes


class Guard:
    """`authorize` replaces tokens and sessions where the API is mounted in another application.

    `count` gets the reason why a request had no valid access, for the metrics.
    """

    def __init__(
        self,
        connections: Connections,
        origins: Origins,
        *,
        authorize: Authorize | None = None,
        bounds: Bounds | None = None,
        count: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._connections = connections
        self._origins = origins
        self._authorize = authorize
        self._known: dict[bytes, tuple[float, Caller]] = {}  # with the time at which PostgreSQL was asked
        self._lookups: dict[bytes, asyncio.Future[StoreUnavailable | None]] = {}  # under way, and how they fail
        bounds = bounds or Bounds()
        self._rate = bounds.rate
        self._failures = Buckets(bounds.failures / 60, bounds.failures)
        self._used: dict[int, None] = {}
        self._noting: asyncio.Task[None] | None = None
        self._count = count
        self._mounted_key: bytes | None = None  # a script of another origin cannot read it, nor what is made with it

    async def caller(
        self,
        scope: Any,
        headers: Mapping[str, str],
        origin: Origin,
        request_id: str,
        *,
        guesses: bool = True,
        offline: bool = False,
    ) -> Caller:
        """Raises Unauthorized for an unknown caller, RateLimited for an address that guesses.

        `offline`: one that was known lately is believed while PostgreSQL does not answer.
        """
        if self._authorize is not None:
            return await self._mounted(scope, origin, request_id)
        given = headers.get("authorization")
        secret = _bearer(given) if given is not None else _cookie(headers, origin.cookie)
        if secret is None:
            self._count("malformed" if given is not None else "missing")
            raise Unauthorized(
                "no token; send the header `Authorization: Bearer ms_…` (`mainspring token create NAME --role viewer` "
                "makes one), or log in with `mainspring login`"
            )
        kind = b"token " if given is not None else b"cookie "
        key = hashlib.sha256(kind + secret.encode(errors="surrogateescape")).digest()
        found = self._known.get(key)
        if found is None or monotonic() - found[0] > BELIEVED:
            find = partial(self._find, secret, is_token=given is not None, origin=origin, guesses=guesses)
            if offline and found is not None and monotonic() - found[0] < BELIEVED_OFFLINE:
                found = await self._find_or_believe(key, find, found)
            else:
                found = await self._found(key, find)
        caller = found[1]
        actor = msgspec.structs.replace(caller.actor, address=origin.address, request_id=request_id)
        return caller._replace(actor=actor)

    async def _found(self, key: bytes, find: Callable[[], Awaitable[Caller]]) -> tuple[float, Caller]:
        """What `find` finds, and when. Requests with one secret that come at once share a lookup, and its failure: a
        server that was restarted gets all the streams of a token in one moment."""
        came = monotonic()
        while (lookup := self._lookups.get(key)) is not None:
            if (failure := await asyncio.shield(lookup)) is not None:
                raise failure.with_traceback(None)
            if (known := self._known.get(key)) is not None and came - known[0] < BELIEVED:
                return known
        lookup = self._lookups[key] = asyncio.get_running_loop().create_future()
        failure = None  # also of a lookup that is given up: then another request makes its own
        try:
            found = (monotonic(), await find())
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = found
            return found
        except Unauthorized:
            self._known.pop(key, None)
            raise
        except StoreUnavailable as error:
            failure = error
            raise
        finally:
            del self._lookups[key]
            lookup.set_result(failure)

    async def _find_or_believe(
        self, key: bytes, find: Callable[[], Awaitable[Caller]], known: tuple[float, Caller]
    ) -> tuple[float, Caller]:
        try:
            async with asyncio.timeout(PATIENCE_OFFLINE):
                return await self._found(key, find)
        except (StoreUnavailable, TimeoutError):
            return known

    async def _find(self, secret: str, *, is_token: bool, origin: Origin, guesses: bool) -> Caller:
        async with self._connections.acquire() as conn:
            found = await (tokens.find(conn, secret) if is_token else sessions.find(conn, secret))
        if found is None:
            if guesses:  # only the guessing caller waits: others behind the same address may have a valid token
                self.check_failures(origin)
                self.count_failure(origin)
            raise Unauthorized(
                "no valid token: it is unknown, expired or revoked; `mainspring token create NAME --role …` makes one"
                if is_token
                else "no valid session: it has ended or was revoked; `mainspring login` makes a new link"
            )
        if isinstance(found, sessions.Session):
            return Caller(found.acting(), f"session/{found.id}", csrf=sessions.csrf(secret), rate=self._rate)
        self._note_used(found.id)
        rate = self._rate if found.rate is None and found.role is Role.VIEWER else found.rate
        return Caller(found.acting(), f"token/{found.id}", rate=rate)

    async def still_valid(self, caller: Caller, scope: Any, headers: Mapping[str, str], origin: Origin) -> bool:
        """Whether a caller whose stream is open may still read it. That it asks is no attempt to guess a token."""
        try:
            now = await self.caller(scope, headers, origin, caller.actor.request_id or "", guesses=False)
        except Unauthorized:
            return False
        except MainspringError:  # PostgreSQL does not answer: nothing was revoked meanwhile
            return True
        return now.actor.role == caller.actor.role and now.actor.jobs == caller.actor.jobs

    async def _mounted(self, scope: Any, origin: Origin, request_id: str) -> Caller:
        assert self._authorize is not None
        answered = self._authorize(scope)
        access = await answered if isawaitable(answered) else answered
        if access is None:
            self._count("refused")
            raise Unauthorized("the application does not know you; log in there")
        if not isinstance(access, Access):
            raise TypeError(f"authorize(scope) returned {access!r}; return mainspring.Access(actor, role) or None")
        actor = Actor(access.actor, Role(access.role), tuple(access.jobs), origin.address, request_id)
        if self._mounted_key is None:
            async with self._connections.acquire() as conn:
                self._mounted_key = (await database_id(conn)).bytes
        csrf = hmac.digest(self._mounted_key, access.actor.encode(errors="replace"), "sha256").hex()
        return Caller(actor, f"mounted/{access.actor}", csrf=csrf, rate=self._rate)

    def check_csrf(self, caller: Caller, method: str, headers: dict[str, str], origin: Origin) -> None:
        """A browser sends its cookie for any page that asks it to; a token is sent on purpose."""
        is_bearer = headers.get("authorization", "").lower().startswith("bearer ")  # Basic, browsers send by themselves
        if caller.csrf is None or method in SAFE or (self._authorize is not None and is_bearer):
            return
        self._origins.check_same(origin, headers)
        if not hmac.compare_digest(headers.get("mainspring-csrf", "").encode(), caller.csrf.encode()):
            raise Forbidden(
                "mainspring-csrf: missing or wrong; GET /session tells the value for this session",
                field="mainspring-csrf",
            )

    def check_failures(self, origin: Origin) -> None:
        """RateLimited for an address that has guessed too often."""
        self._failures.check(origin.address, "too many failed logins from this address")

    def count_failure(self, origin: Origin) -> None:
        self._failures.take(origin.address)
        self._count("unknown")

    def forget(self, identity: str) -> None:
        """What was believed of a caller is void: it logged out."""
        self._known = {key: found for key, found in self._known.items() if found[1].identity != identity}

    # ── when a token was used last ──────────────────────────────────────────────────────────────

    def _note_used(self, token: int) -> None:
        self._used[token] = None
        if self._noting is None or self._noting.done():
            self._noting = asyncio.create_task(self._note_soon(), name="mainspring tokens used")

    async def _note_soon(self) -> None:
        await asyncio.sleep(NOTE_EVERY)
        await self._write_used()

    async def close(self) -> None:
        """Note what was used since the last time."""
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait([self._noting])
        if self._used:
            await self._write_used()

    async def _write_used(self) -> None:
        used, self._used = list(self._used), {}
        try:
            async with self._connections.acquire() as conn:
                await tokens.note_used(conn, used)
        except MainspringError as error:  # the next use notes it again
            log.debug("which tokens were used could not be noted: %s", error)


def _bearer(given: str) -> str | None:
    scheme, _, secret = given.partition(" ")
    secret = secret.strip()
    return secret if scheme.lower() == "bearer" and 0 < len(secret) <= 500 and secret.isascii() else None


def _cookie(headers: Mapping[str, str], given: str) -> str | None:
    """The secret of a session, in the cookie `given`.

    Cookies of other applications on this host come along, some of which no parser likes.
    """
    jar: dict[str, str] = {}
    for part in headers.get("cookie", "")[:MOST_COOKIES].split(";"):
        name, _, value = part.strip().partition("=")
        jar.setdefault(name, value.strip('"'))
    names = (f"__Host-{given}", f"__Secure-{given}", given)  # what another site cannot set comes first
    return next((jar[name] for name in names if jar.get(name)), None)
