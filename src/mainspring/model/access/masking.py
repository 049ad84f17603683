"""Masking: definitions and JSON with the values hidden that look like secrets.

Hidden are the values of headers, variables and arguments whose names look like a secret's, credentials in URLs, and
values in texts such as `PGPASSWORD=…`, and what looks like a credential in the addresses that are called with nothing
else to show for it. A reference `{"$secret": NAME}` stays: it names a secret and does not hold it.
A secret under a name that says nothing is not recognised; a reference is safe in any case.
Next: store/access/audit.py
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.secrets.references import SecretReference, is_reference

MASK = "***"

T = TypeVar("T")

_NAMES = r"authori[sz]|authentic|(?<![a-z])auth(?![a-z])|cookie|token|secret|passw|passphrase|pwd|signature|credential"
_SECRET = re.compile(rf"{_NAMES}|key|pass$", re.IGNORECASE)  # names of headers and variables
# `key` alone names no secret there.
_SECRET_ARGUMENT = re.compile(rf"{_NAMES}|(?:api|access|private)[ _-]?key", re.IGNORECASE)
LONGEST_NAME = 200  # characters of a name that are searched; a longer one hides its value

_MEMBERS = {"headers": _SECRET, "env": _SECRET, "environment": _SECRET, "args": _SECRET_ARGUMENT}

# An address that is itself a credential: knowing it is enough to call it.
_ADDRESSES = {"ping_url", "heartbeat_url"}
# A part of a path that is more likely a credential than a word.
_TOKEN = re.compile(r"(?=.*[0-9])[A-Za-z0-9_-]{16,}|[A-Za-z0-9_-]{32,}")

_PLAIN = (bool, int, float)  # they hold no secret

# JSON that has none of these, in lower case, holds nothing that is hidden in arguments.
_TRACES = tuple(
    trace.encode()
    for trace in (
        *("auth", "cookie", "token", "secret", "passw", "passphrase", "pwd", "signature", "credential", "://"),
        *(f"{kind}{between}key" for kind in ("api", "access", "private") for between in ("", "_", "-", " ")),
        *('"headers"', '"env"', '"environment"', *(f'"{name}"' for name in sorted(_ADDRESSES))),
    )
)
_LONGEST_TRACE = max(map(len, _TRACES))

SEARCHED = 8 * 1024  # characters that are searched in a step: a millisecond, whatever they are
VALUE = 8  # characters that a value counts beside its own

_SPACE = re.compile(r"\s")
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/]+@")
_BARE_USER = re.compile(r"(https?://)[^\s/:@]+@", re.IGNORECASE)  # a token without a name
# The name is searched by itself: one pattern for all of it would try each part of a long word, base64 for one.
_ASSIGNMENT = re.compile(r"(?<![\w-])[\w-]+=")
_ASSIGNED_NAME = _SECRET_ARGUMENT
_ASSIGNED_VALUE = re.compile(r"\"[^\"]*\"?|'[^']*'?|[^\s&#'\"]+")


def masked(value: T) -> T:
    """The same with secrets hidden: a struct or what JSON can hold, in the shape that it has."""
    found: T = _masked(value, None)
    return found


def _masked(value: Any, names: re.Pattern[str] | None) -> Any:
    """`names`: of the members of this mapping whose values are hidden.

    What has nothing to hide stays the same object: a struct leaves out of its JSON only its very own defaults.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        inner = _names_in(value, names)
        members = {name: _member(name, one, inner) for name, one in value.items()}
        return value if _same(members.values(), value.values()) else members
    if type(value) in (list, tuple):
        items = [_masked(one, names) for one in value]
        return value if _same(items, value) else type(value)(items)
    if isinstance(value, msgspec.Struct) and not isinstance(value, SecretReference):
        hidden = {}
        for name in value.__struct_fields__:
            one = getattr(value, name)
            if one and type(one) not in _PLAIN and (shown := _member(name, one, None)) is not one:
                hidden[name] = shown
        return msgspec.structs.replace(value, **hidden) if hidden else value
    return value


def _same(ones: Iterable[object], others: Iterable[object]) -> bool:
    return all(one is other for one, other in zip(ones, others, strict=True))


def _names_in(value: dict[Any, Any], names: re.Pattern[str] | None) -> re.Pattern[str] | None:
    """Of the members of this mapping, in one whose hidden members have `names`. The name of a secret is shown."""
    return None if is_reference(value) else names


def _member(name: Any, value: Any, names: re.Pattern[str] | None) -> Any:
    if _hides(name, value, names):
        return MASK
    if isinstance(value, str) and name in _ADDRESSES:
        return masked_url(value)
    return _masked(value, _names_below(name, value, names))


def _hides(name: Any, value: Any, names: re.Pattern[str] | None) -> bool:
    if names is None or not isinstance(name, str) or value is None or type(value) is bool or value == "":
        return False
    return (len(name) > LONGEST_NAME or names.search(name) is not None) and not is_reference(value)


def _names_below(name: Any, value: Any, names: re.Pattern[str] | None) -> re.Pattern[str] | None:
    """What hides a member in arguments or headers does so however deep they are nested."""
    return _MEMBERS.get(name, names) if isinstance(name, str) and isinstance(value, dict) else names


def hides_argument(path: str) -> bool:
    """Whether the value at this path of arguments, with dots, is hidden."""
    return any(_hides(part, path, _SECRET_ARGUMENT) for part in path.split("."))


