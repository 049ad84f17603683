"""Define health: a health check from {"command": ["pg_isready"]} or {"http": "http://127.0.0.1:8080/healthz"}.

Next: agent/run/health.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mainspring.errors import ValidationError, shown
from mainspring.model.tasks.jobs import Health
from mainspring.model.words.durations import seconds
from mainspring.model.words.names import check_text

KNOWN = ("command", "http", "every", "timeout", "failures", "start")
MAX_FAILURES = 1000
MAX_URL = 2000


def define_health(given: Any) -> Health:
    """The health check; ValidationError says what is wrong with it."""
    if not isinstance(given, Mapping):
        raise _refused(
            f"{shown(given)}; give a dict such as {{'http': 'http://127.0.0.1:8080/healthz', 'every': '10s'}}"
        )
    unknown = [name for name in given if name not in KNOWN]
    if unknown:
        raise _refused(f"no option {shown(unknown[0])}; there are {', '.join(KNOWN)}")
    if ("command" in given) == ("http" in given):
        raise _refused("give one of command, a list of arguments, and http, a URL")
    failures = given.get("failures", 3)
    if not isinstance(failures, int) or isinstance(failures, bool) or not 1 <= failures <= MAX_FAILURES:
        raise _refused(f"failures: {shown(failures)}; give 1 to {MAX_FAILURES:,}")
    return Health(
        argv=_argv(given["command"]) if "command" in given else (),
        url=_url(given["http"]) if "http" in given else None,
        every=seconds(given.get("every", 10.0), field="health", at_least=0.1),
        timeout=seconds(given.get("timeout", 5.0), field="health", at_least=0.01),
        failures=failures,
        start=seconds(given.get("start", 0.0), field="health"),
    )


def _argv(given: Any) -> tuple[str, ...]:
    is_list = isinstance(given, (list, tuple))
    argv = tuple(check_text(item, field="health", limit=4096) for item in given) if is_list else ()
    if not argv or not argv[0]:
        raise _refused(f"command: {shown(given)}; give a list of arguments, the program first")
    return argv


def _url(given: Any) -> str:
    text = check_text(given, field="health", limit=MAX_URL)
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not text.isascii() or any(character <= " " for character in text):
        raise _refused(f"http: {shown(text[:100])} is not a URL such as http://127.0.0.1:8080/healthz")
    return text


def _refused(words: str) -> ValidationError:
    return ValidationError(f"health: {words}", field="health")
