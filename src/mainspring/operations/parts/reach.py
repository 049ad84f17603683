"""Reach: what is of all jobs is not for an actor that is narrowed to some.

Next: model/access/actors.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mainspring.errors import Forbidden
from mainspring.model.access.actors import Actor
from mainspring.model.access.patterns import overlap
from mainspring.model.words.globs import covering
from mainspring.store.figures import series
from mainspring.store.postgres.connection import Connection


def check_all(actor: Actor, what: str) -> None:
    """Forbidden for an actor that reaches only some jobs. `what` says why, such as "an agent runs tasks"."""
    if actor.jobs:
        raise _narrowed(actor, f"{what} of all jobs")


def check_each(actor: Actor, jobs: Iterable[str], what: str) -> None:
    """Forbidden if the actor does not reach each of these jobs. They are not named: it may not know of them."""
    if not all(actor.reaches(job) for job in jobs):
        raise _narrowed(actor, f"{what} of others")


def concerns(actor: Actor, globs: Sequence[str]) -> bool:
    """Whether what is for jobs of these names, in which `*` is special, can concern a job that the actor reaches."""
    return not actor.jobs or not globs or overlap(globs, actor.jobs)


async def job_ids(conn: Connection, actor: Actor) -> list[int] | None:
    """The jobs that the actor reaches; None: all."""
    return await series.job_ids(conn, covering(actor.jobs), actor.reaches) if actor.jobs else None


def _narrowed(actor: Actor, why: str) -> Forbidden:
    return Forbidden(f"{actor.name} reaches {', '.join(actor.jobs[:3])} only; {why}")
