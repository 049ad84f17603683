"""Actors: who asks for an operation, in which role, and for which jobs.

Next: operations/work/tasks.py
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec


class Role(StrEnum):
    """What a token may do; `docs/reference/access.md` has the table of roles and operations."""

    VIEWER = "viewer"  # reads; secrets are masked
    SUBMITTER = "submitter"  # submits to its jobs, and reads, awaits and cancels their tasks
    OPERATOR = "operator"  # reads, and acts on what exists
    ADMIN = "admin"  # also defines, and hands out access
    METRICS = "metrics"  # reads metrics and health
    AGENT = "agent"  # opens the agents' channel and nothing else


class Actor(msgspec.Struct, frozen=True):
    """Who acts. Its name says how it came in: `os:alice@host`, `token:ci`, `session:3`."""

    name: str
    role: Role = Role.ADMIN
    jobs: tuple[str, ...] = ()  # patterns of names that narrow the role; empty: all jobs
    address: str | None = None  # where a request came from
    request_id: str | None = None
    token: int | None = None  # that it came with; the sessions it makes end with this token
    session: int | None = None  # of the console

    def reaches(self, job: str) -> bool:
        """Whether the actor may see and touch what belongs to a job of this name."""
        return not self.jobs or any(fnmatchcase(job, pattern) for pattern in self.jobs)


class Access(msgspec.Struct, frozen=True):
    """What an application that mounts the API says of a caller."""

    actor: str
    role: Role = Role.VIEWER
    jobs: tuple[str, ...] = ()  # patterns of names that narrow the role; empty: all jobs
