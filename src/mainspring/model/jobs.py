"""What a job is: what to run, and the policies it runs under.

The definition is stored as JSON in `job.definition`; `Job` adds what the database gave it.
Next: model/messages.py
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from mainspring.model.retry import Retry

Delivery = Literal["at_least_once", "at_most_once", "effectively_once"]

PRIORITIES = {"low": 2, "normal": 5, "high": 7, "critical": 9}
PRIORITY_LEVELS = tuple(range(9, -1, -1))  # in the order in which they are claimed
DEFAULT_PRIORITY = PRIORITIES["normal"]


class Command(Struct, frozen=True, tag="command", omit_defaults=True):
    """A program and its arguments; a shell only when asked for."""

    argv: tuple[str, ...]
    shell: bool = False
    cwd: str | None = None
    env: dict[str, str] = {}
    stdin: str | None = None


class Python(Struct, frozen=True, tag="python", omit_defaults=True):
    """A handler that the agent's application registered under this name."""

    handler: str
    takes: tuple[str, ...] = ()  # which of schedules.FILLED are parameters of its


Run = Command | Python


class Definition(Struct, frozen=True, omit_defaults=True):
    """What the user defines. Durations are seconds."""

    run: Run
    retry: Retry = Retry()
    timeout: float | None = None
    grace: float = 5.0  # between TERM and KILL, and for a cancelled handler to end
    delivery: Delivery = "at_least_once"
    priority: int = DEFAULT_PRIORITY
    requires: dict[str, str] = field(default_factory=dict)  # labels an agent must have
    description: str = ""


class Job(Struct, frozen=True):
    id: int
    name: str
    version: int
    pool: int
    definition: Definition
    namespace: str = "default"
