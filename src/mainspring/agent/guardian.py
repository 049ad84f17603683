"""Guardian: a small process beside the agent, and the parent of every command the agent runs.

It starts commands when told, ends their groups, reaps them and says how they ended. As the parent
it knows each command from its first instant, so when the agent is gone, even by kill -9, nothing
that it started is left. Only a kill -9 of agent and guardian at once leaves commands running:
PR_SET_PDEATHSIG would need code between fork and exec.

A script of its own (`python -I -S`): it imports the standard library only. One JSON list a line:
  in   ["spawn", number, argv, env, cwd, stdin, marks] with two descriptors, for stdout and stderr
       ["stop", number, grace]
  out  ["started", number, pid]  ["refused", number, errno, reason, path]  ["ended", number, exit code]
Next: agent/outbox.py
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

LINGER = 0.5  # seconds between TERM and KILL for what a command leaves behind
GIVE_UP = 5.0  # seconds after KILL; what is left then can only be a zombie or stuck in the kernel
POLL = 0.01  # seconds between two looks at a group that is ending
WATCH = 1.0  # seconds between two looks at whether the agent is still our parent
NEVER = float("inf")
PR_SET_CHILD_SUBREAPER = 36


class Group:
    """One command: the process that we started, its group, and what escaped from the group."""

    __slots__ = ("asked", "exit_code", "kill_at", "marks", "number", "process")

    def __init__(self, number: int, process: subprocess.Popen[bytes], marks: list[str]) -> None:
        self.number = number
        self.process = process
        self.marks = {os.fsencode(mark) for mark in marks}
        self.asked: set[int] = set()  # what escaped from the group, and has been sent TERM
        self.exit_code: int | None = None  # of the leader, once it is reaped
        self.kill_at = NEVER  # set once: the group is being ended


class Guardian:
    def __init__(self, channel: socket.socket, agent: int) -> None:
        self.channel = channel
        self.agent = agent
        self.groups: dict[int, Group] = {}
        self.leaders: dict[int, Group] = {}  # by process id, until reaped
        self.ending: dict[int, Group] = {}
        self.buffer = bytearray()
        self.descriptors: deque[int] = deque()  # received, in the order of the lines that use them
        self.wake, wake = socket.socketpair()
        self.wake.setblocking(False)
        wake.setblocking(False)
        self._wake = wake  # kept open
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the agent is gone. Its socket says so at once; a fork of the agent that still holds
        the socket would hide it, so we also watch who our parent is."""
        try:
            while os.getppid() == self.agent and self.step():
                pass
        except ConnectionError:
            pass
        finally:  # a bug of ours too must not leave commands behind
            self.end_all()

    def step(self) -> bool:
        readable, _, _ = select.select([self.channel, self.wake], [], [], self.patience())
        if self.wake in readable:
            self.wake.recv(4096)
        if self.channel in readable and not self.receive():
            return False
        for pid, exit_code in reap(before=self.leader_exited):
            if group := self.leaders.pop(pid, None):
                group.process.returncode = group.exit_code = exit_code
        self.settle()
        return True

    def patience(self) -> float:
        if not self.ending:
            return WATCH
        if any(group.exit_code is not None for group in self.ending.values()):
            return POLL
        due = min(group.kill_at for group in self.ending.values()) - time.monotonic()
        return min(max(due, POLL), WATCH)

    # ── what the agent says ─────────────────────────────────────────────────────────────────────

    def receive(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self.channel, 65_536, 64)
        self.descriptors.extend(descriptors)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            verb, *fields = json.loads(line)
            if verb == "spawn":
                self.spawn(*fields)
            else:
                self.stop(*fields)
        return bool(data)

    def spawn(
        self,
        number: int,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        stdin: str | None,
        marks: list[str],
    ) -> None:
        stdout, stderr = self.descriptors.popleft(), self.descriptors.popleft()
        try:
            process = start(argv, env, cwd, stdin, stdout, stderr)
        except OSError as error:
            self.say("refused", number, error.errno or 0, error.strerror or str(error), error.filename)
        except ValueError as error:  # a NUL, a lone surrogate, a "=" in a variable's name
            self.say("refused", number, 0, str(error), None)
        else:
            self.groups[number] = self.leaders[process.pid] = Group(number, process, marks)
            self.say("started", number, process.pid)
        finally:
            os.close(stdout)
            os.close(stderr)

    def stop(self, number: int, grace: float) -> None:
        """TERM now, KILL after `grace`; said again, only sooner. It may have ended meanwhile, or never started."""
        group = self.groups.get(number)
        if group and group.kill_at == NEVER:
            self.end(group, grace)
        elif group:
            group.kill_at = min(group.kill_at, time.monotonic() + grace)

    def say(self, *report: Any) -> None:
        self.channel.sendall(json.dumps(report).encode() + b"\n")

    # ── how a group ends ────────────────────────────────────────────────────────────────────────

    def leader_exited(self, pid: int) -> None:
        group = self.leaders.get(pid)
        if group and group.kill_at == NEVER:
            self.end(group, LINGER)

    def end(self, group: Group, grace: float) -> None:
        group.kill_at = time.monotonic() + grace
        self.ending[group.number] = group
        signal_group(group.process.pid, signal.SIGTERM)

    def settle(self) -> None:
        """Move each ending group on, and report it once no process of it is left."""
        now = time.monotonic()
        due = [group for group in self.ending.values() if group.exit_code is not None or now >= group.kill_at]
        if not due:
            return
        orphans = {pid: variables(pid) for pid in children() if pid not in self.leaders}
        for group in due:
            if now >= group.kill_at:
                signal_group(group.process.pid, signal.SIGKILL)
            if group.exit_code is None:
                continue
            # Left its group by setsid(), but not the variables that it was started with.
            escaped = {pid for pid, its in orphans.items() if group.marks <= its}
            self.signal_escaped(group, escaped, kill=now >= group.kill_at)
            # The leader is reaped, but its number stays taken as long as the group has a member.
            # An empty group is reported at once, so we never signal a number that is another's by then.
            alive = escaped or signal_group(group.process.pid, 0)
            if not alive or now >= group.kill_at + GIVE_UP:
                del self.ending[group.number], self.groups[group.number]
                self.say("ended", group.number, group.exit_code)

    def signal_escaped(self, group: Group, escaped: set[int], *, kill: bool) -> None:
        """They are our children, and reaped by us: their numbers cannot be another's."""
        for pid in escaped if kill else escaped - group.asked:
            with suppress(PermissionError):
                os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        group.asked |= escaped

    def end_all(self) -> None:
        for group in self.groups.values():
            signal_group(group.process.pid, signal.SIGKILL)
        give_up_at = time.monotonic() + GIVE_UP
        while (left := children()) and time.monotonic() < give_up_at:
            for pid in left:
                with suppress(PermissionError, ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for _ in reap(before=lambda _: None):
                pass
            time.sleep(POLL)


def start(
    argv: list[str], env: dict[str, str], cwd: str | None, stdin: str | None, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    """Text for stdin goes through a file: a command that never reads it then blocks nobody."""
    with tempfile.TemporaryFile() if stdin is not None else open(os.devnull, "rb") as source:
        if stdin is not None:
            source.write(stdin.encode("utf-8", "surrogateescape"))
            source.seek(0)
        return subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=source, stdout=stdout, stderr=stderr, start_new_session=True
        )


def signal_group(pid: int, number: int) -> bool:
    """True if the group had a process that we may signal (a zombie counts as one)."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reap(*, before: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """Reap each child that has exited; `before` is called while its process id is still taken."""
    with suppress(ChildProcessError):
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: an instant after it, not before
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                before(reaped[0])
                yield reaped[0], os.waitstatus_to_exitcode(reaped[1])
            return
        while exited := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            before(exited.si_pid)
            pid, status = os.waitpid(exited.si_pid, 0)
            yield pid, os.waitstatus_to_exitcode(status)


def children() -> list[int]:
    """Ours, and as we are their reaper the orphans of commands too. Elsewhere than on Linux those
    go to process 1, and what leaves its group is out of our sight."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def variables(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def prepare(open_files: int) -> None:
    """What commands inherit from us is as if a login had started them."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Popen resets those two itself
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Whoever stops the agent may signal us too; the agent decides when we end. A handler, as
    # unlike SIG_IGN it is not inherited.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    prepare(open_files=int(sys.argv[2]))
    Guardian(socket.socket(fileno=0), agent=int(sys.argv[1])).serve()
