"""What the stories share: processes of ours that run until they are told to stop."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import IO, Any

import psycopg

from mainspring.cli.main import main
from mainspring.model.tasks.states import TaskState
from tests.conftest import pause
from tests.journey.forks import Forked

DEADLINE = 60.0  # seconds: for what takes milliseconds on a quiet machine


# Commands that ask the database once and end. That they work as processes is in tests/cli/test_main.py.
_QUICK = (
    *(("job", "create"), ("token", "create"), ("task", "submit"), ("task", "show"), ("stats", "--json")),
    *(("task", verb) for verb in ("pause", "resume", "cancel", "kill")),
)


def mainspring(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; a quick one in this process, as a new one takes half a CPU second to import it."""
    if not options and arguments[:2] in _QUICK and not {"--wait", "--data"} & set(arguments):
        return _called(arguments)
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=DEADLINE, check=False, **options)


def _called(arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return subprocess.CompletedProcess(command(*arguments), code, *texts)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "mainspring.cli.main", *arguments]


class Running:
    """A process that goes on; what it writes is read all the time, so that it never waits for us."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        assert child.stdout is not None
        assert child.stderr is not None
        self._lines: queue.Queue[str] = queue.Queue()
        self.notes: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(child.stdout, self._lines.put)),
            threading.Thread(target=self._read, args=(child.stderr, self.notes.append)),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: IO[str], take: Callable[[str], None]) -> None:
        for line in stream:
            take(line)

    def line(self) -> str:
        """The next line of its stdout."""
        try:
            return self._lines.get(timeout=DEADLINE)
        except queue.Empty:
            raise AssertionError(f"nothing on stdout; stderr: {''.join(self.notes)}") from None

    def ready(self) -> dict[str, Any]:
        """What `--json` tells once it is up."""
        told: dict[str, Any] = json.loads(self.line())
        return told

    @property
    def has_spoken(self) -> bool:
        """Whether there is a line that nobody has read yet."""
        return not self._lines.empty()

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def until_told(self, words: str) -> None:
        until(lambda: any(words in note for note in self.notes))

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self.child.wait(DEADLINE)
        self.join()
        return code

    def join(self) -> None:
        for reader in self._readers:
            reader.join(DEADLINE)


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[Running]:
    """A process for as long as the block lasts; killed if it does not end when asked."""
    started = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    with _ending(started) as process:
        yield process


@contextmanager
def forked(*arguments: str, **options: Any) -> Iterator[Running]:
    """The same for a story whose point is not how the process starts: it has imported everything already."""
    with _ending(Forked(*arguments, **options)) as process:
        yield process


@contextmanager
def _ending(started: subprocess.Popen[str]) -> Iterator[Running]:
    with started as child:
        process = Running(child)
        try:
            yield process
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(15.0)
                except subprocess.TimeoutExpired:
                    child.kill()
            process.join()


def until(condition: Callable[[], Any]) -> Any:
    """Look until it is true, and return it."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < DEADLINE:
        if found := condition():
            return found
        time.sleep(pause(waited))
    raise AssertionError("it did not come true")


def state_of(task: str, dsn: str) -> str:
    """By the database itself: a command that is run until it says so takes the time of what is waited for."""
    query = """
        select state from mainspring.task where id = %(id)s
        union all select state from mainspring.task_history where id = %(id)s
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query, {"id": int(task)}).fetchone()
    assert row is not None, f"there is no task {task}"
    return TaskState(row[0]).label


def until_state(task: str, state: str, dsn: str) -> None:
    until(lambda: state_of(task, dsn) == state)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
