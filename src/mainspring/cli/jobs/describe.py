"""A job in words: what `mainspring job show` prints for people."""

from __future__ import annotations

from shlex import join
from typing import Any

from mainspring.cli.render import pick
from mainspring.model.limits import limits, process_limits
from mainspring.model.tasks.jobs import Command, Definition, Http, Run, kind_of
from mainspring.model.tasks.retry import DEFAULT_RETRIES
from mainspring.operations.jobs import JobView

_KINDS = {"command": "commands", "http": "HTTP calls", "python": "handlers"}


def job_fields(view: JobView) -> dict[str, Any]:
    definition, placement = view.definition, view.definition.placement
    return {
        **pick(view, "name", "version"),
        "kind": kind_of(definition.run),
        "runs": what_runs(definition.run),
        **_run_fields(definition.run),
        "description": definition.description,
        "retries": _retries(definition),
        "timeout": None if definition.timeout is None else f"{definition.timeout:g} s",
        "grace": f"{definition.grace:g} s",
        **pick(definition, "delivery", "priority"),
        "requires": definition.requires or None,
        "needs": placement.needs or None,
        "prefer": placement.prefer or None,
        "sticky": placement.sticky,
        "placement": placement.strategy,
        "broadcast": "every agent that matches" if placement.broadcast else None,
        **{name.replace("_", " "): words for name, words in limits.in_words(definition.gate).items()},
    }


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
    if not isinstance(run, Command):
        return {}
    return {
        "shell": run.shell or None,
        "python": run.python or None,
        "warm": " ".join(run.warm),
        "user": run.user,
        "limits": ", ".join(f"{name} {limit}" for name, limit in process_limits.in_words(run.limits).items()),
        "cwd": run.cwd,
        "env": run.env or None,
        "stdin": run.stdin,
    }


def _http_fields(http: Http) -> dict[str, Any]:
    return {
        "headers": http.headers or None,
        "body": http.body,
        "expects": ", ".join(http.expect) or "2xx",
        "redirects": http.redirects,
    }


def _retries(definition: Definition) -> str:
    """How often and when it is retried, and whether that is the default of its kind."""
    retry, kind = definition.retry, kind_of(definition.run)
    delays = ", ".join(f"{delay:g} s" for delay in retry.delays) or f"{retry.backoff}, from {retry.delay:g} s"
    by_default = f"the default of {_KINDS[kind]}" if retry.retries == DEFAULT_RETRIES[kind] else ""
    if not retry.retries:
        return f"none ({by_default})" if by_default else "none"
    return f"{retry.retries} ({delays}{by_default and f'; {by_default}'})"
