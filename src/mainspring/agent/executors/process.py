"""Processes: the agent's side of the guardian. Start a command, stop it, learn how it ended.

The guardian, not the agent, is the parent of every command: it outlives the agent, so a command never runs without a
parent that ends it. And the loop that fires timers must not wait for a start. Lateness, median and p99, of 300
starts of `true` (an agent of 200 MB, two cores): 24 and 32 ms with uvloop's spawn, which forks on the loop's thread
and slows with the agent's size; 3 and 6 ms with asyncio's; 0.4 and 2.4 ms with subprocess.Popen in threads, which
holds the interpreter's lock until exec; 0.2 and 2.2 ms here, output and exit included. What is left is the two cores
being busy: no callback takes more than 0.3 ms.
Next: agent/guardian/guardian.py
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring.agent.executors.capture import Capture
from mainspring.agent.executors.pipes import Pipes
from mainspring.agent.executors.program import INHERITED, Program
from mainspring.agent.guardian.privacy import forbid_dumps

INTERPRETER = (sys.executable, "-I", "-S", "-X", "utf8")  # isolated, without site: light to start
GUARDIAN = (
    "import sys; sys.path.append(sys.argv[1]); from mainspring.agent.guardian.guardian import main; main(*sys.argv[2:])"
)
ROOT = str(Path(__file__).parents[3])  # where this package is found
VARIABLES = (*INHERITED, "LD_LIBRARY_PATH")  # of the guardian; commands get the first ones anyway
STARTS = 4  # in flight at once: a burst of a thousand is spread over turns of the loop
LOST = "the guardian of this agent's commands died"


class GuardianLost(Exception):
    """The guardian died; the commands that it had started are killed."""


class LeaseExpired(Exception):
    """The agent's lease expired first: the guardian killed the command, or did not start it."""


@dataclass(eq=False)
class Child:
    """`exit` becomes the exit code (negative: a signal) once no process of the command is left, an OSError if the
    system refused to start it, or LeaseExpired."""

    guardian: GuardianProcess
    number: int
    program: Program
    pipes: Pipes
    exit: asyncio.Future[int]
    pid: int | None = None

    def stop(self, grace: float) -> None:
        """TERM to the whole group, KILL after `grace` seconds. A later stop can only shorten the grace."""
        self.guardian.send(["stop", self.number, grace])

    def pause(self, *, resume: bool) -> None:
        """Stop or continue all of its processes."""
        self.guardian.send(["pause", self.number, resume])

    def discard(self) -> None:
        """Kill it; ignore its exit and its output."""
        self.pipes.discard()
        self.stop(0.0)
        self.exit.add_done_callback(lambda exit: exit.exception())  # retrieved, so that asyncio does not log it


class GuardianProcess:
    """A guardian and the channel to it. Messages are queued at once and handled in order, so a stop that follows a
    spawn always finds the command: a cancelled caller leaks nothing. The constructor raises OSError when descriptors or
    processes run out."""

    def __init__(self, open_files: int, until: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, Child] = {}
        self._last_number = 0
        self._starts = asyncio.Semaphore(STARTS)
        self._lines: deque[tuple[bytearray, list[int]]] = deque()  # with the descriptors that go along
        self._writing = threading.Lock()  # the watchdog's thread sends `until` while the loop is blocked
        self._thread = threading.get_ident()
        self._buffer = b""
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        forbid_dumps()  # a command of the same user must not read the agent's secrets, nor the guardian's
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*INTERPRETER, "-c", GUARDIAN, ROOT, str(os.getpid()), str(open_files)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in VARIABLES if name in os.environ},
                    start_new_session=True,  # Ctrl-C is for the agent
                )
            except OSError:
                self._channel.close()
                raise
        self.alive = True
        self._loop.add_reader(self._channel, self._receive)
        if until is not None:
            self.hold_until(until)

    def hold_until(self, at: float) -> None:
        """The guardian kills every command at this boot time, unless a later one follows. From any thread."""
        if threading.get_ident() == self._thread:
            self.send(["until", at])
            return
        self._lines.append((_line(["until", at]), []))
        with suppress(OSError):  # the loop learns of it when it is back
            self._write()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._flush)

    async def spawn(self, program: Program, capture: Capture) -> Child:
        """Start a command in a new session. A caller cancelled in here has started nothing.
        Raises OSError when descriptors run out."""
        await self._starts.acquire()
        try:
            if not self.alive:
                raise GuardianLost(LOST)
            pipes = Pipes(capture, prewarmed=program.prewarmed)
        except BaseException:
            self._starts.release()
            raise
        self._last_number += 1
        child = Child(self, self._last_number, program, pipes, self._loop.create_future())
        self._children[child.number] = child
        self.send(["spawn", child.number, vars(program)], *pipes.command_ends)
        return child

    async def close(self) -> None:
        """End the guardian, which kills every command."""
        self._lose()
        await asyncio.to_thread(self._process.wait)

    def send(self, message: list[object], *descriptors: int) -> None:
        self._lines.append((_line(message), list(descriptors)))
        self._flush()

    def _write(self) -> None:
        """Write the lines in their order. Raises OSError: BlockingIOError if the guardian does not read."""
        with self._writing:
            while self.alive and self._lines:
                line, descriptors = self._lines[0]
                sent = socket.send_fds(self._channel, [line], descriptors)
                _close(descriptors)
                del line[:sent]
                if not line:
                    self._lines.popleft()

    def _flush(self) -> None:
        try:
            self._write()
        except BlockingIOError:
            self._loop.add_writer(self._channel, self._flush)
        except OSError:
            self._died()
        else:
            if self.alive:
                self._loop.remove_writer(self._channel)

    def _receive(self) -> None:
        try:
            data = self._channel.recv(65_536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._died()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle(*json.loads(line))

    def _handle(self, verb: str, number: int, *fields: Any) -> None:
        if verb != "ended":
            self._starts.release()
        if verb == "started":
            self._children[number].pid = fields[0]
            return
        exit = self._children.pop(number).exit
        if verb == "refused":
            exit.set_exception(OSError(*fields))
        elif verb == "expired" or fields[1]:
            exit.set_exception(LeaseExpired())
        else:
            exit.set_result(fields[0])

    def _died(self) -> None:
        self._lose()
        self._process.kill()  # it closed its end, so it has exited or is about to: the wait is short
        self._process.wait()

    def _lose(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        with self._writing:
            self._channel.close()
            for _, descriptors in self._lines:
                _close(descriptors)
        for child in self._children.values():
            if child.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            else:
                self._starts.release()
            child.exit.set_exception(GuardianLost(LOST))
        self._children.clear()


def _line(message: list[object]) -> bytearray:
    return bytearray(json.dumps(message).encode() + b"\n")


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
