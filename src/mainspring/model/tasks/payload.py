"""Payload: JSON of arguments, results, progress and checkpoints, within what every language and PostgreSQL can hold.

Next: sdk/signature.py
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.words.numbers import is_exact

MAX_BYTES = 1024 * 1024
KEPT_BYTES = 64 * 1024  # of arguments in a definition: every list of schedules and every plan time reads them
MAX_DEPTH = 64
MAX_ERROR = 8000  # characters of an error message

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)  # raised for JSON that Python cannot read

_LONG_NUMBER = re.compile(r"[0-9]{16}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode(value: Any, what: str, most: int = MAX_BYTES) -> str:
    """The value as JSON text; a ValidationError that begins with `what` if that is impossible."""
    if value is None:
        return "null"
    if most < MAX_BYTES:
        check_length(value, what, most)
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_foreign)
        check_value(plain, what)
        data = msgspec.json.encode(plain)
    except RecursionError:
        raise too_deep(what) from None
    except (TypeError, ValueError) as error:
        raise ValidationError(f"{what}: cannot be written as JSON ({error})", field=what) from None
    return checked_text(data, what, most)


def checked_text(data: bytes, what: str, most: int = MAX_BYTES) -> str:
    """JSON of values that were checked; ValidationError if it is too long, or text in it holds NUL."""
    text = data.decode()
    check_nul(text, what)
    if len(data) > most:
        raise _too_long(f"{len(data):,} bytes", what, most)
    return text


def _too_long(size: str, what: str, most: int) -> ValidationError:
    limit = "1 MB" if most == MAX_BYTES else f"{most // 1024} kB"
    return ValidationError(
        f"{what}: {size} of JSON; at most {limit}. Store the data elsewhere and pass a reference", field=what
    )


def check_length(value: Any, what: str, most: int) -> None:
    """ValidationError if its JSON takes more bytes, however its numbers and texts are written. Looks no further."""
    open, size = [value], 0
    while open and size <= most:
        item = open.pop()
        size += 1
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, (list, tuple, dict)):
            size += len(item)
            if size <= most:
                open += [*item, *item.values()] if isinstance(item, dict) else item
    if size > most:
        raise _too_long(f"more than {most // 1024} kB", what, most)


def check_nul(text: str, what: str) -> None:
    """ValidationError if text in this JSON holds NUL."""
    if "\\u0000" in text and _NUL.search(text):
        raise ValidationError(f"{what}: text must not hold NUL, PostgreSQL cannot store it", field=what)


def why_not(text: str) -> str | None:
    """Why JSON text of another process breaks these rules; None if it does not. Almost none does: it must be fast."""
    if len(text) > MAX_BYTES or (len(text) > MAX_BYTES // 4 and len(text.encode(errors="replace")) > MAX_BYTES):
        return "more than 1 MB of JSON"
    if "\0" in text or ("\\u0000" in text and _NUL.search(text)):
        return "a text that holds NUL"
    try:
        value = msgspec.json.decode(text)
        if text.count("[") + text.count("{") > MAX_DEPTH or _LONG_NUMBER.search(text):
            check_value(value, "JSON")
    except RecursionError:
        return too_deep("JSON").message
    except UNREADABLE as error:
        return f"not JSON that can be read ({str(error)[:200]})"
    except ValidationError as error:
        return error.message
    return None


def _foreign(value: Any) -> Any:
    """A type that msgspec does not know: Pydantic's types convert themselves, so that they can be read back."""
    pydantic = sys.modules.get("pydantic_core")
    root = type(value).__module__.partition(".")[0]
    if pydantic is not None and (hasattr(type(value), "__pydantic_serializer__") or root.startswith("pydantic")):
        try:
            return pydantic.to_jsonable_python(value, by_alias=False, round_trip=True)
        except pydantic.PydanticSerializationError as error:
            raise TypeError(str(error)) from None
    raise TypeError(f"{type(value).__name__} is not a type that JSON can hold")


def check_value(value: Any, what: str, depth: int = 1) -> None:
    """ValidationError if a value of JSON's own types breaks a rule; it stands at this depth of the whole."""
    if isinstance(value, (str, bool)) or value is None:
        return
    if isinstance(value, int):
        if not is_exact(value):
            raise ValidationError(
                f"{what}: an integer beyond ±2^53−1 loses digits in other languages; pass it as a string",
                field=what,
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValidationError(f"{what}: {value} is not a JSON number", field=what)
    else:
        if depth > MAX_DEPTH:
            raise too_deep(what)
        for item in value.values() if isinstance(value, dict) else value:
            check_value(item, what, depth + 1)


def too_deep(what: str) -> ValidationError:
    return ValidationError(f"{what}: JSON nested deeper than {MAX_DEPTH} levels", field=what)


def decode(text: str, what: str) -> Any:
    """JSON that a person typed, under the same rules and without duplicate keys."""
    value = decode_part(text, what)
    encode(value, what)
    return value


def decode_part(text: str, what: str, inner: Sequence[Any] = ()) -> Any:
    """JSON without duplicate keys, and nothing else checked. `inner` are values for what the text writes as NaN."""
    import json

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if len(set(keys)) < len(keys):
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise ValidationError(f"{what}: the key {shown(repeated)} appears twice", field=what)
        return dict(items)

    values = iter(inner)
    constants: dict[str, Any] = {"parse_constant": lambda _: next(values)} if inner else {}
    try:
        return json.loads(text, object_pairs_hook=pairs, **constants)
    except RecursionError:
        raise too_deep(what) from None
    except ValueError as error:
        raise ValidationError(f"{what}: not JSON ({error})", field=what) from None


def cut(text: str) -> str:
    """An error message that PostgreSQL can store; a long one is cut in its middle."""
    text = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
    if len(text) <= MAX_ERROR:
        return text
    half = MAX_ERROR // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
