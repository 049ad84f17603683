"""Guardian: a small process beside the agent, the parent of every command.

It starts commands, pauses and ends their groups, reaps them and reports how they ended. As the parent it knows each
command from its first instant: when the agent exits, even by kill -9, the guardian kills every command. Only a kill -9
of agent and guardian at once leaves commands running: PR_SET_PDEATHSIG would need code between fork and exec. The agent
sends the instant until which its lease holds; past it the guardian kills every command, even if the agent is frozen.

It runs as `python -I -S`, and imports the standard library and this room only. One JSON list per line:
  in   ["spawn", number, program] with descriptors for stdout and stderr, and for the start pipe if it has one
       ["stop", number, grace]  ["pause", number, resume]  ["until", boot time]
  out  ["started", number, pid]  ["refused", number, errno, reason, path]  ["expired", number]
       ["ended", number, exit code, whether the lease was over]
Next: agent/guardian/launch.py
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from typing import Any

from mainspring.agent.guardian.groups import NEVER, Group, children, descendants, reap, signal_process
from mainspring.agent.guardian.launch import launch
from mainspring.agent.guardian.marks import Marks, mark_of
from mainspring.agent.guardian.privacy import forbid_dumps

LINGER = 0.5  # seconds between TERM and KILL for processes that outlive their command
GIVE_UP = 5.0  # seconds after KILL; a process that is left then is a zombie or stuck in the kernel
DROPPED = -1  # in place of descriptors that could not be received
POLL = 0.01  # seconds between two checks of a group that is ending
WATCH = 1.0  # seconds between two checks whether the agent is still the parent, and for strays
PR_SET_CHILD_SUBREAPER = 36

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Guardian:
    def __init__(self, channel: socket.socket, agent: int) -> None:
        self.channel = channel
        self.agent = agent
        self.until = NEVER  # boot time at which the agent's lease expires
        self.groups: dict[int, Group] = {}
        self.leaders: dict[int, Group] = {}  # by process id, until reaped
        self.ending: dict[int, Group] = {}
        self.marks = Marks()
        self.strays: dict[int, float] = {}  # orphans of no group, and when each was first killed
        self.look_at = 0.0  # when to look for strays, though no group is ending
        self.incoming = bytearray()
        self.outgoing = bytearray()  # a frozen agent reads nothing, and must not block the guardian
        self.descriptors: deque[int] = deque()  # received, in the order of the lines that use them
        self.wake, wake = socket.socketpair()
        self.wake.setblocking(False)
        wake.setblocking(False)
        self._wake = wake  # kept open
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the agent exits. That closes its socket, unless a fork of the agent still holds it: so the parent's
        process id is checked too."""
        try:
            while os.getppid() == self.agent and self.step():
                pass
        except ConnectionError:
            pass
        finally:  # a bug in the guardian must not leave commands behind either
            self.kill_all()

    def step(self) -> bool:
        writers = [self.channel] if self.outgoing else []
        readable, _, _ = select.select([self.channel, self.wake], writers, [], self.wait_time())
        if self.wake in readable:
            self.wake.recv(4096)
        if self.channel in readable and not self.receive():
            return False
        self.kill_expired()
        for pid, exit_code in reap(before=self.leader_exited):
            if group := self.leaders.pop(pid, None):
                group.process.returncode = group.exit_code = exit_code
        self.advance_ending()
        self.flush()
        return True

    def wait_time(self) -> float:
        longest = WATCH
        if self.groups and not self.lease_expired():
            longest = min(longest, max(self.until - time.clock_gettime(_BOOT), 0.0))
        if not self.ending:
            return longest
        if any(group.exit_code is not None for group in self.ending.values()):
            return min(longest, POLL)
        due = min(group.kill_at for group in self.ending.values()) - time.monotonic()
        return min(longest, max(due, POLL))

    # ── messages from and to the agent ──────────────────────────────────────────────────────────

    def receive(self) -> bool:
        data, descriptors, flags, _ = socket.recv_fds(self.channel, 65_536, 64)
        if flags & socket.MSG_CTRUNC:  # out of descriptors: the kernel dropped some. One read has those of one line.
            for descriptor in descriptors:
                os.close(descriptor)
            descriptors = [DROPPED]
        self.descriptors.extend(descriptors)
        self.incoming += data
        *lines, self.incoming = self.incoming.split(b"\n")
        for line in lines:
            match json.loads(line):
                case "spawn", number, program:
                    self.spawn(number, program)
                case "stop", number, grace:
                    self.stop(number, grace)
                case "pause", number, resume:
                    self.pause(number, resume=resume)
                case "until", at:
                    self.until = at
        return bool(data)

    def spawn(self, number: int, program: dict[str, Any]) -> None:
        if self.descriptors[0] == DROPPED:
            self.descriptors.popleft()
            self.send("refused", number, errno.EMFILE, os.strerror(errno.EMFILE), None)
            return
        stdout, stderr = self.descriptors.popleft(), self.descriptors.popleft()
        start_pipe = self.descriptors.popleft() if program["prewarmed"] else None
        try:
            if self.lease_expired():
                self.send("expired", number)
                return
            mark = self.marks.set(number)
            process = launch(program, stdout, stderr, start_pipe)
        except OSError as error:
            self.send("refused", number, error.errno or 0, error.strerror or str(error), error.filename)
        except (ValueError, subprocess.SubprocessError) as error:  # a NUL, a lone surrogate, a "=" in a variable's name
            self.send("refused", number, 0, str(error), None)
        else:
            self.groups[number] = self.leaders[process.pid] = Group(number, process, mark)
            self.send("started", number, process.pid)
        finally:
            for descriptor in (stdout, stderr, start_pipe):
                if descriptor is not None:
                    os.close(descriptor)

    def stop(self, number: int, grace: float) -> None:
        """TERM now, KILL after `grace`; a second stop can only shorten it. Ignored once the group has ended."""
        group = self.groups.get(number)
        if group and group.kill_at == NEVER:
            self.end(group, grace)
        elif group:
            group.kill_at = min(group.kill_at, time.monotonic() + grace)

    def pause(self, number: int, *, resume: bool) -> None:
        """SIGSTOP or SIGCONT to all its processes. A group that is being ended is not paused."""
        group = self.groups.get(number)
        if group and group.kill_at == NEVER:
            group.pause(resume=resume)

    def send(self, *report: Any) -> None:
        self.outgoing += json.dumps(report).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self.outgoing:
                sent = self.channel.send(self.outgoing, socket.MSG_DONTWAIT)
                del self.outgoing[:sent]
        except BlockingIOError:
            pass  # sent when the agent reads again

    # ── how a group ends ────────────────────────────────────────────────────────────────────────

    def leader_exited(self, pid: int) -> None:
        group = self.leaders.get(pid)
        if group and group.kill_at == NEVER:
            self.end(group, LINGER)

    def end(self, group: Group, grace: float) -> None:
        self.ending[group.number] = group
        group.end(time.monotonic() + grace)

    def lease_expired(self) -> bool:
        return time.clock_gettime(_BOOT) >= self.until

    def kill_expired(self) -> None:
        """Once the agent's lease has expired, its tasks may start elsewhere: kill every process below the guardian."""
        if not self.groups or not self.lease_expired():
            return
        now = time.monotonic()
        for group in self.groups.values():
            if not group.expired:
                group.expired = group.exit_code is None
                group.kill_at = min(group.kill_at, now)
                self.ending[group.number] = group
            group.kill()
        for pid in descendants(*children()):
            signal_process(pid, signal.SIGKILL)

    def advance_ending(self) -> None:
        """Kill ending groups that are due, and strays; report each group once no process of it is left."""
        now = time.monotonic()
        due = [group for group in self.ending.values() if group.exit_code is not None or now >= group.kill_at]
        if not due and now < self.look_at:
            return
        self.look_at = now + WATCH
        for group in due:
            if now >= group.kill_at:
                group.kill()
        escaped, stray_left = self.signal_orphans(now)
        for group in due:
            if group.exit_code is None:
                continue
            # The leader is reaped, but its id stays taken as long as the group has a member. An empty group is
            # reported at once, so the guardian never signals an id that was reused.
            is_left = group.number in escaped or stray_left or group.is_alive()
            if not is_left or now >= group.kill_at + GIVE_UP:
                del self.ending[group.number], self.groups[group.number]
                self.send("ended", group.number, group.exit_code, group.expired)

    def signal_orphans(self, now: float) -> tuple[set[int], bool]:
        """Orphans of commands are children of the guardian. One with the mark of a group ends with that group. A stray,
        which has the mark of no living group, is killed at once: its command is over, or it changed its mark.

        Each is signalled as it is read, before it can fork and exit. Returns the numbers of the ending groups that have
        orphans, and whether a stray is left that can be killed."""
        by_mark = {group.mark: group for group in self.groups.values()}
        escaped: set[int] = set()
        strays: dict[int, float] = {}
        stray_left = False
        for pid in children():
            if pid in self.leaders:
                continue
            mark = mark_of(pid)
            group = by_mark.get(mark)
            if group is not None:
                if group.exit_code is not None:
                    group.signal_escaped(pid, kill=now >= group.kill_at)
                    escaped.add(group.number)
            elif mark is not None or not self.groups:  # one that cannot be read may belong to any group
                strays[pid] = self.strays.get(pid, now)
                stray_left |= signal_process(pid, signal.SIGKILL) and now < strays[pid] + GIVE_UP
        self.strays = strays
        return escaped, stray_left

    def kill_all(self) -> None:
        for group in self.groups.values():
            group.kill()
        give_up_at = time.monotonic() + GIVE_UP
        while (left := children()) and time.monotonic() < give_up_at:
            for pid in left:
                signal_process(pid, signal.SIGKILL)
            for _ in reap(before=lambda _: None):
                pass
            time.sleep(POLL)


def prepare(open_files: int) -> None:
    """Commands inherit signals, umask and limits as from a login, and can read nothing of the guardian."""
    forbid_dumps()
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Popen resets those two itself
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # A signal to the agent's group may reach the guardian too; only the agent's exit ends it. A handler, because
    # unlike SIG_IGN it is not inherited.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(agent: str, open_files: str) -> None:
    """Serve the process `agent`, whose channel is the standard input."""
    prepare(int(open_files))
    Guardian(socket.socket(fileno=0), int(agent)).serve()
