"""CommandPolicy: which commands the agent's settings allow, and as which users. A job cannot widen it.

The list of commands decides which program is started, and pins its path. It does not judge arguments.
Next: agent/executors/process.py
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import sys
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from mainspring.agent.attempt import AttemptFailed
from mainspring.agent.executors.program import Program
from mainspring.model.tasks.jobs import Command

# Variables that make a program load other code: the loader, iconv, and interpreters, also of an allowed script.
LOADS_CODE_PREFIXES = ("LD_", "PYTHON", "PERL5", "BASH_FUNC_")
LOADS_CODE = frozenset(
    [
        "BASH_ENV",
        "ENV",
        "ZDOTDIR",
        "GCONV_PATH",
        "NODE_OPTIONS",
        "NODE_PATH",
        "RUBYOPT",
        "RUBYLIB",
        "PHPRC",
        "PHP_INI_SCAN_DIR",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "_JAVA_OPTIONS",
    ]
)
OF_THE_AGENT = ("TMPDIR",)  # variables that another user must not inherit

_user_refused = partial(AttemptFailed, "user_refused", final=True)
_command_refused = partial(AttemptFailed, "command_refused", final=True)


class CommandPolicy:
    """`run_as` are users; `allow_commands` are paths or names, with wildcards; an empty list allows every command."""

    def __init__(self, run_as: Collection[str] = (), allow_commands: Collection[str] = ()) -> None:
        self._run_as = run_as
        self._allowed = allow_commands

    def concerns(self, command: Command) -> bool:
        """Whether `admit` has something to check. It blocks on the file system and the user database."""
        return command.user is not None or bool(self._allowed)

    def admit(self, program: Program, command: Command) -> Program:
        """The program to start. Raises AttemptFailed if the policy refuses it, OSError if it does not exist."""
        if command.user is not None:
            program = self._as_user(program, command, command.user)
        if self._allowed:
            program = self._pinned(program, command)
        return program

    def _as_user(self, program: Program, command: Command, name: str) -> Program:
        if name not in self._run_as:
            raise _user_refused(
                f"this agent runs nothing as the user {name!r}; to allow it, add {name} to the agent's setting run_as"
            )
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            raise _user_refused(
                f"there is no user {name!r} on this agent's machine; create it, or let the job require a label of"
                " agents that have it"
            ) from None
        own = os.geteuid()
        if own not in (0, user.pw_uid):
            raise _user_refused(
                f"an agent must run as root to run commands as {name!r}; this one has the user id {own}:"
                " run it as root, or leave the job's user out"
            )
        env = {variable: value for variable, value in program.env.items() if variable not in OF_THE_AGENT}
        env |= {"HOME": user.pw_dir, "USER": name, "LOGNAME": name, "SHELL": user.pw_shell or "/bin/sh"}
        return replace(
            program,
            env=env | command.env,
            cwd=program.cwd or (user.pw_dir if os.path.isdir(user.pw_dir) else "/"),
            identity=(user.pw_uid, user.pw_gid, os.getgrouplist(name, user.pw_gid)) if own == 0 else None,
        )

    def _pinned(self, program: Program, command: Command) -> Program:
        """Start the path that was checked: it is resolved here, not through the job's variables."""
        for variable in command.env:
            if variable.startswith(LOADS_CODE_PREFIXES) or variable in LOADS_CODE:
                raise _command_refused(f"the variable {variable} can make any program run other code; leave it out")
        if "PATH" in command.env:  # an allowed script would run other programs by it, and `env` another interpreter
            program = replace(program, env=program.env | {"PATH": os.environ.get("PATH", os.defpath)})
        if command.python:
            script = command.argv[0]
            if script == "-m" or self._is_allowed(sys.executable, sys.executable):
                self._check(sys.executable, sys.executable)
                return program
            path = _absolute(script, program.cwd)
            self._check(script, path)
            return replace(program, argv=[program.argv[0], path, *program.argv[2:]])
        given = program.argv[0]
        path = shutil.which(given) or given if "/" not in given else _absolute(given, program.cwd)
        self._check(given, path)
        if "/" not in path:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return replace(program, argv=[path, *program.argv[1:]])

    def _check(self, given: str, path: str) -> None:
        if not self._is_allowed(given, path):
            raise _command_refused(
                f"this agent does not run {path}; to allow it, add it to the agent's setting allow_commands"
            )

    def _is_allowed(self, given: str, path: str) -> bool:
        """A pattern with a slash matches whole paths; one without matches programs named without a path."""
        return any(
            PurePosixPath(path if "/" in pattern else given).match(pattern)
            for pattern in self._allowed
            if "/" in pattern or "/" not in given
        )


def _absolute(path: str, cwd: str | None) -> str:
    return os.path.normpath(os.path.join(os.getcwd(), cwd or "", path))
