"""Pages of the documentation, run as they stand: files are written under the name in their first line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Page:
    def __init__(self, path: str) -> None:
        self.text = (ROOT / path).read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    @property
    def languages(self) -> list[str]:
        """Of all its blocks that have one, in their order."""
        return re.findall(r"^```(\w+)$", self.text, re.MULTILINE)

    def write_files(self, directory: Path) -> list[str]:
        """Write its blocks of Python and TOML; each begins with a comment that names its file."""
        names = []
        for block in self.blocks("python") + self.blocks("toml"):
            named = re.match(r"# (\S+\.(?:py|toml))\n", block)
            assert named is not None, f"a block that says no file: {block[:60]}"
            path = directory / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block, encoding="utf-8")
            names.append(named[1])
        return names


def newcomer(home: Path, data: Path) -> dict[str, str]:
    """The environment of somebody who has just set it up: nothing but the commands."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "MAINSPRING_DATA_DIRECTORY": str(data),
    }


def run(script: str, place: dict[str, str], directory: Path, timeout: float = 60) -> str:
    """Run a block of shell to its end; returns what it printed. What it leaves running when it fails is stopped."""
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, told = shell.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGTERM)
            said, told = shell.communicate(timeout=30)
    assert shell.returncode == 0, told + said
    return said


def type_check(directory: Path, *names: str) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(directory / "cache"), *names],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
