"""Process limits: what one process of a command may use, from the option `limits`, and back in words.

Next: model/tasks/define_job.py
"""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.errors import ValidationError, shown
from mainspring.model.tasks.jobs import NO_LIMITS, ProcessLimits
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.sizes import Size, size, size_in_words

LEAST_MEMORY = 1 << 20  # no program starts with less
LEAST_FILES = 4  # stdin, stdout, stderr and the program itself
MOST_FILES = 1 << 20


def define_process_limits(given: Mapping[str, Size | Duration] | None) -> ProcessLimits:
    """{"memory": "512MB", "cpu": "60s", "files": 256}; ValidationError names what is wrong."""
    if given is None:
        return NO_LIMITS
    if not isinstance(given, Mapping):
        raise ValidationError(
            f"limits: {shown(given)}; give them as {{'memory': '512MB', 'cpu': '60s'}}", field="limits"
        )
    unknown = [name for name in given if name not in ProcessLimits.__struct_fields__]
    if unknown:
        raise ValidationError(
            f"limits: {shown(unknown[0])} cannot be limited; memory, cpu and files can", field="limits"
        )
    memory, cpu, files = given.get("memory"), given.get("cpu"), given.get("files")
    limits = ProcessLimits(
        memory=None if memory is None else size(memory, field="limits", at_least=LEAST_MEMORY),  # type: ignore[arg-type]
        cpu=None if cpu is None else seconds(cpu, field="limits", at_least=0.001),
        files=None if files is None else _files(files),
    )
    return NO_LIMITS if limits == NO_LIMITS else limits  # JSON leaves out the default by identity


def in_words(limits: ProcessLimits) -> dict[str, str]:
    """The limits that are set."""
    words = {
        "memory": None if limits.memory is None else size_in_words(limits.memory),
        "cpu": None if limits.cpu is None else f"{limits.cpu:g} s",
        "files": None if limits.files is None else str(limits.files),
    }
    return {name: limit for name, limit in words.items() if limit is not None}


def _files(given: object) -> int:
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 7:
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not LEAST_FILES <= given <= MOST_FILES:
        raise ValidationError(f"limits: {shown(given)} files; give {LEAST_FILES} to {MOST_FILES:,}", field="limits")
    return given
