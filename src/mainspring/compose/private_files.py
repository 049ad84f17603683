"""Private files: secrets on disk that only their owner can read, written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from mainspring.errors import AccessDenied

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_private(path: Path) -> str | None:
    """The text of a file; None if there is none. AccessDenied if others can read it, or another user owns it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(file, encoding="utf-8", errors="replace") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise AccessDenied(f"{path} is not a file", field="file")
        if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
            raise AccessDenied(f"{path} holds secrets and belongs to another user; it is not used", field="file")
        if status.st_mode & _OTHERS:
            raise AccessDenied(
                f"{path} holds secrets and other users can read it; replace what it holds, and `chmod 600 {path}`",
                field="file",
            )
        return opened.read()


def write_private(path: Path, text: str) -> None:
    """Replace the file: a reader finds the old text or the new one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with mode 0600
    try:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(file)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
