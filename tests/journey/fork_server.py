"""Forks processes that have imported Mainspring already: to import it takes longer than most of them run.

A file that is run by its path, as one process for each process of a test run (tests/journey/forks.py). It answers each
request on its socket with a pid. The last descriptor of a request is written to once the process has ended.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from typing import Any, NoReturn

import mainspring.agent.agent
import mainspring.api.make
import mainspring.cli.main
import mainspring.compose.listening
import mainspring.compose.local
import mainspring.compose.network

REQUEST = 1 << 20  # bytes
DESCRIPTORS = 3  # stdout, stderr, and where the end is told
PATH = sys.path[1:]  # without the directory of this file


class Request(Exception):
    """Leaves the loop in the new process, so that it ends as any program of Python does."""

    def __init__(self, what: dict[str, Any]) -> None:
        self.what = what


def serve(sock: socket.socket) -> NoReturn:
    """Until the process that asks is gone. Raises Request in each process that is forked."""
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not sock:
                pid, status = key.data
                _, waited = os.waitpid(pid, 0)
                selector.unregister(key.fileobj)
                os.close(key.fd)
                tell(status, str(os.waitstatus_to_exitcode(waited)).encode())
                continue
            message, descriptors, _, _ = socket.recv_fds(sock, REQUEST, DESCRIPTORS)
            if not message:
                sys.exit(0)
            out, err, status = descriptors
            pid = os.fork()
            if pid == 0:
                sock.detach()
                os.dup2(out, 1)
                os.dup2(err, 2)
                raise Request(json.loads(message))
            os.close(out)
            os.close(err)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
            sock.send(str(pid).encode())


def tell(status: int, what: bytes) -> None:
    try:
        os.write(status, what)
    except BrokenPipeError:
        pass  # the test has ended
    finally:
        os.close(status)


def become(what: dict[str, Any]) -> None:
    """This process is now `python -m MODULE ARGUMENTS` in that directory and environment."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    os.chdir(what["directory"])
    os.environ.clear()
    os.environ.update(what["environment"])
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [what["directory"], *given, *(entry for entry in PATH if entry not in given)]
    sys.argv = [what["module"], *what["arguments"]]
    if what["module"] == "mainspring.cli.main":
        sys.exit(mainspring.cli.main.main())
    runpy.run_module(what["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background of a shell ignores it
    gc.freeze()  # what was imported is shared with those that are forked
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except Request as request:
        asked = request.what
    become(asked)
