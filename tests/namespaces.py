"""Hosts on one machine: network namespaces on a bridge, whose cables can be pulled.

A partition here is what it is in a data centre: packets vanish, nobody gets a reset, and TCP goes on by itself when
the cable is back. Needs root and iproute2; tests skip with `why_not()` without them, and
the same stories run through tests/proxy.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any

_PREFIX = "mainspring"
_NETWORK = "10.213.87"  # private; the namespaces have no way out, so it disturbs nobody


class CannotMakeHosts(Exception):
    """There is no right or no tool to make network namespaces; the text says which."""


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise CannotMakeHosts(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@cache
def why_not() -> str | None:
    """Why there can be no hosts here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip` (Debian: apt-get install iproute2, or scripts/debian-network)"
    try:
        with Hosts(1):
            return None
    except CannotMakeHosts as error:
        return f"network namespaces cannot be made here: {error}"


class Host:
    """One namespace, with an address and a cable to the bridge."""

    def __init__(self, hub: str, name: str, number: int) -> None:
        self.name = name
        self.address = f"{_NETWORK}.{number}"
        self._hub = hub
        self._port = f"port{number}"

    def make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("-n", self._hub, "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("-n", self._hub, "link", "set", self._port, "master", "bridge0", "up")
        _ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.name, "link", "set", device, "up")

    def command(self, *argv: str) -> list[str]:
        """The same command on this host; the process has the id of the one that is started."""
        return ["ip", "netns", "exec", self.name, *argv]

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*argv), text=True, **options)

    def unplug(self) -> None:
        """Nothing passes to or from this host; its own link stays up, so that no program is told."""
        _ip("-n", self._hub, "link", "set", self._port, "nomaster")

    def plug(self) -> None:
        _ip("-n", self._hub, "link", "set", self._port, "master", "bridge0")

    def link_down(self) -> None:
        """The link itself goes down, as with a dead network card: programs may be told."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def link_up(self) -> None:
        _ip("-n", self.name, "link", "set", "eth0", "up")

    def deafen(self, other: Host) -> None:
        """What this host sends to the other vanishes; what the other sends still comes."""
        _ip("-n", self.name, "route", "replace", "blackhole", f"{other.address}/32")

    def hear(self, other: Host) -> None:
        _ip("-n", self.name, "route", "delete", "blackhole", f"{other.address}/32")

    def processes(self) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]


class Hosts:
    """`with Hosts(3) as [server, first, second]:` ... ; all is gone afterwards, the processes in them too."""

    def __init__(self, count: int) -> None:
        _remove_those_of_dead_runs()
        run = f"{_PREFIX}-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self._hub = f"{run}-hub"
        self._hosts = [Host(self._hub, f"{run}-{number}", number) for number in range(1, count + 1)]

    def __enter__(self) -> list[Host]:
        try:
            _ip("netns", "add", self._hub)
            _ip("-n", self._hub, "link", "add", "name", "bridge0", "type", "bridge")
            _ip("-n", self._hub, "link", "set", "bridge0", "up")
            for host in self._hosts:
                host.make()
        except BaseException:
            self.remove()
            raise
        return self._hosts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        names = _names()
        for name in [host.name for host in self._hosts] + [self._hub]:
            if name in names:
                _remove(name)


def _names() -> set[str]:
    listed: list[dict[str, Any]] = json.loads(_ip("-json", "netns", "list") or "[]")
    return {namespace["name"] for namespace in listed}


def _remove(name: str) -> None:
    """End what runs in it first: a namespace lives as long as a process does."""
    for pid in _ip("netns", "pids", name).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "delete", name)


def _remove_those_of_dead_runs() -> None:
    """A run that was killed could not clean up."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return
    for name in _names():
        parts: Sequence[str] = name.split("-")
        if len(parts) == 4 and parts[0] == _PREFIX and parts[1].isdigit() and not _alive(int(parts[1])):
            with suppress(CannotMakeHosts):  # another run does the same at this moment
                _remove(name)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
