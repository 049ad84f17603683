"""Options of `mainspring job create`: what the job runs, and its limits.

Next: model/tasks/define_job.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.base import with_options
from mainspring.cli.parse import Whole, pairs
from mainspring.errors import ValidationError

if TYPE_CHECKING:
    from mainspring.model.tasks.jobs import Http, Run

http_options = with_options(
    click.option("--http", metavar="'METHOD URL'", help="Call this URL in place of a command: 'POST https://…'."),
    click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="Header of the call; repeatable."),
    click.option("--body", metavar="TEXT", help="Body of the call; without one, POST sends the task's arguments."),
    click.option("--body-json", metavar="JSON", help="The same, as JSON."),
    click.option("--expect", multiple=True, metavar="STATUS", help="Good answers: 204, 2xx, 200-299; repeatable; 2xx."),
    click.option("--redirects", type=Whole(), metavar="N", help="Followed at most; 5."),
)
limit_options = with_options(
    click.option("--max-running", type=Whole(), metavar="N", help="At most so many of its tasks at once."),
    click.option("--concurrency-key", metavar="TEXT", help="Tasks with this key one at a time: 'shop:{shop}'."),
    click.option("--concurrency-limit", metavar="N", help="Tasks of one key at once; 1, or `none`."),
    click.option("--rate", metavar="N/UNIT", help="Starts per second, minute, hour or day: 100/minute."),
    click.option("--burst", type=Whole(), metavar="N", help="Starts of the rate that may come at once."),
    click.option("--rate-per", metavar="WHAT", help="job (default), or key: each has the rate for itself."),
)


def take_run(argv: tuple[str, ...], given: dict[str, Any]) -> Run:
    """Remove what a job runs from the options given: a command, or with --http a call."""
    from mainspring.model.tasks.define_job import command

    http = _take_http(given)
    options = {name: given.pop(name) for name in ("shell", "cwd", "env", "stdin", "user", "limit", "python", "warm")}
    if http is not None:
        if argv or any(options.values()):
            raise ValidationError("http: an HTTP job has no command, nor what belongs to one", field="http")
        return http
    if not argv:
        raise ValidationError("argv: give a command behind --, or --http 'METHOD URL'", field="argv")
    env, limits = pairs(options.pop("env"), field="env"), pairs(options.pop("limit"), field="limit")
    return command(argv, env=env, limits=limits, **options)


def _take_http(given: dict[str, Any]) -> Http | None:
    """Remove the options of an HTTP job from those given; None if it is no HTTP job."""
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


def take_limits(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the limits from the options given; returns them as `define` takes them."""
    from mainspring.model.limits.limits import OPTIONS

    limits = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
    of_a_key = limits.get("concurrency_limit")
    if of_a_key is not None and of_a_key.isascii() and of_a_key.isdigit():
        limits["concurrency_limit"] = int(of_a_key)
    elif of_a_key == "none":
        limits["concurrency_limit"] = None
    return limits
