"""The schedules of the torture run: told once, for the application that has them and for the oracle that counts them.

Next: tests/torture/app.py and tests/torture/oracle.py
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Delivery = Literal["at_least_once", "at_most_once", "effectively_once"]
Overlap = Literal["allow", "skip", "queue", "queue_all"]


class Tick(NamedTuple):
    """A schedule, and the job of the same name. One of `cron` and `every` is given."""

    name: str
    cron: str = ""
    every: int = 0  # seconds, counted from 1970
    scopes: tuple[str, ...] = ()
    overlap: Overlap = "allow"
    wait: float = 0.0  # seconds that a run takes
    delivery: Delivery = "at_least_once"
    command: bool = False


TIMETABLE = (
    Tick("each-third-second", cron="*/3 * * * * *", wait=0.05),
    Tick("listed-seconds", cron="1,8,20-40/5,59 * * * * *", wait=0.5),
    Tick("two-tenants", every=3, scopes=("north", "south"), wait=0.1),
    Tick("long-in-turn", every=6, overlap="queue_all", wait=1.5),
    Tick("longer-than-its-period", every=3, overlap="skip", wait=4.0),
    Tick("one-waits", every=4, overlap="queue", wait=5.0),
    Tick("at-most", every=5, wait=0.5, delivery="at_most_once"),
    Tick("paid", every=4, wait=0.2, delivery="effectively_once"),
    Tick("program", cron="*/7 * * * * *", wait=0.3, command=True),
)
