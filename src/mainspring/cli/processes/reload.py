"""`mainspring worker --reload`: restart the worker when a .py file of the application has changed

Runs    the worker as a child process in another session: each signal reaches it once, through this process
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType

from mainspring.cli.render import note

INTERVAL = 0.3  # seconds between two scans, or ten times as long as one takes
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG

Snapshot = dict[str, tuple[int, int]]  # path → time of its last change, size


class Watch:
    """The .py files below the working directory, and of the application's package if that lies elsewhere."""

    def __init__(self, app: str, directory: Path) -> None:
        self.roots = [str(directory)]
        package = app.partition(":")[0].partition(".")[0]
        spec = PathFinder.find_spec(package, [str(directory), *sys.path])
        for place in () if spec is None else spec.submodule_search_locations or [spec.origin or ""]:
            if not Path(place).is_relative_to(directory):
                self.roots.append(place)

    def snapshot(self) -> Snapshot:
        return dict(found for root in self.roots for found in _files(root))

    def changed_since(self, seen: Snapshot) -> str | None:
        """A file that was added, removed or changed."""
        now = self.snapshot()
        return next((path for path in sorted(now.keys() | seen.keys()) if now.get(path) != seen.get(path)), None)


def _files(root: str) -> Iterator[tuple[str, tuple[int, int]]]:
    left = [root]
    while left:
        path = left.pop()
        with suppress(OSError):  # removed meanwhile, or not readable
            if path.endswith(".py"):
                found = os.stat(path)
                yield path, (found.st_mtime_ns, found.st_size)
                continue
            with os.scandir(path) as entries:
                there = list(entries)
            if any(entry.name == "pyvenv.cfg" for entry in there):
                continue  # a virtual environment
            left += [entry.path for entry in there if _is_watched(entry)]


def _is_watched(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name in _SKIPPED:
        return False
    return entry.name.endswith(".py") or entry.is_dir(follow_symlinks=False)


class Reloader:
    """Runs `command`, and again after each change, until a signal."""

    def __init__(self, command: list[str], watch: Watch) -> None:
        self._command = command
        self._watch = watch
        self._asked = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Returns the exit status of the last child."""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._received)
        while True:
            seen = self._watch.snapshot()
            self._child = self._start()
            changed = self._wait_for_change(seen)
            status = self._child.poll()
            if changed is None and (status == 0 or self._asked.is_set()):
                return status or 0
            if changed is None:
                note(f"the worker ended with status {status}; it starts again when a file has changed")
                changed = self._wait_for_change(seen)
                if changed is None:
                    return status or 0
            else:
                note(f"{os.path.relpath(changed)} has changed; the worker stops, and starts again")
                self._child.terminate()
                status = self._child.wait()
                if self._asked.is_set():
                    return status

    def _start(self) -> subprocess.Popen[bytes]:
        # Python's cache of compiled files cannot tell two edits within a second that keep the size.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(self._command, env=environment, start_new_session=True, preexec_fn=_die_with_parent)

    def _wait_for_change(self, seen: Snapshot) -> str | None:
        """The file that has changed; None if the running child has ended or a signal came first."""
        assert self._child is not None
        was_running = self._child.poll() is None
        pause = INTERVAL
        while was_running or not self._asked.is_set():
            if was_running:
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(pause)
                    return None
            elif self._asked.wait(pause):
                return None
            if self._asked.is_set():
                continue  # it is stopping
            began = time.monotonic()
            if (changed := self._watch.changed_since(seen)) is not None:
                return changed
            pause = max(INTERVAL, 10 * (time.monotonic() - began))
        return None

    def _received(self, number: int, _frame: FrameType | None) -> None:
        self._asked.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def _die_with_parent() -> None:
    """In the child: stop if the parent is killed. Linux only; elsewhere the child keeps running."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def reload_worker(app: str, arguments: list[str]) -> int:
    """`arguments` are those of the command line, with --reload."""
    command = [sys.executable, "-m", "mainspring", *(word for word in arguments if word != "--reload")]
    return Reloader(command, Watch(app, Path.cwd())).run()
