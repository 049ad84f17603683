"""Numbers: those that every language reads exactly, which are below 2^53 where numbers are floats.

Next: model/tasks/payload.py
"""

from __future__ import annotations

from mainspring.errors import ValidationError, shown

MAX_INTEGER = 2**53 - 1  # as a float 2^53 is also what 2^53 + 1 becomes


def is_exact(number: int) -> bool:
    """Whether a reader that parses JSON numbers as floats, such as JavaScript, gets this very number."""
    return abs(number) <= MAX_INTEGER


def check_id(id: object, *, field: str, of: str = "a task") -> int:
    """The number of a task, a batch, …: from 1 on, and below 2^53."""
    if not isinstance(id, int) or isinstance(id, bool) or not 0 < id <= MAX_INTEGER:
        raise ValidationError(f"{field}: {shown(id)} is not the number of {of}; give 1 to 2^53−1", field=field)
    return id
