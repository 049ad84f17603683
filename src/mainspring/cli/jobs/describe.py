"""A job in words: what `mainspring job show` prints for people."""

from __future__ import annotations

from datetime import datetime, timedelta
from shlex import join
from typing import Any

from msgspec import to_builtins

from mainspring.cli.render import cell, pick
from mainspring.model.limits import limits, process_limits
from mainspring.model.schedules.story import span
from mainspring.model.settings import RunTimeSettings, unless_off
from mainspring.model.tasks.jobs import Command, Definition, Http, Python, Run, kind_of, uses_default_retries
from mainspring.model.tasks.retry import DEFAULT_RETRIES
from mainspring.operations.definitions.holds import HoldView
from mainspring.operations.definitions.jobs import JobView
from mainspring.store.figures.last_ended import LastEnded

_KINDS = {"command": "commands", "http": "HTTP calls", "python": "handlers"}


def job_fields(view: JobView, settings: RunTimeSettings) -> dict[str, Any]:
    """`settings` are those of the cluster, which hold for what the job leaves out."""
    definition, placement = view.definition, view.definition.placement
    return {
        **pick(view, "name", "version"),
        "kind": kind_of(definition.run),
        "runs": what_runs(definition.run),
        **_run_fields(definition.run),
        "description": definition.description,
        "retries": _retries(definition, settings.default_retries),
        "timeout": _or_default(definition.timeout, unless_off(settings.default_timeout)),
        "stalls after": None if definition.stalls_after is None else f"{definition.stalls_after:g} s without a sign",
        "grace": f"{definition.grace:g} s",
        **pick(definition, "delivery", "priority"),
        "max queued": definition.max_queued,
        "expires": _or_default(definition.expires, settings.default_expires, " after its time"),
        "requires": definition.requires or None,
        "needs": placement.needs or None,
        "prefer": placement.prefer or None,
        "sticky": placement.sticky,
        "placement": placement.strategy,
        "broadcast": "every agent that matches" if placement.broadcast else None,
        "keep succeeded": _keep(definition.keep_succeeded),
        "keep failed": _keep(definition.keep_failed),
        **{name.replace("_", " "): words for name, words in limits.in_words(definition.gate).items()},
        "last ended": last_ended(view.last_ended),
        "held": held(view.held),
        **pick(view, "app", "manifest"),
    }


def _or_default(own: float | None, of_cluster: float | None, then: str = "") -> str | None:
    """A duration of the job, or that of the cluster where the job has none."""
    if own is not None:
        return f"{own:g} s{then}"
    return None if of_cluster is None else f"{of_cluster:g} s{then} (the default of the cluster)"


def _keep(seconds: float | None) -> str | None:
    return None if seconds is None else span(timedelta(seconds=seconds))


def held_by(hold: HoldView | None) -> str | None:
    """In a list."""
    return None if hold is None else "released" if hold.released_at is not None else f"by {hold.by}"


def held(hold: HoldView | None) -> str | None:
    """Who holds it, since when and why."""
    if hold is None:
        return None
    if hold.released_at is not None:
        return f"released; what waited is let go until {cell(hold.spread_until)}"
    plan_times = "; plan times are skipped" if hold.skip else ""
    return f"by {hold.by} since {cell(hold.since)}{f': {hold.note}' if hold.note else ''}{plan_times}"


def last_ended(last: LastEnded | None) -> str | None:
    """How the tasks of a job ended last: 2 succeeded, 1 failed at 14:05."""
    if last is None:
        return None
    at = last.at.astimezone()
    when = at.strftime("%H:%M" if at.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M")
    return f"{', '.join(f'{tasks:,} {state}' for state, tasks in last.outcomes.items())} at {when}"


def what_runs(run: Run) -> str:
    """The command line, the URL or the name of the handler."""
    if isinstance(run, Http):
        return f"{run.method} {run.url}"
    if not isinstance(run, Command):
        return run.handler
    if run.python:
        return f"python {join(run.argv)}"
    return run.argv[0] if run.shell and len(run.argv) == 1 else join(run.argv)


def _run_fields(run: Run) -> dict[str, Any]:
    if isinstance(run, Http):
        return _http_fields(run)
    if isinstance(run, Python):
        return {
            "chunk": None
            if run.chunk is None
            else f"up to {run.chunk} tasks in one call, after {run.chunk_wait:g} s at the latest"
        }
    return {
        "shell": run.shell or None,
        "python": run.python or None,
        "warm": " ".join(run.warm),
        "user": run.user,
        "limits": ", ".join(f"{name} {limit}" for name, limit in process_limits.in_words(run.limits).items()),
        "cwd": run.cwd,
        "env": to_builtins(run.env) or None,
        "stdin": run.stdin,
    }


def _http_fields(http: Http) -> dict[str, Any]:
    return {
        "headers": to_builtins(http.headers) or None,
        "body": http.body,
        "expects": ", ".join(http.expect) or "2xx",
        "redirects": http.redirects,
    }


def _retries(definition: Definition, of_cluster: int | None) -> str:
    """How often and when it is retried, and whether that is the default of the cluster or of its kind."""
    retry, kind = definition.retry, kind_of(definition.run)
    delays = ", ".join(f"{delay:g} s" for delay in retry.delays) or f"{retry.backoff}, from {retry.delay:g} s"
    is_of_cluster = uses_default_retries(definition) and of_cluster is not None
    retries = of_cluster if is_of_cluster else retry.retries
    by_default = f"the default of {_KINDS[kind]}" if retry.retries == DEFAULT_RETRIES[kind] else ""
    if is_of_cluster:
        by_default = "the default of the cluster"
    if not retries:
        return f"none ({by_default})" if by_default else "none"
    return f"{retries} ({delays}{by_default and f'; {by_default}'})"
