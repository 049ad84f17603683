"""Payload: JSON of arguments, results, progress and checkpoints, within what every language and PostgreSQL can hold.

Next: sdk/signature.py
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.words.numbers import is_exact

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_ERROR = 8000  # characters of an error message

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)  # raised for JSON that Python cannot read

_LONG_NUMBER = re.compile(r"[0-9]{16}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode(value: Any, what: str) -> str:
    """The value as JSON text; a ValidationError that begins with `what` if that is impossible."""
    if value is None:
        return "null"
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_foreign)
        _check(plain, what, 1)
        data = msgspec.json.encode(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"{what}: cannot be written as JSON ({error})", field=what) from None
    text = data.decode()
    if "\\u0000" in text and _NUL.search(text):
        raise ValidationError(f"{what}: text must not hold NUL, PostgreSQL cannot store it", field=what)
    if len(data) > MAX_BYTES:
        raise ValidationError(
            f"{what}: {len(data):,} bytes of JSON; at most 1 MB. Store the data elsewhere and pass a reference",
            field=what,
        )
    return text


def why_not(text: str) -> str | None:
    """Why JSON text of another process breaks these rules; None if it does not. Almost none does: it must be fast."""
    if len(text) > MAX_BYTES or (len(text) > MAX_BYTES // 4 and len(text.encode(errors="replace")) > MAX_BYTES):
        return "more than 1 MB of JSON"
    if "\0" in text or ("\\u0000" in text and _NUL.search(text)):
        return "a text that holds NUL"
    try:
        value = msgspec.json.decode(text)
        if text.count("[") + text.count("{") > MAX_DEPTH or _LONG_NUMBER.search(text):
            _check(value, "JSON", 1)
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


def _check(value: Any, what: str, depth: int) -> None:
    if isinstance(value, (str, bool)) or value is None:
        return
    if isinstance(value, int):
        if not is_exact(value):
            raise ValidationError(
                f"{what}: an integer beyond ±2^53 loses digits in other languages; pass it as a string",
                field=what,
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValidationError(f"{what}: {value} is not a JSON number", field=what)
    else:
        if depth > MAX_DEPTH:
            raise ValidationError(f"{what}: JSON nested deeper than {MAX_DEPTH} levels", field=what)
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, what, depth + 1)


def decode(text: str, what: str) -> Any:
    """JSON that a person typed, under the same rules and without duplicate keys."""
    import json

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if len(set(keys)) < len(keys):
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise ValidationError(f"{what}: the key {shown(repeated)} appears twice", field=what)
        return dict(items)

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"{what}: not JSON ({error})", field=what) from None
    encode(value, what)
    return value


def cut(text: str) -> str:
    """An error message that PostgreSQL can store; a long one is cut in its middle."""
    text = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
    if len(text) <= MAX_ERROR:
        return text
    half = MAX_ERROR // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
