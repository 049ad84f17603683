"""Define HTTP: a request from the options of an HTTP job; every error names its option.

Next: agent/executors/http.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from mainspring.errors import ValidationError, shown
from mainspring.model.secrets.references import SecretReference, Value, check_number, read_value
from mainspring.model.tasks.jobs import Http
from mainspring.model.tasks.payload import encode
from mainspring.model.words.names import check_text

MAX_URL = 8000  # characters; many servers refuse longer request lines
MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024  # of all of them together
MAX_BODY_BYTES = 1024 * 1024
MAX_REDIRECTS = 20

# Headers that the client sets itself, and those that could split one request into two.
RESERVED_HEADERS = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "idempotency-key"),
    }
)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_METHOD = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")
_ASCII_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_STATUS = re.compile(r"[1-5][0-9][0-9]|[1-5]xx|[1-5][0-9][0-9]-[1-5][0-9][0-9]")
UNSET: Any = object()  # None is JSON too


def http(
    method: str,
    url: str,
    *,
    headers: Mapping[str, Value] | None = None,
    body: str | None = None,
    json: Any = UNSET,
    expect: str | int | Sequence[str | int] = (),
    redirects: int = 5,
) -> Http:
    """A request. The body is the text `body` or the value `json`; `expect` has the statuses of success."""
    if not isinstance(method, str) or not _METHOD.fullmatch(method.upper()) or method.upper() == "CONNECT":
        raise ValidationError(f"method: {shown(method)}; give one such as GET or POST", field="method")
    checked = {} if headers is None else _headers(headers)
    if json is not UNSET:
        if body is not None:
            raise ValidationError("body, json: give one of them, not both", field="body")
        body = encode(json, "json")
        if "content-type" not in {name.lower() for name in checked}:
            checked["Content-Type"] = "application/json"
    if not isinstance(redirects, int) or isinstance(redirects, bool) or not 0 <= redirects <= MAX_REDIRECTS:
        raise ValidationError(f"redirects: {shown(redirects)}; give 0 to {MAX_REDIRECTS}", field="redirects")
    return Http(
        method=method.upper(),
        url=check_url(url),
        headers=checked,
        body=None if body is None else _body(body),
        expect=_expect(expect),
        redirects=redirects,
    )


def check_url(url: object, *, field: str = "url") -> str:
    """An absolute http or https URL without credentials in it."""
    text = check_text(url, field=field, limit=MAX_URL)
    if "\\" in text or not text.isprintable() or " " in text:  # programs differ in how they read these
        raise ValidationError(
            f"{field}: holds a space, a control character or a backslash; write it as %20", field=field
        )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValidationError(f"{field}: not a URL ({error})", field=field) from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValidationError(f"{field}: write http://HOST/PATH or https://HOST/PATH", field=field)
    if "@" in parts.netloc:  # it would be shown with the URL
        raise ValidationError(
            f"{field}: holds credentials; leave them out and give an Authorization header", field=field
        )
    if host.isascii() and not _ASCII_HOST.fullmatch(host):
        raise ValidationError(f"{field}: {shown(host)} is not the name of a host", field=field)
    return text


def _headers(given: Mapping[str, Value]) -> dict[str, Value]:
    if not isinstance(given, Mapping) or len(given) > MAX_HEADERS:
        raise ValidationError(f"headers: give up to {MAX_HEADERS} names with their values", field="headers")
    checked: dict[str, Value] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ValidationError(f"headers: {shown(name)} is not the name of a header", field="headers")
        if name.lower() in RESERVED_HEADERS or name.lower().startswith("mainspring-"):
            raise ValidationError(f"headers: {name} is set for you; leave it out", field="headers")
        if name.lower() in {other.lower() for other in checked}:
            raise ValidationError(f"headers: {name} is given twice", field="headers")
        read = read_value(value, field="headers", limit=MAX_HEADER_BYTES)
        checked[name] = read if isinstance(read, SecretReference) else check_header(name, read)
    check_number(checked, field="headers")
    texts = [(name, value) for name, value in checked.items() if isinstance(value, str)]
    if sum(len(name) + len(value.encode()) + 4 for name, value in texts) > MAX_HEADER_BYTES:
        raise ValidationError("headers: over 16 kB; servers would refuse them", field="headers")
    return checked


def check_header(name: str, value: str) -> str:
    """The value of a header, without the white space around it."""
    text = value.strip(" \t")
    if any((character < " " and character != "\t") or character == "\x7f" for character in text):
        raise ValidationError(f"headers: {name} holds a control character, such as a line end", field="headers")
    return text


def _body(body: object) -> str:
    text = check_text(body, field="body", limit=MAX_BODY_BYTES)
    if len(text.encode()) > MAX_BODY_BYTES:
        raise ValidationError("body: over 1 MB; store the data elsewhere and send a reference", field="body")
    return text


def _expect(given: str | int | Sequence[str | int]) -> tuple[str, ...]:
    """Statuses ("204"), classes ("2xx") and ranges ("200-299"); one or several, also separated by commas."""
    items = [given] if isinstance(given, (str, int)) else given
    if not isinstance(items, (list, tuple)):
        raise ValidationError(f"expect: {shown(given)}; give statuses such as 204, 2xx or 200-299", field="expect")
    for item in items:
        if not isinstance(item, str) and (not isinstance(item, int) or not 100 <= item <= 599):
            raise ValidationError(f"expect: {shown(item)}; give statuses such as 204, 2xx or 200-299", field="expect")
    words = [word.strip().lower() for item in items for word in str(item).split(",")]
    for word in words:
        first, _, last = word.partition("-")
        if not _STATUS.fullmatch(word) or (last and first > last):
            raise ValidationError(f"expect: {shown(word)}; give statuses such as 204, 2xx or 200-299", field="expect")
    return tuple(words)


def is_expected(expect: Sequence[str], status: int) -> bool:
    """Whether a response with this status is a success; by default any 2xx is."""
    for word in expect or ("2xx",):
        first, _, last = word.replace("x", "0").partition("-")
        end = last or (str(int(first) + 99) if "x" in word else first)
        if int(first) <= status <= int(end):
            return True
    return False
