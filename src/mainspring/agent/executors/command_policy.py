"""CommandPolicy: which commands the agent's settings allow, and as which users. A job cannot widen it.

The list of commands decides which program is started, by its real path, and with which variables of the job. It does
not judge arguments, the directory or stdin.
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
from fnmatch import fnmatchcase
from functools import partial
from pathlib import PurePosixPath

from mainspring.agent.attempt import AttemptFailed
from mainspring.agent.executors.program import Program
from mainspring.errors import ValidationError
from mainspring.model.tasks.jobs import Command

WILDCARDS = frozenset("*?[")
OF_THE_AGENT = ("TMPDIR",)  # variables that another user must not inherit

_user_refused = partial(AttemptFailed, "user_refused", final=True)
_command_refused = partial(AttemptFailed, "command_refused", final=True)


class CommandPolicy:
    """`run_as` are users. `allow_commands` are paths or names, with wildcards; an empty list allows every command.
    `allow_env` are the variables, with wildcards, that a job may set where there is a list of commands."""

    def __init__(
        self, run_as: Collection[str] = (), allow_commands: Collection[str] = (), allow_env: Collection[str] = ()
    ) -> None:
        for pattern in allow_commands:
            if "/" in pattern and not pattern.startswith("/"):
                raise ValidationError(
                    f"allow_commands: {pattern!r} is neither a name nor a whole path, and would match in every"
                    f" directory; write the name alone, or the path from the root, such as /opt/{pattern}",
                    field="allow_commands",
                )
        self._run_as = run_as
        self._allowed = allow_commands
        self._allow_env = allow_env

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
            env=env | {name: program.env[name] for name in command.env},
            cwd=program.cwd or (user.pw_dir if os.path.isdir(user.pw_dir) else "/"),
            identity=(user.pw_uid, user.pw_gid, os.getgrouplist(name, user.pw_gid)) if own == 0 else None,
        )

    def _pinned(self, program: Program, command: Command) -> Program:
        """Start the file that was checked: it is found here, through nothing that the job can change."""
        self._check_variables(command)
        if command.python:
            script = command.argv[0]
            if self.allows_interpreter() or script == "-m":
                self._check(sys.executable, _located(sys.executable, None))
                return program
            path = self._allowed_path(script, _located(script, program.cwd))
            return replace(program, argv=[program.argv[0], os.path.realpath(path), *program.argv[2:]])
        given = program.argv[0]
        path = self._allowed_path(given, _located(given, program.cwd) if "/" in given else _on_path(given))
        if "/" not in path:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return replace(program, argv=[path, *program.argv[1:]], executable=os.path.realpath(path))

    def _check_variables(self, command: Command) -> None:
        """No list of dangerous variables is complete: what is not allowed is refused."""
        for name in command.env:
            if not any(fnmatchcase(name, pattern) for pattern in self._allow_env):
                raise _command_refused(
                    f"the job sets the variable {name}, which could make an allowed program run other code. An agent"
                    " with allow_commands takes only the variables of its setting allow_env: leave it out, or add"
                    f" {name} to the agent's setting allow_env"
                )

    def allows_interpreter(self) -> bool:
        """Whether Python may run any script and import any module."""
        return not self._allowed or self._is_allowed(sys.executable, _located(sys.executable, None))

    def _allowed_path(self, given: str, path: str) -> str:
        """The path to start: a link that is not allowed is replaced by the file that it leads to, if that is."""
        real = os.path.realpath(path)
        if "/" in path and not self._is_allowed(given, path) and self._is_allowed(real, real):
            return real
        self._check(given, path)
        return path

    def _check(self, given: str, path: str) -> None:
        if not self._is_allowed(given, path):
            real = os.path.realpath(path) if "/" in path else path
            leads_to = "" if real == path else f", which is {real}"
            raise _command_refused(
                f"this agent does not run {path}{leads_to}; to allow it, add {real} to the agent's setting"
                " allow_commands"
            )

    def _is_allowed(self, given: str, path: str) -> bool:
        """A pattern with a slash matches the whole path, one without a program that is called by its name.

        A path is judged as it is called and as what it leads to, so that a link in an allowed directory does not allow
        what is elsewhere. A link that the list names without a wildcard may lead anywhere: it is the operator's."""
        if "/" not in given and any(fnmatchcase(given, pattern) for pattern in self._allowed if "/" not in pattern):
            return True
        patterns = [_resolved(pattern) for pattern in self._allowed if "/" in pattern]
        if path in patterns:
            return True
        return all(
            any(PurePosixPath(each).match(pattern) for pattern in patterns) for each in (path, os.path.realpath(path))
        )


def _located(path: str, cwd: str | None) -> str:
    """The path with its directory resolved as the kernel does, links before `..`; the last part may be a link."""
    directory, name = os.path.split(os.path.join(os.getcwd(), cwd or "", path))
    if name in ("", ".", ".."):
        return os.path.realpath(os.path.join(directory, name))
    return os.path.join(os.path.realpath(directory), name)


def _on_path(name: str) -> str:
    """Where the agent's PATH has it; the name itself if nowhere. Entries that depend on a directory do not count."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which(name, path=os.pathsep.join(entry for entry in entries if os.path.isabs(entry)))
    return name if found is None else _located(found, None)


def _resolved(pattern: str) -> str:
    """The pattern with its directory resolved, up to the first wildcard: /bin is mostly a link."""
    parts = pattern.split("/")
    wild = next((at for at, part in enumerate(parts) if WILDCARDS & set(part)), len(parts))
    fixed = min(wild, len(parts) - 1)
    return "/".join([os.path.realpath("/".join(parts[:fixed]) or "/").rstrip("/"), *parts[fixed:]])
