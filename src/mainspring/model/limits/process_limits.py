"""Limits of a command from what people give, and back in words.

Next: model/tasks/define_job.py
"""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.errors import ValidationError
from mainspring.model.tasks.jobs import NO_LIMITS, Limits
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.sizes import Size, size, size_in_words

LEAST_MEMORY = 1 << 20  # less than any program needs only to start
LEAST_FILES = 4  # the three that every program has, and one to load itself from
MOST_FILES = 1 << 20


def limits_of(given: Mapping[str, Size | Duration] | None) -> Limits:
    """{"memory": "512MB", "cpu": "60s", "files": 256}; ValidationError names what is wrong."""
    if given is None:
        return NO_LIMITS
    if not isinstance(given, Mapping):
        raise ValidationError(f"limits: {given!r}; give them as {{'memory': '512MB', 'cpu': '60s'}}", field="limits")
    unknown = sorted(map(str, given.keys() - set(Limits.__struct_fields__)))
    if unknown:
        raise ValidationError(f"limits: {unknown[0]!r} cannot be limited; memory, cpu and files can", field="limits")
    memory, cpu, files = given.get("memory"), given.get("cpu"), given.get("files")
    limits = Limits(
        memory=None if memory is None else size(memory, field="limits", at_least=LEAST_MEMORY),  # type: ignore[arg-type]
        cpu=None if cpu is None else seconds(cpu, field="limits", at_least=0.001),
        files=None if files is None else _files(files),
    )
    return NO_LIMITS if limits == NO_LIMITS else limits  # the default itself is left out of JSON


def in_words(limits: Limits) -> dict[str, str]:
    """Those that there are."""
    told = {
        "memory": None if limits.memory is None else size_in_words(limits.memory),
        "cpu": None if limits.cpu is None else f"{limits.cpu:g} s",
        "files": None if limits.files is None else str(limits.files),
    }
    return {name: words for name, words in told.items() if words is not None}


def _files(given: object) -> int:
    text = str(given)
    is_count = isinstance(given, (int, str)) and text.isascii() and text.isdigit() and len(text) <= 7
    if not is_count or not LEAST_FILES <= int(text) <= MOST_FILES:
        raise ValidationError(f"limits: {given!r} files; give {LEAST_FILES} to {MOST_FILES:,}", field="limits")
    return int(text)
