"""What the tests of the console share: one browser, one `mainspring up` with an application, and a page that is strict.

Every page fails its test on an error in its console, a report of the content security policy, a request to another
origin, or an answer of 5xx. Where there is no Chromium (`scripts/debian-browser`) or no built console, they skip.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

import psycopg
import pytest

from tests.conftest import Databases

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "mainspring" / "api" / "static" / "manifest.json"
# The shell has no windows of its own, and opens a page in less CPU time.
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
IN_CI = bool(os.environ.get("CI"))
# The omnibox of a window that nobody sees is two pages of its own: half of the CPU time of opening one of ours.
OMNIBOX = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup")
# Of these arguments the last one counts, so what Playwright turns off is repeated.
BY_PLAYWRIGHT = (
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled",
    "PreconnectToSearch",
)  # fmt: skip
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb",
    f"--disable-features={','.join((*BY_PLAYWRIGHT, *OMNIBOX))}",
)  # fmt: skip
SHOTS = os.environ.get("MAINSPRING_TEST_SHOTS")
START_WITHIN = 60.0
WITHIN = 30_000.0  # milliseconds: for what a page shows, on a busy machine too


class Up:
    """`mainspring up APP` on a database: its address, a token for it, and a client."""

    source = str(ROOT / "src")  # where mainspring itself is imported from

    def __init__(self, dsn: str, app: str, directory: Path, settings: dict[str, str], listen: str = "127.0.0.1:0"):
        self.dsn, self.app, self.directory, self.settings = dsn, app, directory, settings
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.start(listen)
        made = self.cli("token", "create", "tests", "--role", "admin", "--json")
        self.token: str = json.loads(made)["token"]

    def call(self, operation: str, body: Any = None, **params: Any) -> Any:
        """The API, to arrange things: `up.call("POST /tasks", {"job": "hello"})`, `up.call("GET /tasks/{id}", id=17)`.

        Playwright runs an event loop in this thread, so our own client would have to be awaited.
        """
        method, _, path = operation.partition(" ")
        for name in re.findall(r"\{(\w+)\}", path):
            path = path.replace(f"{{{name}}}", quote(str(params.pop(name)), safe=""))
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        url = f"{self.url}/api/v1{path}" + (f"?{urlencode(params, doseq=True)}" if params else "")
        with urlopen(Request(url, data, headers, method=method), timeout=70) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def submit(self, job: str, *, wait: float = 0, **task: Any) -> int:
        """The number of a new task; with `wait` once it has ended."""
        made = self.call("POST /tasks", {"job": job, **task}, **({"wait": wait} if wait else {}))
        return int(made["id"])

    def start(self, listen: str | None = None) -> None:
        """Start it, at the same address if it was started before."""
        listen = listen or urlsplit(self.url).netloc
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([self.source, str(ROOT)]),
            "MAINSPRING_DSN": self.dsn,
            "MAINSPRING_DATA_DIRECTORY": str(self.directory),
            **self.settings,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "up", *([self.app] if self.app else []), "--listen", listen],
            cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said: list[str] = []
        found = threading.Event()

        def read() -> None:
            assert self.process is not None
            assert self.process.stdout is not None
            with self.process.stdout as lines:
                for line in lines:
                    look(line)

        def look(line: str) -> None:
            said.append(line)
            if match := re.search(r"(http://127\.0\.0\.1:\d+)\S*#\S+", line):
                self.link, self.url = match[0], match[1]
                found.set()

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        assert found.wait(START_WITHIN), "".join(said)

    def cli(self, *arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "mainspring", *arguments, "--dsn", self.dsn],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": self.source}, text=True, capture_output=True, timeout=60,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As kill -9 does."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(30)

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        if self.process.poll() is None:
            self.kill()
        self._reader.join(10)


@contextmanager
def running(server_dsn: str, template: str, directory: Path, app: str, **settings: str) -> Iterator[Up]:
    """`mainspring up` on a database of its own."""
    databases = Databases(server_dsn)
    try:
        with databases.one(template, f"console_{directory.name.replace('-', '_')}") as dsn:
            up = Up(dsn, app, directory, settings)
            try:
                yield up
            finally:
                up.stop()
    finally:
        databases.close()


def in_database(dsn: str, statement: str) -> None:
    """Our own driver would need an event loop, and Playwright's runs in this thread."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement.encode())


