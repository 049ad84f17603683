"""CommandPolicy: which commands an agent runs, and as which user."""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.agent.commands import DEADLINE, Make, Recording, eventually

from mainspring.agent.attempt import AttemptFailed
from mainspring.agent.executors.command import CommandExecutor
from mainspring.errors import ValidationError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs commands as another user")
USER = "nobody"


@pytest.fixture
async def executor() -> AsyncIterator[CommandExecutor]:
    executor = CommandExecutor(run_as=[USER, "no-such-user"])
    yield executor
    await executor.close()


async def refusal(executor: CommandExecutor, attempt: object) -> tuple[str, str]:
    with pytest.raises(AttemptFailed) as failed:
        await executor.run(attempt)  # type: ignore[arg-type]
    await executor.close()
    assert failed.value.final
    return failed.value.code, failed.value.message


# ── users ───────────────────────────────────────────────────────────────────────────────────────


@as_root
async def test_a_command_runs_as_its_user_with_that_user_s_groups_and_none_of_ours(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    ours = os.getgroups()
    os.setgroups([*ours, 54_321])
    try:
        await executor.run(attempt_of("id -u; id -ru; id -g; id -G", shell=True, user=USER))
    finally:
        os.setgroups(ours)
    user = pwd.getpwnam(USER)
    groups = b" ".join(str(group).encode() for group in os.getgrouplist(USER, user.pw_gid))
    ids = [str(id).encode() for id in (user.pw_uid, user.pw_uid, user.pw_gid)]
    assert recording.bytes(1).splitlines() == [*ids, groups]


@as_root
async def test_a_command_has_its_user_s_home_and_names(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/root/private")
    script = 'echo "$HOME $USER $LOGNAME $SHELL $TMPDIR$MINE"; pwd'
    await executor.run(attempt_of(script, shell=True, user=USER, env={"SHELL": "/bin/zsh", "MINE": "own"}))
    home = pwd.getpwnam(USER).pw_dir
    directory = home if Path(home).is_dir() else "/"
    assert recording.bytes(1).decode() == f"{home} {USER} {USER} /bin/zsh own\n{directory}\n"


@as_root
async def test_another_user_can_open_its_own_output(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    await executor.run(attempt_of("echo out > /dev/stdout; echo err > /dev/stderr", shell=True, user=USER))
    assert (recording.bytes(1), recording.bytes(2)) == (b"out\n", b"err\n")


@as_root
async def test_a_command_of_another_user_is_killed_with_all_its_processes(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    script = (
        "trap '' TERM; (sleep 60; sleep 60) & setsid sh -c \"trap '' TERM; sleep 60; sleep 60\" & echo up; wait; wait"
    )
    running = asyncio.create_task(executor.run(attempt_of(script, shell=True, user=USER, grace=0.2)))
    await eventually(lambda: recording.bytes(1) == b"up\n")
    running.cancel()
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert recording.processes() == []


async def test_a_user_that_is_not_listed_is_refused_with_what_to_set(attempt_of: Make) -> None:
    code, message = await refusal(CommandExecutor(), attempt_of("true", user="alice"))
    assert code == "user_refused"
    assert "add alice to the agent's setting run_as" in message


async def test_a_user_that_does_not_exist_is_refused(executor: CommandExecutor, attempt_of: Make) -> None:
    code, message = await refusal(executor, attempt_of("true", user="no-such-user"))
    assert (code, "there is no user 'no-such-user'" in message) == ("user_refused", True)


async def test_an_agent_that_is_not_root_refuses_other_users(
    executor: CommandExecutor, attempt_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    code, message = await refusal(executor, attempt_of("true", user=USER))
    assert (code, "must run as root" in message) == ("user_refused", True)


# ── commands ────────────────────────────────────────────────────────────────────────────────────


def script_at(path: Path, text: str = "#!/bin/sh\necho ran\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


async def test_with_a_list_only_what_is_in_it_runs(attempt_of: Make, recording: Recording, tmp_path: Path) -> None:
    script = script_at(tmp_path / "jobs" / "one")
    script_at(tmp_path / "jobs" / "deep" / "two")
    script_at(tmp_path / "other")
    executor = CommandExecutor(allow_commands=["ech*", f"{tmp_path}/jobs/*"])
    await executor.run(attempt_of("echo", "1"))
    await executor.run(attempt_of(script))
    await executor.run(attempt_of("./one", cwd=str(tmp_path / "jobs")))
    assert recording.bytes(1) == b"1\nran\nran\n"
    for argv in (
        ("ls",),
        (f"{tmp_path}/jobs/../other",),
        (f"{tmp_path}/jobs/deep/two",),
        ("/tmp/echo",),
        ("../other",),
    ):
        code, message = await refusal(executor, attempt_of(*argv, cwd=str(tmp_path / "jobs")))
        assert code == "command_refused"
        assert "allow_commands" in message
    assert recording.bytes(1) == b"1\nran\nran\n"
    executor = CommandExecutor(allow_commands=[f"{tmp_path}/jobs/*/*"])
    assert (await refusal(executor, attempt_of(f"{tmp_path}/jobs/../other")))[0] == "command_refused"


async def test_a_path_in_the_list_is_also_found_by_its_name(attempt_of: Make) -> None:
    executor = CommandExecutor(allow_commands=["/bin/true", "/usr/bin/true"])
    assert await executor.run(attempt_of("true"))
    assert (await refusal(executor, attempt_of("false")))[0] == "command_refused"


async def test_a_job_s_own_path_finds_no_other_program_of_an_allowed_name(
    attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    script_at(tmp_path / "echo")
    script_at(tmp_path / "unheard-of")
    executor = CommandExecutor(allow_commands=["echo", "unheard-of"], allow_env=["PATH"])
    env = {"PATH": str(tmp_path)}
    await executor.run(attempt_of("echo", "real", env=env))
    assert recording.bytes(1) == b"real\n"
    assert (await refusal(executor, attempt_of("unheard-of", env=env)))[0] == "not_startable"


async def test_the_agent_s_path_finds_nothing_in_the_job_s_directory(
    attempt_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_at(tmp_path / "unheard-of")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")
    executor = CommandExecutor(allow_commands=["unheard-of"])
    assert (await refusal(executor, attempt_of("unheard-of", cwd=str(tmp_path))))[0] == "not_startable"


@pytest.mark.parametrize("pattern", ["jobs/*", "./jobs/*", "*/jobs/*"])
def test_a_pattern_with_a_slash_begins_at_the_root(pattern: str) -> None:
    """Else it would match /tmp/evil/jobs/x."""
    with pytest.raises(ValidationError, match="allow_commands"):
        CommandExecutor(allow_commands=[pattern])


async def test_a_path_is_judged_by_where_it_really_is(attempt_of: Make, recording: Recording, tmp_path: Path) -> None:
    jobs, evil = tmp_path / "jobs", tmp_path / "evil"
    script_at(jobs / "good", "#!/bin/sh\necho good\n")
    script_at(evil / "jobs" / "bad", "#!/bin/sh\necho bad\n")
    script_at(evil / "good", "#!/bin/sh\necho bad\n")
    (evil / "in").symlink_to(jobs)  # a way into the directory is fine
    (jobs / "out").symlink_to(evil)
    (jobs / "link").symlink_to(evil / "good")
    (jobs / "alias").symlink_to(jobs / "good")
    executor = CommandExecutor(allow_commands=[f"{tmp_path}/jobs/*"])
    for path in (f"{evil}/in/good", f"{jobs}/out/../jobs/good", f"{jobs}/alias"):
        await executor.run(attempt_of(path))
    assert recording.bytes(1) == b"good\n" * 3
    for path in (f"{evil}/jobs/bad", f"{jobs}/out/good", f"{jobs}/link", f"{jobs}/../evil/good"):
        code, message = await refusal(executor, attempt_of(path))
        assert (code, "allow_commands" in message) == ("command_refused", True)
    assert recording.bytes(1) == b"good\n" * 3


async def test_a_link_that_the_list_names_may_lead_anywhere_and_keeps_its_name(
    attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    """busybox is many programs by its links: the one that is named is allowed, the others are not."""
    (tmp_path / "named").symlink_to(sys.executable)
    (tmp_path / "other").symlink_to(sys.executable)
    executor = CommandExecutor(allow_commands=[f"{tmp_path}/named"])
    await executor.run(attempt_of(f"{tmp_path}/named", "-c", "import sys; print(sys.orig_argv[0])"))
    assert recording.bytes(1).decode() == f"{tmp_path}/named\n"
    assert (await refusal(executor, attempt_of(f"{tmp_path}/other", "-c", "")))[0] == "command_refused"


async def test_a_link_to_an_allowed_file_starts_that_file_under_its_own_name(
    attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    """Under the name of the link Python would read a pyvenv.cfg beside it."""
    real = os.path.realpath(sys.executable)
    (tmp_path / "link").symlink_to(real)
    executor = CommandExecutor(allow_commands=[real])
    await executor.run(attempt_of(f"{tmp_path}/link", "-c", "import sys; print(sys.orig_argv[0])"))
    await executor.close()
    assert recording.bytes(1).decode() == f"{real}\n"


ATTACKS = {
    "a prompt that is a command": ("/bin/bash", {"SHELLOPTS": "xtrace", "PS4": "$(touch {mark})"}, ":"),
    "a file that bash reads": ("/bin/bash", {"BASH_ENV": "{evil}/rc"}, ":"),
    "a file that sh reads": ("/bin/sh -i", {"ENV": "{evil}/rc"}, ":"),
    "a function of bash": ("/bin/bash", {"BASH_FUNC_sleep%%": "() { touch {mark}; }"}, "sleep 0"),
    "a module of perl": ("/usr/bin/perl", {"PERLLIB": "{evil}"}, "use strict;"),
    "a home with a .pth file": (sys.executable, {"HOME": "{evil}"}, "pass"),
    "a path with another program": ("/bin/sh", {"PATH": "{evil}"}, "date"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_no_variable_makes_an_allowed_script_run_other_code(
    attempt_of: Make, tmp_path: Path, attack: tuple[str, dict[str, str], str]
) -> None:
    interpreter, variables, text = attack
    evil, mark = tmp_path / "evil", tmp_path / "mark"
    site = evil / ".local" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    script_at(evil / "rc", f"touch {mark}\n")
    script_at(evil / "date", f"#!/bin/sh\n/bin/touch {mark}\n")
    script_at(evil / "strict.pm", f"system('touch {mark}'); 1;\n")
    script_at(site / "x.pth", f"import os; os.system('touch {mark}')\n")
    script = script_at(tmp_path / "script", f"#!{interpreter}\n{text}\n")
    env = {name: value.replace("{mark}", str(mark)).replace("{evil}", str(evil)) for name, value in variables.items()}
    executor = CommandExecutor(allow_commands=[script])
    code, message = await refusal(executor, attempt_of(script, env=env))
    assert (code, f"add {next(iter(env))} to the agent's setting allow_env" in message) == ("command_refused", True)
    assert not mark.exists()


async def test_variables_that_the_agent_lists_reach_the_command(attempt_of: Make, recording: Recording) -> None:
    executor = CommandExecutor(allow_commands=["printenv"], allow_env=["SHOP_*", "DAY"])
    await executor.run(attempt_of("printenv", "SHOP_NAME", "DAY", env={"SHOP_NAME": "corner", "DAY": "Monday"}))
    assert recording.bytes(1) == b"corner\nMonday\n"
    code, message = await refusal(executor, attempt_of("printenv", env={"SHOP_NAME": "x", "MY_SHOP_NAME": "y"}))
    assert (code, "MY_SHOP_NAME" in message) == ("command_refused", True)


async def test_an_allowed_script_imports_nothing_that_its_job_names(
    attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    script = script_at(tmp_path / "script.py", "import sys; print('this' in sys.modules)")
    for allowed, imported in ((script, b"False\n"), (sys.executable, b"True\n")):
        executor = CommandExecutor(allow_commands=[allowed])
        attempt = attempt_of(script, python=True, warm=("this",))
        attempt.lead = 0.4
        executor.prepare(attempt)
        await eventually(lambda: recording.processes() != [])  # started ahead
        await executor.run(attempt)
        assert recording.bytes(1).endswith(imported)
        await executor.close()


async def test_a_shell_needs_to_be_in_the_list(attempt_of: Make) -> None:
    executor = CommandExecutor(allow_commands=["true", "sh"])
    assert (await refusal(executor, attempt_of("true", shell=True)))[0] == "command_refused"
    executor = CommandExecutor(allow_commands=["/bin/sh"])
    assert await executor.run(attempt_of("true", shell=True))
    await executor.close()


async def test_a_python_script_needs_itself_or_the_interpreter_in_the_list(
    attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    script = script_at(tmp_path / "script.py", "print('ran')")
    executor = CommandExecutor(allow_commands=[str(tmp_path / "*.py")])
    await executor.run(attempt_of(script, python=True))
    assert (await refusal(executor, attempt_of("-m", "this", python=True)))[0] == "command_refused"
    executor = CommandExecutor(allow_commands=[sys.executable])
    await executor.run(attempt_of(script, python=True))
    await executor.run(attempt_of("-m", "this", python=True))
    assert recording.bytes(1).startswith(b"ran\nran\nThe Zen")
    await executor.close()
