"""Pages of the documentation, run as they stand.

A block of `bash` is run. A block of any other language that begins with the name of a file, as in `# shop.py`, is saved
under that name. A block of `console` only shows what is seen.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# A failure ends what runs in the background, too; whoever reads the output would wait for that.
_ON_FAILURE = "trap '[ $? -eq 0 ] || kill $(jobs -p)' EXIT"
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")


class Block(NamedTuple):
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name under which a reader saves it."""
        found = _FILE.match(self.text)
        return None if found is None or self.language in ("bash", "console") else found[1]

    def save(self, directory: Path) -> None:
        assert self.file is not None
        path = directory / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text, encoding="utf-8")


class Page:
    def __init__(self, path: str) -> None:
        self.text = (ROOT / path).read_text(encoding="utf-8")
        fenced = re.findall(r"^```(\w+)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)
        self.blocks = [Block(*block) for block in fenced]
        assert len(self.blocks) * 2 == len(re.findall(r"^```", self.text, re.MULTILINE)), "a block without a language"

    def of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]

    def save(self, directory: Path) -> list[str]:
        """Save the blocks that name a file; returns the names."""
        saved = [block for block in self.blocks if block.file is not None]
        for block in saved:
            block.save(directory)
        return [str(block.file) for block in saved]


def clone(directory: Path) -> dict[str, str]:
    """Make `directory` look like a clone after `make setup`; returns the environment of a fresh login.

    Nothing of it is on the PATH. Only the place of the data differs from what a reader has, and the port, where other
    processes of the run listen too.
    """
    (directory / ".venv").symlink_to(sys.prefix)
    return {"PATH": os.defpath, "HOME": str(directory), "MAINSPRING_LISTEN": "127.0.0.1:0"}


def run(*blocks: Block, directory: Path, environment: dict[str, str], timeout: float = 60.0) -> str:
    """Save and run blocks in one shell that stops at the first failure; returns what was printed."""
    for block in blocks:
        if block.file is not None:
            block.save(directory)
    script = "\n".join([_ON_FAILURE, *(block.text for block in blocks if block.language == "bash")])
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, complaints = shell.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)  # with what it left running
            raise AssertionError(shell.communicate()) from None
    assert shell.returncode == 0, complaints
    return said
