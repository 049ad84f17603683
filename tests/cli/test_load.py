"""Finding the application that a command names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.cli.load import load_app
from mainspring.errors import MainspringError, ValidationError

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def into_module(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield into_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_app_is_imported_from_the_working_directory(write: Write) -> None:
    write("shop_one", "import mainspring\napp = mainspring.App('shop')\n")
    assert load_app("shop_one:app").name == "shop"


@pytest.mark.parametrize("name", ["shop", "shop:", ":app", "shop.py", "a b:app", "shop..x:app", "", "\udcff:app"])
def test_a_name_that_is_no_module_and_attribute_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=r"shop\.jobs:app"):
        load_app(name)


def test_a_missing_module_is_told_with_the_directory(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no module 'shop_missing' in") as caught:
        load_app("shop_missing.jobs:app")
    assert str(tmp_path) in caught.value.message


def test_a_missing_attribute_is_told_with_the_apps_there_are(write: Write) -> None:
    write("shop_two", "import mainspring\nshop = mainspring.App()\n")
    with pytest.raises(ValidationError, match="has no 'app'; there is shop_two:shop"):
        load_app("shop_two:app")


def test_something_that_is_no_app_is_refused(write: Write) -> None:
    write("shop_three", "app = {}\n")
    with pytest.raises(ValidationError, match="is of type dict"):
        load_app("shop_three:app")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_package_of_ours", "needs 'no_such_package_of_ours', which is not installed"),
        ("raise RuntimeError('no database here')", r"RuntimeError: no database here \(.*shop_broken.py:1\)"),
        ("def (", r"SyntaxError: .*shop_broken.py"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_an_app_that_cannot_be_imported_says_why_in_one_line(write: Write, text: str, told: str) -> None:
    write("shop_broken", text)
    with pytest.raises(MainspringError, match=told) as caught:
        load_app("shop_broken:app")
    assert "\n" not in caught.value.message
