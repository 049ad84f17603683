"""Requests: the first one of an attempt, and the next one after a redirect.

Pure. Redirects are followed as browsers do: 303 becomes GET, 301 and 302 turn POST into GET, 307 and 308 repeat the
request. Another origin gets only the plain headers of the job, because any other may be a secret.
Next: agent/executors/http_client.py
"""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.errors import ValidationError
from mainspring.model.flows.parents import shortened
from mainspring.model.secrets.references import SecretReference, Value
from mainspring.model.tasks.define_http import check_header, check_url
from mainspring.model.tasks.jobs import Http

REDIRECTS = (301, 302, 303, 307, 308)
LONGEST_ARGS = 8000  # bytes in a header: servers accept lines of 8 kB, name included
WITH_ARGS_AS_BODY = ("POST", "PUT", "PATCH")

_PLAIN = ("accept", "accept-encoding", "accept-language", "content-type", "content-language", "user-agent")
_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"


class Request(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None
    private: frozenset[str] = frozenset()  # names of headers with secrets, which no other origin gets

    @property
    def shown(self) -> str:
        """For messages: without the query, which may hold a secret."""
        return f"{self.method} {self.url.partition('?')[0].partition('#')[0]}"


def first_request(attempt: Attempt, http: Http) -> Request:
    """The job's headers override the defaults; those that name the attempt cannot be overridden."""
    body = None if http.body is None else http.body.encode()
    ours = {
        "Idempotency-Key": attempt.idempotency_key,
        "Mainspring-Task": str(attempt.armed.task),
        "Mainspring-Attempt": str(attempt.armed.attempt),
    }
    defaults = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "Mainspring"}
    if body is not None:
        defaults["Content-Type"] = "text/plain; charset=utf-8"
    if body is None and http.method in WITH_ARGS_AS_BODY:
        body, has_parents = _body(attempt)
        defaults["Content-Type"] = "application/json"
    else:
        has_parents = attempt.armed.parents is None
        if attempt.armed.args != "{}":
            ours["Mainspring-Args"] = _args_in_a_header(attempt.armed.args)
    if not has_parents and (parents := _parents_in_a_header(attempt)) is not None:
        ours["Mainspring-Parents"] = parents
    given = {name.lower() for name in http.headers}
    missing = {name: value for name, value in defaults.items() if name.lower() not in given}
    headers = {name: _header(attempt, name, value) for name, value in http.headers.items()}
    private = frozenset([name for name, value in http.headers.items() if isinstance(value, SecretReference)])
    return Request(http.method, http.url, missing | headers | ours, body, private)


def _header(attempt: Attempt, name: str, value: Value) -> str:
    if not isinstance(value, SecretReference):
        return value
    try:
        return check_header(name, attempt.resolved(value).strip())
    except ValidationError as error:
        raise AttemptFailed("secret_unavailable", f"secret {value.secret!r} fits no header: {error.message}") from None


def _body(attempt: Attempt) -> tuple[bytes, bool]:
    """The arguments, with what became of its parents as the member `parents`, unless an argument has that name."""
    args, parents = attempt.armed.args, attempt.armed.parents
    if parents is None:
        return args.encode(), True
    members = msgspec.json.decode(args, type=dict[str, msgspec.Raw])
    if "parents" in members:
        return args.encode(), False
    return msgspec.json.encode(members | {"parents": msgspec.Raw(parents.encode())}), True


def _parents_in_a_header(attempt: Attempt) -> str | None:
    """As much of it as a header holds; None if that is nothing."""
    assert attempt.armed.parents is not None
    text = json.dumps(json.loads(attempt.armed.parents), separators=(",", ":"))  # a header is ASCII
    return shortened(text, LONGEST_ARGS)


def _args_in_a_header(args: str) -> str:
    text = json.dumps(json.loads(args), separators=(",", ":"))  # a header is ASCII
    if len(text) > LONGEST_ARGS:
        raise AttemptFailed(
            "bad_arguments",
            f"the arguments are too long for a header: {len(text):,} bytes of JSON, and {LONGEST_ARGS:,} fit;"
            " a POST, PUT or PATCH without a body of its own sends them as its body",
            final=True,
        )
    return text


def next_request(request: Request, status: int, location: str) -> Request:
    """The request that a redirect asks for."""
    raw = location.encode(errors="surrogateescape")
    try:
        url = urljoin(request.url, quote(raw, safe=_URL_CHARACTERS))
        check_url(url, field="location")
    except (ValidationError, ValueError) as error:  # urljoin raises the second, for http://[
        reason = error.message if isinstance(error, ValidationError) else f"location: {error}"
        raise AttemptFailed(
            "http_redirect", f"{request.shown} answered {status}, and where to cannot be followed: {reason}"
        ) from None
    method, headers, body = request.method, request.headers, request.body
    if (status == 303 and method not in ("GET", "HEAD")) or (status in (301, 302) and method == "POST"):
        method, body = "GET", None
        headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
    if _origin(url) != _origin(request.url):
        headers = {name: value for name, value in headers.items() if _may_leave(name) and name not in request.private}
    return Request(method, url, headers, body, request.private)


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _may_leave(name: str) -> bool:
    return name.lower() in _PLAIN or name == "Idempotency-Key" or name.startswith("Mainspring-")
