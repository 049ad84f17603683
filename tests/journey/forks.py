"""Forked: a process of ours for a story, forked from one that has imported Mainspring already.

For stories whose point is what processes do once they run. That commands work as programs that a shell starts is in
`test_cli_*.py` here and in tests/cli.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import mainspring

SERVER = Path(__file__).with_name("fork_server.py")
COMMAND_LINE = "mainspring.cli.main"


class Forked(subprocess.Popen[str]):
    """`python -W error -m MODULE ARGUMENTS`, as subprocess.Popen would start it with pipes for its output.

    Its parent is the fork server, which tells its exit code through a pipe.
    """

    def __init__(
        self, *arguments: str, module: str = COMMAND_LINE, cwd: str | os.PathLike[str] = ".",
        env: Mapping[str, str] | None = None, stderr: int = subprocess.PIPE,
    ) -> None:  # fmt: skip
        self._child_created, self.returncode = False, None
        self.args = (module, *arguments)
        self.stdin = self.stderr = None
        out, their_out = os.pipe()
        self.stdout = open(out)  # noqa: SIM115
        if stderr == subprocess.PIPE:
            err, their_err = os.pipe()
            self.stderr = open(err)  # noqa: SIM115
        else:
            their_err = os.dup(stderr)
        self._status, told = os.pipe()
        request = {
            "module": module,
            "arguments": arguments,
            "directory": os.path.abspath(cwd),
            "environment": dict(os.environ if env is None else env),
        }
        try:
            self.pid = _fork_server().fork(request, [their_out, their_err, told])
        finally:
            for descriptor in (their_out, their_err, told):
                os.close(descriptor)
        self._child_created = True

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, 20)
            assert told, "the fork server has gone"
            self.returncode = int(told)
            os.close(self._status)
        return self.returncode


class ForkServer:
    """The process of tests/journey/fork_server.py; it ends with this one."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", str(SERVER), str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": str(Path(mainspring.__file__).parents[1])},
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, request: Mapping[str, object], descriptors: list[int]) -> int:
        with self._asking:
            socket.send_fds(self._line, [json.dumps(request).encode()], descriptors)
            return int(self._line.recv(20))

    def close(self) -> None:
        self._line.close()
        self._process.wait()


@functools.cache
def _fork_server() -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server
