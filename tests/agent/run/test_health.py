"""Health: what counts as healthy, when it is reported, and when the daemon is stopped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.conftest import eventually

from mainspring.agent.attempt import Attempt
from mainspring.agent.executors.command import CommandExecutor
from mainspring.agent.executors.http import HttpExecutor
from mainspring.agent.run.health import ask, watch
from mainspring.model.messages import Armed
from mainspring.model.tasks.jobs import Command, Definition, Health, Job


class Recording:
    def __init__(self) -> None:
        self.remarks: list[bytes] = []
        self.healthy: list[bool | None] = []

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None:
        self.remarks.append(data)

    def note(self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None) -> None:
        self.healthy.append(healthy)


class Checks:
    """Answers what the test says; the last answer is repeated."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def check(self, attempt: Attempt, health: Health) -> str | None:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def recording() -> Recording:
    return Recording()


@pytest.fixture
def attempt(recording: Recording) -> Attempt:
    job = Job(1, "stand", 1, 1, Definition(Command(("sleep", "1000"), env={"PORT": "81"}, cwd="/tmp")))
    return Attempt(Armed(1, 10, 1, 1, 0.0, "{}", daemon=True), job, recording)


@pytest.fixture
async def executor() -> AsyncIterator[CommandExecutor]:
    executor = CommandExecutor()
    yield executor
    await executor.close()


@pytest.fixture
async def http() -> AsyncIterator[HttpExecutor]:
    executor = HttpExecutor()
    yield executor
    await executor.close()


@asynccontextmanager
async def serving(answer: bytes | None) -> AsyncIterator[str]:
    """A server that answers so to whatever is asked, or never."""

    handlers: list[asyncio.Task[None] | None] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            if answer is None:
                await reader.read()  # until the other side has had enough
            writer.write(answer or b"")
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/healthz?deep=1"
    finally:
        server.close()
        await asyncio.gather(*(handler for handler in handlers if handler is not None))


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", None),
        (b"HTTP/1.0 204\r\n\r\n", None),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "status 503"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "status 302"),
        (b"hello\r\n", "no HTTP answer"),
        (b"x" * 100_000, "no HTTP answer"),
        (b"", "no HTTP answer"),
        (None, "no answer within 0.2 s"),
    ],
)
async def test_a_url_is_well_if_it_answers_with_2xx(
    attempt: Attempt, http: HttpExecutor, answer: bytes | None, wrong: str | None
) -> None:
    async with serving(answer) as url:
        assert await ask(attempt, Health(url=url, timeout=0.2 if answer is None else 5.0), http) == wrong


async def test_a_url_where_nobody_listens_is_not_well(attempt: Attempt, http: HttpExecutor) -> None:
    assert await ask(attempt, Health(url="http://127.0.0.1:1/"), http) is not None


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
async def test_a_host_that_cannot_be_one_is_not_well_and_the_watch_goes_on(
    attempt: Attempt, http: HttpExecutor, host: str
) -> None:
    assert "label" in str(await ask(attempt, Health(url=f"http://{host}/"), http))


async def test_a_paused_daemon_is_not_asked(attempt: Attempt, recording: Recording) -> None:
    checks = Checks("no answer")
    attempt.paused = True
    watching = asyncio.create_task(watch(attempt, Health(argv=("x",), every=0.01, failures=1), checks, lambda _: None))
    await asyncio.sleep(0.1)
    assert checks.asked == 0
    attempt.paused = False
    await asyncio.wait_for(watching, 20)
    assert recording.healthy == [False]


async def test_a_command_is_well_if_it_exits_with_0(attempt: Attempt, executor: CommandExecutor) -> None:
    async def asked(*argv: str, timeout: float = 5.0) -> str | None:
        return await ask(attempt, Health(argv=argv, timeout=timeout), executor)

    assert await asked("true") is None
    assert await asked("sh", "-c", "echo no >&2; exit 4") == "exit code 4: no"
    assert await asked("sh", "-c", 'test "$PORT" = 81 && test "$PWD" = /tmp') is None, "as its daemon is run"
    assert "could not be run" in str(await asked("/no/such/program"))
    assert await asked("sleep", "1000", timeout=0.1) == "no answer within 0.1 s"
    assert await ask(attempt, Health(argv=("true",)), object()) == "this agent runs no commands"


async def test_a_check_that_ends_leaves_its_daemon_alone(
    attempt: Attempt, executor: CommandExecutor, tmp_path: Path
) -> None:
    """Also one that left its process group: it carries the mark of the daemon, not of the check."""
    escape = f"(os.fork() and os._exit(0), os.setsid(), open('{tmp_path}/pid', 'w').write(str(os.getpid())))"
    script = f"import os, time; os.fork() or {escape}; time.sleep(1000)"
    job = Job(1, "stand", 1, 1, Definition(Command((sys.executable, "-c", script)), grace=0.1))
    daemon = Attempt(attempt.armed, job, attempt.reports)
    running = asyncio.create_task(executor.run(daemon))

    async def is_up() -> bool:
        file = tmp_path / "pid"
        return file.exists() and bool(file.read_text())

    await eventually(is_up)
    pid = int((tmp_path / "pid").read_text())
    assert await executor.check(daemon, Health(argv=("true",))) is None
    assert Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def watched(attempt: Attempt, checks: Checks, health: Health) -> list[Attempt]:
    unwell: list[Attempt] = []
    await watch(attempt, health, checks, unwell.append)
    return unwell


async def test_it_is_told_once_that_it_is_well_and_once_that_it_is_not(attempt: Attempt, recording: Recording) -> None:
    checks = Checks(None, None, "a", None, "b", "c")
    health = Health(argv=("x",), every=0.001, failures=2)
    assert await watched(attempt, checks, health) == [attempt]
    assert recording.healthy == [True, False]
    assert checks.asked == 6, "one failure is not enough, and a good answer makes up for it"
    assert recording.remarks[-1] == b"health check failed (2 of 2): c\n"


async def test_failures_right_after_the_start_do_not_count(attempt: Attempt, recording: Recording) -> None:
    checks = Checks(*["not yet"] * 20, None, "ill")
    health = Health(argv=("x",), every=0.001, failures=1, start=3600.0)
    assert await watched(attempt, checks, health) == [attempt]
    assert recording.healthy == [True, False]
    assert recording.remarks == [b"health check failed (1 of 1): ill\n"], "once it was well, the start is over"