def mask_arguments_in_steps(value: Any) -> Generator[None, None, Any]:
    """What `masked` makes of the value of a member `args`. What was just read from JSON, and is nobody else's, is
    changed in place, however long it is; others run between two steps."""
    root = [value]
    open: list[tuple[Any, re.Pattern[str] | None]] = [(root, _SECRET_ARGUMENT)]
    searched = 0
    while open:
        container, names = open.pop()
        is_mapping = type(container) is dict
        if is_mapping:
            names = _names_in(container, names)
        for place, one in container.items() if is_mapping else enumerate(container):
            name = place if is_mapping else None
            searched += VALUE + (len(name) if type(name) is str else 0) + (len(one) if type(one) is str else 0)
            if searched > SEARCHED:
                yield
                searched = 0
            if _hides(name, one, names):
                container[place] = MASK  # of a mapping that is walked only the values may change
            elif type(one) in (dict, list):
                open.append((one, _names_below(name, one, names)))
            elif type(one) is str and len(one) > SEARCHED:
                container[place] = MASK if name in _ADDRESSES else (yield from _text_in_steps(one))
            elif type(one) is str:
                container[place] = _member(name, one, names)
    return root[0]


def may_hide_in_steps(data: bytes) -> Generator[None, None, bool]:
    """Whether arguments, as PostgreSQL writes jsonb, may hold what is hidden: only then they need to be decoded."""
    for start in range(0, len(data), SEARCHED):
        part = data[start : start + SEARCHED + _LONGEST_TRACE].lower()
        if any(trace in part for trace in _TRACES):
            return True
        yield
    return False


def _text(text: str) -> str:
    if len(text) > SEARCHED and not any(trace in text.lower().encode(errors="replace") for trace in _TRACES):
        return text
    found = _without_assigned(text) if "=" in text else text
    if "://" in text:
        found = _PASSWORD.sub(rf"\g<1>:{MASK}@", found)
        found = _BARE_USER.sub(rf"\g<1>{MASK}@", found)
    return text if found == text else found


def _without_assigned(text: str) -> str:
    parts, shown = list[str](), 0
    for found in _ASSIGNMENT.finditer(text):
        if found.start() < shown or _ASSIGNED_NAME.search(found[0]) is None:
            continue
        if (value := _ASSIGNED_VALUE.match(text, found.end())) is not None:
            parts += (text[shown : found.end()], MASK)
            shown = value.end()
    return "".join((*parts, text[shown:])) if parts else text


def _text_in_steps(text: str) -> Generator[None, None, str]:
    """The same of a long text, in parts that end behind a space. A word that is too long for a part is not cut: it is
    hidden if it may hold a secret."""
    parts, start = list[str](), 0
    while start < len(text):
        stop = start + SEARCHED
        if stop >= len(text):
            parts.append(_text(text[start:]))
        elif (end := max(text.rfind(" ", start, stop), text.rfind("\n", start, stop)) + 1) > start:
            stop = end
            parts.append(_text(text[start:stop]))
        else:
            found = _SPACE.search(text, stop)
            stop = len(text) if found is None else found.start()
            parts.append(MASK if (yield from _is_suspect(text[start:stop])) else text[start:stop])
        start = stop
        yield
    return "".join(parts)


def _is_suspect(word: str) -> Generator[None, None, bool]:
    """Base64 ends with `=`, and has the names of secrets in it by chance."""
    if "://" not in word and "=" not in word.rstrip("="):
        return False
    return (yield from may_hide_in_steps(word.encode(errors="replace")))


def masked_url(url: str) -> str:
    """Without credentials: the user, values of the query, what looks like a token in the path."""
    try:
        parts = urlsplit(url)
    except ValueError:  # written by SQL
        return MASK
    user, at, host = parts.netloc.rpartition("@")
    path = "/".join(MASK if _TOKEN.fullmatch(part) else part for part in parts.path.split("/"))
    query = re.sub(r"=[^&]*", f"={MASK}", parts.query) if "=" in parts.query else MASK if parts.query else ""
    found = f"{parts.scheme}://{MASK + at if user else ''}{host}{path}{'?' if query else ''}{query}"
    return url if found == url else found


def restored(given: Any, present: Any) -> Any:
    """What was read with secrets masked, and is written back: each hidden value is what it is at present."""
    return _restored(given, present, masked(present))


def _restored(given: Any, present: Any, shown: Any) -> Any:
    if given == shown:
        return present
    if isinstance(given, dict) and isinstance(present, dict):
        return {
            name: _restored(one, present[name], shown[name]) if name in present else one for name, one in given.items()
        }
    if isinstance(given, list) and isinstance(present, list) and len(given) == len(present):
        return [_restored(*each) for each in zip(given, present, shown, strict=True)]
    return given


def check_unmasked(value: object) -> None:
    """Refuse a definition that was read with its secrets masked, and is written back."""
    if (path := next(_masks(value), None)) is not None:
        raise ValidationError(f"{path}: holds {MASK}, which hides a value; give the value itself", field=path)


def _masks(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, str):
        hides = value == MASK or f":{MASK}@" in value or f"://{MASK}@" in value or f"={MASK}" in value
        if hides or (path.rpartition(".")[2] in _ADDRESSES and MASK in value):
            yield path
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _masks(one, f"{path}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _masks(one, f"{path}[{number}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _masks(getattr(value, name), f"{path}.{name}".lstrip("."))
