"""The wheel carries the console: installed where there is no Node.js, it opens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.console.conftest import ROOT, Up, opener, running


def test_the_wheel_has_the_console_in_it(
    browser: Any, server_dsn: str, template: str, tmp_path: Path, monkeypatch: Any
) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    quiet = {"check": True, "cwd": tmp_path, "capture_output": True, "timeout": 120}
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "made", str(ROOT)], **quiet)  # type: ignore[call-overload]
    [wheel] = (tmp_path / "made").glob("mainspring-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", "there", str(wheel)], **quiet)  # type: ignore[call-overload]
    there = tmp_path / "there"
    assert (there / "mainspring" / "api" / "static" / "index.html").exists()
    monkeypatch.setattr(Up, "source", str(there))
    monkeypatch.setenv("PATH", os.defpath)
    with running(server_dsn, template, tmp_path, "") as up, opener(browser, up) as open_page:
        with urlopen(f"{up.url}/") as answer:
            assert answer.read() == (there / "mainspring" / "api" / "static" / "index.html").read_bytes()
        page = open_page("tasks")
        page.get_by_text("Tasks are the single runs of jobs").wait_for()
