"""Names: short, visible and storable text.

Next: model/tasks/define_job.py
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from mainspring.errors import ValidationError, shown

MAX_NAME = 200

# Control, format (bidi among them), surrogate and private characters; line and paragraph separators.
_REFUSED = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def check_name(name: object, *, field: str) -> str:
    """A name of 1 to 200 visible characters."""
    if not isinstance(name, str) or not name.strip() or name != name.strip():
        raise ValidationError(
            f"{field}: {shown(name)} is not a name; give 1 to {MAX_NAME} visible characters", field=field
        )
    if len(name) > MAX_NAME:
        raise ValidationError(f"{field}: {len(name)} characters; at most {MAX_NAME}", field=field)
    if name.isascii() and name.isprintable():
        return name  # as most: nothing to look up
    for character in name:
        if unicodedata.category(character) in _REFUSED:
            raise ValidationError(
                f"{field}: U+{ord(character):04X} is not allowed (control, bidi and surrogate characters are not)",
                field=field,
            )
    return name


def check_path_name(name: object, *, field: str) -> str:
    """The name of a job, a schedule, a calendar, a daemon or an agent: it is a part of paths of the HTTP API.

    Browsers and proxies rewrite paths with `.` and `..`, so nothing has such a name.
    """
    checked = check_name(name, field=field)
    if checked in (".", ".."):
        raise ValidationError(f"{field}: {shown(name)} cannot be a name, because it means a directory", field=field)
    return checked


def check_text(text: object, *, field: str, limit: int = 10_000) -> str:
    """Free text that PostgreSQL can hold."""
    if not isinstance(text, str):
        raise ValidationError(f"{field}: {shown(text)} is not text", field=field)
    if len(text) > limit:
        raise ValidationError(f"{field}: {len(text):,} characters; at most {limit:,}", field=field)
    if "\x00" in text:
        raise ValidationError(f"{field}: holds a NUL character", field=field)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{field}: holds a lone surrogate, which is not text", field=field) from None
    return text


def check_note(note: object) -> str:
    """What a person says about what they do."""
    return check_text(note, field="note", limit=500)


# What other schedulers call it.
_OTHER_NAMES = {"timezone": "tz", "interval": "every", "schedule": "cron", "max_attempts": "retries"}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    from difflib import get_close_matches  # seldom needed, and slow to load

    known = list(known)
    other = _OTHER_NAMES.get(name)
    close = [other] if other in known else get_close_matches(name[:100], known, 1)
    return close[0] if close else None


def unknown(name: str, known: Sequence[str], what: str) -> ValidationError:
    """A name that does not exist, with the nearest one that does."""
    name = name[:100]
    close = nearest(name, known)
    meant = f"did you mean {close}?" if close else f"there are {', '.join(sorted(known)) or 'none'}"
    return ValidationError(f"{name}: no such {what}; {meant}", field=name)
