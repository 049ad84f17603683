"""Secrets: those that the jobs of a claim refer to, decrypted for as long as it takes to send them to their agents.

They are read from the database for each claim, so a changed secret counts from the next dispatch on, on every server.
Reads   store.access.secrets
Next:   server/agents/gateway.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from mainspring.errors import AccessDenied, SecretUnavailable, ValidationError
from mainspring.model.messages import JobSecrets
from mainspring.model.secrets.encryption import unseal
from mainspring.model.secrets.keys import NO_KEYS, Keys
from mainspring.store.access import secrets
from mainspring.store.postgres.connection import Connection

ReadKeys = Callable[[], Keys]  # raises what a file of keys that cannot be used is refused with


def no_keys() -> Keys:
    return NO_KEYS


class Opened(NamedTuple):
    """A secret, or why it cannot be had."""

    value: str
    labels: Mapping[str, str]  # that an agent must have to get it
    problem: str | None = None


class OpenSecrets:
    """`wanted` has the names by job."""

    def __init__(self, wanted: Mapping[int, Set[str]], opened: Mapping[str, Opened]) -> None:
        self._wanted = wanted
        self._opened = opened

    def __repr__(self) -> str:
        return f"OpenSecrets({', '.join(sorted(self._opened))})"

    def for_agent(self, name: str, labels: Mapping[str, str]) -> dict[int, JobSecrets]:
        """By job, what the agent of this name gets, and of the rest why not."""
        found = {}
        for job, names in self._wanted.items():
            mine = found[job] = JobSecrets(job, {}, {})
            for secret in names:
                opened = self._opened[secret]
                if (problem := opened.problem or _lacks(secret, opened.labels, name, labels)) is None:
                    mine.values[secret] = opened.value
                else:
                    mine.withheld[secret] = problem
        return found

    def value(self, name: str) -> str:
        """For a server itself. Raises SecretUnavailable."""
        opened = self._opened[name]
        if opened.problem is not None:
            raise SecretUnavailable(opened.problem)
        return opened.value


def _lacks(secret: str, wanted: Mapping[str, str], agent: str, labels: Mapping[str, str]) -> str | None:
    if wanted.items() <= labels.items():
        return None
    told = ", ".join(f"{label}={value}" for label, value in wanted.items())
    return (
        f"secret {secret!r} is for agents with the labels {told}, and agent {agent!r} does not have them;"
        " let the job require them"
    )


async def open_secrets(conn: Connection, keys: ReadKeys, wanted: Mapping[int, Set[str]]) -> OpenSecrets:
    """Read and decrypt what these jobs refer to. One that cannot be had fails the attempts that need it."""
    names = sorted(set().union(*wanted.values()))
    stored = {each.name: each for each in await secrets.sealed(conn, names)}
    held, broken = NO_KEYS, None
    try:
        held = await asyncio.to_thread(keys)  # it reads files
    except (ValidationError, AccessDenied, OSError) as error:
        broken = f"the keys of secrets cannot be read: {error}"
    return OpenSecrets(wanted, {name: _open(name, stored.get(name), held, broken) for name in names})


def _open(name: str, stored: secrets.Stored | None, keys: Keys, broken: str | None) -> Opened:
    if stored is None:
        return Opened("", {}, f"there is no secret {name!r}; `mainspring secret set {name}` makes one")
    if broken is not None:
        return Opened("", {}, broken)
    try:
        return Opened(unseal(keys, name, stored.version, stored.sealed), stored.labels)
    except SecretUnavailable as error:
        return Opened("", {}, error.message)
