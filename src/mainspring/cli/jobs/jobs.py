"""`mainspring job list | show | create | delete`; cli/jobs/holds.py has `hold` and `release`.

Next: operations/definitions/jobs.py
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, with_options
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, name_of, pairs
from mainspring.cli.render import confirm, fields, print_if_json, table
from mainspring.errors import NameTaken, ValidationError

if TYPE_CHECKING:
    from mainspring.model.secrets.references import Value
    from mainspring.model.tasks.jobs import Http, Run

_http_options = with_options(
    click.option("--http", metavar="'METHOD URL'", help="Call this URL in place of a command: 'POST https://…'."),
    click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="Header of the call; repeatable."),
    click.option(
        "--secret-header", multiple=True, metavar="NAME=SECRET", help="Header with the value of a secret; repeatable."
    ),
    click.option("--body", metavar="TEXT", help="Body of the call; without one, POST sends the task's arguments."),
    click.option("--body-json", metavar="JSON", help="The same, as JSON."),
    click.option("--expect", multiple=True, metavar="STATUS", help="Good answers: 204, 2xx, 200-299; repeatable; 2xx."),
    click.option("--redirects", type=Whole(), metavar="N", help="Followed at most; 5."),
)
_limit_options = with_options(
    click.option("--max-running", type=Whole(), metavar="N", help="At most so many of its tasks at once."),
    click.option("--concurrency-key", metavar="TEXT", help="Tasks with this key one at a time: 'shop:{shop}'."),
    click.option("--concurrency-limit", metavar="N", help="Tasks of one key at once; 1, or `none`."),
    click.option("--rate", metavar="N/UNIT", help="Starts per second, minute, hour or day: 100/minute."),
    click.option("--burst", type=Whole(), metavar="N", help="Starts of the rate that may come at once."),
    click.option("--rate-per", metavar="WHAT", help="job (default), or key: each has the rate for itself."),
)


_keep_options = with_options(
    click.option(
        "--keep-succeeded", metavar="DURATION", help="Keep its succeeded, cancelled and skipped tasks so long; 0: not."
    ),
    click.option("--keep-failed", metavar="DURATION", help="Keep its failed, timed-out and lost tasks so long."),
)


@click.group(cls=Group)
def job() -> None:
    """See and define what can be run."""


@job.operation("list", "mainspring job list", "mainspring job list --json | jq '.[].name'")
async def list_jobs(client: Client) -> None:
    """Show all jobs."""
    from mainspring.cli.jobs.describe import held_by, last_ended, what_runs
    from mainspring.model.tasks.jobs import kind_of

    found = await client.every(operations.jobs.listing)
    if print_if_json(found):
        return
    table(
        ["NAME", "KIND", "RUNS", "LIVE", "LAST ENDED", "DESCRIPTION", "HELD"],
        [
            [
                *(view.name, kind_of(job.run), what_runs(job.run), view.live),
                *(last_ended(view.last_ended), job.description, held_by(view.held)),
            ]
            for view in found
            for job in (view.definition,)
        ],
        empty="no jobs yet; make one with `mainspring job create hello -- echo hello`",
        room=Room(cut=("NAME", "RUNS", "HELD", "DESCRIPTION"), drop=("DESCRIPTION", "KIND", "LAST ENDED")),
    )


@job.operation("show", "mainspring job show backup", "mainspring job show backup --reveal --json > backup.json")
@click.argument("name", type=name_of("job"))
@click.option("--reveal", is_flag=True, help="Show secrets, in place of ***; that is audited.")
async def show_job(client: Client, name: str, reveal: bool) -> None:
    """Show one job with its policies."""
    from mainspring.cli.jobs.describe import job_fields

    view = await client.call(operations.jobs.show, name, reveal=reveal)
    if print_if_json(view):
        return
    able = view.agents
    agents = able and (", ".join(able.names) or (able.wait and able.wait.reason))
    settings = await client.call(operations.settings.show)
    fields(job_fields(view, settings) | {"agents": agents})


@job.operation(
    "create",
    "mainspring job create backup --timeout 1h --retries 2 -- pg_dump shop",
    "mainspring job create tidy --shell -- 'find /tmp/shop -mtime +7 -delete'",
    "mainspring job create sync --backoff 10s,1m,10m --env REGION=eu -- ./sync.sh --all",
    "mainspring job create ping --http 'POST https://shop.example/ping' --header 'X-Shop: 7' --abort-on 4xx",
    "mainspring job create dump --user postgres --limit memory=512MB --limit cpu=60s -- pg_dump shop",
    "mainspring job create quotes --python --warm pandas -- quotes.py --all",
    "mainspring job create export --max-running 5 --concurrency-key 'shop:{shop}' --rate 100/minute -- ./export.sh",
)
@click.argument("name", type=name_of("name"))
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG]...]")
@_http_options
@click.option("--shell", is_flag=True, help="COMMAND is a line for /bin/sh; the ARGs are its $1, $2, …")
@click.option("--cwd", metavar="DIR", help="Directory to run in.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable for the command; repeatable.")
@click.option(
    "--secret-env", multiple=True, metavar="NAME=SECRET", help="Variable with the value of a secret; repeatable."
)
@click.option("--stdin", metavar="TEXT", help="What the command reads from its standard input.")
@click.option("--user", metavar="NAME", help="User to run as, if the agent allows it.")
@click.option("--limit", multiple=True, metavar="WHAT=MOST", help="memory=512MB, cpu=60s or files=256; repeatable.")
@click.option(
    "--python", is_flag=True, help="COMMAND is a Python script, or -m and a module; started ahead of its time."
)
@click.option(
    "--warm", multiple=True, metavar="MODULE", help="With --python: import this ahead of its time; repeatable."
)
@click.option("--timeout", metavar="DURATION", help="Stop a run after this long: 90, 10m, 1h30m.")
@click.option("--stalls-after", metavar="DURATION", help="Stop a run without output or progress for this long.")
@click.option("--grace", metavar="DURATION", help="Between TERM and KILL of a run that is stopped; 5s.")
@click.option(
    "--retries", type=Whole(), metavar="N", help="Further attempts after a failed one; of a command 0, with --http 3."
)
@click.option("--backoff", metavar="HOW", help="fixed, linear, exponential, jitter, or delays: 10s,1m,10m.")
@click.option("--retry-delay", metavar="DURATION", help="First delay of the backoff; 1s.")
@click.option("--max-retry-delay", metavar="DURATION", help="Longest delay of the backoff; 1h.")
@click.option("--retry-on", multiple=True, metavar="CODE", help="Retry only these exit codes or statuses; repeatable.")
@click.option(
    "--abort-on",
    multiple=True,
    metavar="CODE",
    help="Never retry these exit codes, statuses or error codes, such as lost; repeatable.",
)
@click.option("--delivery", metavar="HOW", help="at_least_once (default) or at_most_once.")
@click.option("--priority", metavar="LEVEL", help="low, normal, high, critical, or 0 to 9.")
@click.option("--requires", multiple=True, metavar="LABEL=VALUE", help="Label an agent must have; repeatable.")
@click.option("--broadcast", is_flag=True, help="Each task runs on every agent that matches, at the same instant.")
@click.option("--needs", multiple=True, metavar="NAME=AMOUNT", help="Amount an agent must have free; repeatable.")
@click.option("--prefer", multiple=True, metavar="LABEL=VALUE", help="Agents with this label first; repeatable.")
@click.option("--sticky", metavar="ARGUMENT", help="Tasks with the same value of it go to the same agent.")
@click.option("--placement", metavar="HOW", help="round_robin, least_tasks, resources or capability.")
@_limit_options
@click.option("--max-queued", type=Whole(), metavar="N", help="Refuse submissions while so many of its tasks wait.")
@click.option("--expires", metavar="DURATION", help="Skip a task that has not started so long after its time.")
@_keep_options
@click.option("--description", metavar="TEXT", help="What it is for.")
@click.option("--replace", is_flag=True, help="Change the job if there is one of this name.")
async def create_job(client: Client, /, name: str, argv: tuple[str, ...], replace: bool, **policies: Any) -> None:
    """Define a job that runs a command, or with --http one that calls a URL.

    The task's arguments reach the command as JSON in the variable MAINSPRING_ARGS. A call sends them as its body, or
    in the header Mainspring-Args where it has none or another one.
    """
    from mainspring.model.tasks.define_job import define

    limits, run = _take_limits(policies), _take_run(argv, policies)
    definition = define(run, _options(policies) | limits)
    try:
        change = await client.call(operations.jobs.put, name, definition, replace=replace)
        changed, what = change.changed, "created" if change.created else "changed" if change.changed else "unchanged"
    except NameTaken:
        # A script may create its jobs each time that it runs. One with masked secrets cannot be compared: a conflict.
        if (await client.call(operations.jobs.show, name)).definition != definition:
            raise
        changed, what = False, "unchanged"
    told = f"{what}; run it with `mainspring task submit {shlex.quote(name)}`"
    confirm({"name": name, "changed": changed}, told)


def _options(policies: dict[str, Any]) -> Any:
    """The options that were given, as `define` takes them."""
    from mainspring.model.placement.define_placement import parse_amounts

    given = {name: value for name, value in policies.items() if value is not None and value != ()}
    options = {name: value for name, value in given.items() if value is not False}  # zero is given, too
    if "," in options.get("backoff", "") or options.get("backoff", "")[:1].isdigit():
        options["backoff"] = options["backoff"].split(",")
    for field in ("requires", "prefer", "needs"):
        if field in options:
            options[field] = pairs(options[field], field=field)
    if "needs" in options:
        options["needs"] = parse_amounts(options["needs"], field="needs")
    return options


def _take_run(argv: tuple[str, ...], given: dict[str, Any]) -> Run:
    """Remove what a job runs from the options given: a command, or with --http a call."""
    from mainspring.model.tasks.define_job import command

    http = _take_http(given)
    names = ("shell", "cwd", "env", "secret_env", "stdin", "user", "limit", "python", "warm")
    options = {name: given.pop(name) for name in names}
    if http is not None:
        if argv or any(options.values()):
            raise ValidationError("http: an HTTP job has no command, nor what belongs to one", field="http")
        return http
    if not argv:
        raise ValidationError("argv: give a command behind --, or --http 'METHOD URL'", field="argv")
    env = _with_secrets(pairs(options.pop("env"), field="env"), options.pop("secret_env"), "secret-env")
    limits = pairs(options.pop("limit"), field="limit")
    return command(argv, env=env, limits=limits, **options)


def _take_http(given: dict[str, Any]) -> Http | None:
    """Remove the options of an HTTP job from those given; None if it is no HTTP job."""
    from mainspring.model.tasks.define_http import UNSET, http
    from mainspring.model.tasks.payload import decode

    call: str | None = given.pop("http")
    names = ("header", "secret_header", "body", "body_json", "expect", "redirects")
    options = {name: given.pop(name) for name in names}
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
        headers=_with_secrets(_headers(options.get("header", ())), options.get("secret_header", ()), "secret-header"),
        body=options.get("body"),
        json=decode(options["body_json"], "body_json") if "body_json" in options else UNSET,
        expect=options.get("expect", ()),
        redirects=options.get("redirects", 5),
    )


def _with_secrets(plain: dict[str, str], given: tuple[str, ...], field: str) -> dict[str, Value]:
    """Texts, and references to secrets: NAME=SECRET."""
    from mainspring.model.secrets.references import secret

    named = pairs(given, field=field)
    if twice := plain.keys() & named.keys():
        raise ValidationError(f"{field}: {min(twice)} is given twice", field=field)
    return {**plain, **{name: secret(name_of_secret) for name, name_of_secret in named.items()}}


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or name in found:
            raise ValidationError(f"header: {text[:100]!r} is not 'NAME: VALUE', or given twice", field="header")
        found[name] = value
    return found


def _take_limits(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the limits from the options given; returns them as `define` takes them."""
    from mainspring.model.limits.limits import OPTIONS

    limits = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
    of_a_key = limits.get("concurrency_limit")
    if of_a_key is not None and of_a_key.isascii() and of_a_key.isdigit():
        limits["concurrency_limit"] = int(of_a_key)
    elif of_a_key == "none":
        limits["concurrency_limit"] = None
    return limits


@job.operation("delete", "mainspring job delete backup")
@click.argument("name", type=name_of("job"))
async def delete_job(client: Client, name: str) -> None:
    """Remove a job that has no live tasks. Its history stays."""
    await client.call(operations.jobs.delete, name)
    confirm({"name": name, "deleted": True}, "deleted")
