"""HTTP jobs on the command line: their options, and how they are shown.

Next: cli/jobs/jobs.py; the rules are in model/tasks/define_http.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.parse import Whole
from mainspring.errors import ValidationError

if TYPE_CHECKING:
    from mainspring.model.tasks.jobs import Http

_OPTIONS = (
    click.option("--http", metavar="'METHOD URL'", help="Call this URL in place of a command: 'POST https://…'."),
    click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="Header of the call; repeatable."),
    click.option("--body", metavar="TEXT", help="Body of the call; without one, POST sends the task's arguments."),
    click.option("--body-json", metavar="JSON", help="The same, as JSON."),
    click.option("--expect", multiple=True, metavar="STATUS", help="Good answers: 204, 2xx, 200-299; repeatable; 2xx."),
    click.option("--redirects", type=Whole(), metavar="N", help="Followed at most; 5."),
)
_SECRET = ("authorization", "cookie", "key", "token", "secret", "password", "signature")


def http_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of an HTTP job, for a command that takes others too."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_http(given: dict[str, Any]) -> Http | None:
    """Take the options of an HTTP job out of all that were given; None if it is not one."""
    from mainspring.model.tasks.define_http import UNSET, http
    from mainspring.model.tasks.payload import decode

    call: str | None = given.pop("http")
    options = {name: given.pop(name) for name in ("header", "body", "body_json", "expect", "redirects")}
    options = {name: value for name, value in options.items() if value not in (None, ())}
    if call is None:
        if options:
            name = next(iter(options)).replace("_", "-")
            raise ValidationError(f"{name}: belongs to an HTTP job; give --http 'METHOD URL'", field=name)
        return None
    method, _, url = call.strip().rpartition(" ")
    return http(
        method.strip() or "GET",
        url,
        headers=_headers(options.get("header", ())),
        body=options.get("body"),
        json=decode(options["body_json"], "body_json") if "body_json" in options else UNSET,
        expect=options.get("expect", ()),
        redirects=options.get("redirects", 5),
    )


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or name in found:
            raise ValidationError(f"header: {text[:100]!r} is not 'NAME: VALUE', or given twice", field="header")
        found[name] = value
    return found


def http_fields(http: Http) -> dict[str, Any]:
    """What a person sees of it; not the headers that look like secrets, which `--json` gives."""
    headers = {
        name: "(not shown)" if any(word in name.lower() for word in _SECRET) else value
        for name, value in http.headers.items()
    }
    return {
        "headers": headers or None,
        "body": http.body,
        "expects": ", ".join(http.expect) or "2xx",
        "redirects": http.redirects,
    }
