"""What a type checker says of calls to jobs: the right ones pass, each wrong one is reported on its line.

What a reader copies from a page passes too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import mainspring
from tests.journey.pages import Page

RIGHT = Path(__file__).with_name("right_calls.py")

# Each line is one wrong call, with the code of mypy's error.
WRONG = [
    ("await report.enqueue(5)", "arg-type"),
    ("await report.enqueue()", "call-arg"),
    ("await report.enqueue('x', True)", "call-arg"),
    ("await report.enqueue('x', forse=True)", "call-arg"),
    ("await report.enqueue('x', force='yes')", "arg-type"),
    ("await report.using(delay='5m').enqueue(5)", "arg-type"),
    ("await report.using(dilay='5m').enqueue('x')", "call-arg"),
    ("await report.using(after='x').enqueue('x')", "arg-type"),
    ("report.enqueue_sync(5)", "arg-type"),
    ("await report.enqueue_many([5])", "list-item"),
    ("await report.enqueue_many([report.call(5)])", "arg-type"),
    ("await report.enqueue_many([report.call('x', forse=True)])", "call-arg"),
    ("await report.enqueue_many([sync.call()])", "list-item"),
    ("report.enqueue_many_sync([5])", "list-item"),
    ("await report.using(priority='hihg').enqueue('x')", "arg-type"),
    ("app.job(priority='hihg')", "call-overload"),
    ("app.command('y', ['true'], priority='hihg')", "arg-type"),
    ("number_too: str = (await report.enqueue('x')).result_sync()", "assignment"),
    ("text_too: str = await report.task(5).result()", "assignment"),
    ("app.task('5')", "arg-type"),
    ("app.on_failure('print')", "type-var"),
    ("text: str = await (await report.enqueue('x')).result()", "assignment"),
    ("number: int = await (await sync.enqueue()).result()", "assignment"),
    ("task: Task[str] = await report.enqueue('x')", "assignment"),
    ("report.function(5)", "arg-type"),
    ("app.job(retrys=3)", "call-overload"),
    ("app.job(retries='three')", "call-overload"),
    ("app.command('x', ['true'], timeot=3)", "call-arg"),
    ("await load.enqueue([1])", "arg-type"),
    ("await load.enqueue('one')", "arg-type"),
    ("await load(1)", "arg-type"),
    ("one: str = await (await load.enqueue(1)).result()", "assignment"),
    ("app.job(chunk='many')", "call-overload"),
    ("app.job(chunk=5)(sync.function)", "arg-type"),
]

HEADER = """\
from mainspring import App, Task
app = App()
@app.job
async def report(day: str, *, force: bool = False) -> int: return 1
@app.job(retries=1)
def sync() -> str: return ''
@app.job(chunk=5)
async def load(numbers: list[int]) -> list[int]: return numbers
async def calls() -> None:
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy knows of our modules and those of others, for all its runs: that takes longer than to check a page."""
    return tmp_path_factory.mktemp("cache")


def type_check(cache: Path, directory: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--show-error-codes",
         "--follow-imports=silent", f"--cache-dir={cache}", *names],
        env={**os.environ, "MYPYPATH": str(Path(mainspring.__file__).parents[1])},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reported(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """One run of mypy over both files: the lines and codes of its errors, by the name of the file."""
    directory = tmp_path_factory.mktemp("typing")
    wrong = directory / "wrong_calls.py"
    wrong.write_text(HEADER + "".join(f"    {line}\n" for line, _ in WRONG))
    ended = type_check(cache, directory, str(RIGHT), str(wrong))
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    found: dict[str, list[tuple[int, str]]] = {RIGHT.name: [], wrong.name: []}
    for path, line, code in re.findall(r"^(.+?):(\d+): error: .*\[([\w-]+)\]$", ended.stdout, re.MULTILINE):
        found[Path(path).name].append((int(line), code))
    return found


def test_an_installed_package_says_that_it_has_types() -> None:
    assert resources.files(mainspring).joinpath("py.typed").is_file()


def test_right_calls_pass(reported: dict[str, list[tuple[int, str]]]) -> None:
    assert reported["right_calls.py"] == []


def test_each_wrong_call_is_reported_on_its_line(reported: dict[str, list[tuple[int, str]]]) -> None:
    first = HEADER.count("\n") + 1
    assert reported["wrong_calls.py"] == [(first + number, code) for number, (_, code) in enumerate(WRONG)]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", ["shop.py"]),
        ("docs/how-to/fastapi.md", ["shop", "tests"]),
        ("docs/how-to/chunks.md", ["products.py", "files.py"]),
        ("docs/how-to/queues.md", ["shop.py"]),
    ],
)
def test_what_a_reader_copies_passes_a_strict_check(cache: Path, tmp_path: Path, page: str, names: list[str]) -> None:
    assert Page(page).save(tmp_path)
    if (tmp_path / "shop").is_dir():
        (tmp_path / "shop/__init__.py").touch()
    checked = type_check(cache, tmp_path, *names)
    assert checked.returncode == 0, checked.stdout + checked.stderr
