"""Recent: what was created within a day is found without a look at the partitions of all other days.

Whatever is recorded of a task is recorded after its creation. So a statement that leaves out what was recorded before
an instant misses nothing of a task that was created after it, and most of what people and programs look at was. For
PostgreSQL it makes ten times the difference: it opens the partitions of two days, not those of thirty. What is not
certain is looked for again, without that bound.
The clock of this process only chooses the instant. Searches need plans that are made once for all values
(`plan_cache_mode`, store/postgres/database.py): for one that is made anew PostgreSQL looks at all partitions.
Next: store/search/search.py
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

WITHIN = timedelta(days=1)
SET_BACK = timedelta(hours=1)  # by which the database's clock may have been set back between creation and end
# Ids follow times of creation within this: a transaction may draw an id and be slow.
CREATED_WITHIN = timedelta(minutes=1)


def since() -> datetime:
    """What was recorded before it is left out."""
    return datetime.now(UTC) - WITHIN


def is_whole(created_at: datetime, since: datetime) -> bool:
    """Whether nothing of a task that was created then has been left out."""
    return created_at >= since + SET_BACK


def is_next(created_at: datetime, since: datetime) -> bool:
    """Whether no task with a greater id than one that was created then has been left out."""
    return created_at >= since + SET_BACK + CREATED_WITHIN