@pytest.fixture(scope="package")
def up(server_dsn: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The server that most tests look at: tests/console/app.py. They make jobs and tasks of their own names in it.

    It ends with this room: an idle one takes a fiftieth of a core from the tests that follow.
    """
    with running(server_dsn, template, tmp_path_factory.mktemp("up"), "tests.console.app:app") as up:
        yield up


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Ends with the file: while its event loop runs in this thread, no test of another file could run one."""
    if CHROMIUM is None or not STATIC.exists():
        missing = (
            "no Chromium: scripts/debian-browser" if CHROMIUM is None else "the console is not built: make console"
        )
        if IN_CI:
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WITHIN)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Strict:
    """What a page must never do. `allow` takes patterns of what a test provokes on purpose."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.faults: list[str] = []
        self.allowed: list[str] = []

    def allow(self, *patterns: str) -> None:
        self.allowed += patterns

    def watch(self, page: Any) -> None:
        page.on("console", self._check_console)
        page.on("pageerror", lambda error: self.note(f"error: {error}"))
        page.on("request", lambda request: self._check_origin(request.url))
        page.on("response", self._check_status)

    def _check_console(self, message: Any) -> None:
        if message.type == "error":
            self.note(f"console: {message.text} {message.location.get('url', '')}")

    def _check_status(self, answer: Any) -> None:
        if answer.status >= 500:
            self.note(f"{answer.status} {answer.url}")

    def _check_origin(self, url: str) -> None:
        if not url.startswith((self.origin, "data:", "blob:", "about:")):
            self.note(f"another origin: {url}")

    def note(self, fault: str) -> None:
        self.faults.append(fault)

    def take(self) -> list[str]:
        """What it did until now that was not allowed; it is not told again."""
        taken, self.faults = self.faults, []
        return [fault for fault in taken if not any(re.search(pattern, fault) for pattern in self.allowed)]

    def check(self) -> None:
        left = self.take()
        assert not left, left


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, up: Up) -> Iterator[Open]:
    """`page = open_page("tasks", role="viewer", width=360, theme="dark")`: logged in; `page.strict.allow(…)`."""
    with opener(browser, up) as open:
        yield open


@contextmanager
def opener(browser: Any, up: Up) -> Iterator[Open]:
    contexts: list[Any] = []
    watched: list[Strict] = []

    def open(
        path: str = "",
        *,
        role: str | None = "admin",
        width: int = 1440,
        height: int = 900,
        theme: str = "light",
        **how: Any,
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, base_url=f"{up.url}/", **how
        )
        context.set_default_timeout(WITHIN)
        contexts.append(context)
        if role is not None:
            log_in(context, up, role)
        page = context.new_page()
        strict = Strict(up.url)
        watched.append(strict)
        strict.watch(page)
        page.strict = strict
        page.goto(path)
        return page

    try:
        yield open
        for strict in watched:
            strict.check()
    finally:
        for context in contexts:
            context.close()


def log_in(context: Any, up: Up, role: str) -> None:
    """A session in the cookies of this context, as the link of `mainspring login --role` makes it."""
    code = up.call("POST /logins", {"role": role})["code"]
    answer = context.request.post(f"{up.url}/api/v1/session", data={"code": code})
    assert answer.ok, answer.text()


def picture(page: Any, name: str) -> None:
    """A screenshot to look at, NAME.png, where a directory for them is given. Pixels are not asserted."""
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS, f"{name}.png")))


def both_themes(page: Any) -> Iterator[None]:
    """`for _ in both_themes(page): check_axe(page)`"""
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        page.locator(f"html[data-theme={theme}]").wait_for()
        yield


@pytest.fixture(scope="session")
def axe_source() -> str:
    return (ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture
def check_axe(axe_source: str) -> Callable[[Any], None]:
    """axe-core finds no violation on the page as it is now."""

    def check(page: Any) -> None:
        if not page.evaluate("'axe' in window"):
            page.evaluate(axe_source)  # over the debugging protocol, which the policy does not bind
        found = page.evaluate("axe.run({ resultTypes: ['violations'] }).then((result) => result.violations)")
        told = [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found]
        assert not told, told

    return check
