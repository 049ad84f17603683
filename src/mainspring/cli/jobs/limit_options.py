"""Limits of a job on the command line: their options, and how they are shown.

Next: cli/jobs/jobs.py; the rules are in model/limits/define_limits.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.parse import Whole

if TYPE_CHECKING:
    from mainspring.model.limits.limits import Limits

_OPTIONS = (
    click.option("--max-running", type=Whole(), metavar="N", help="At most so many of its tasks at once."),
    click.option("--concurrency-key", metavar="TEXT", help="Tasks with this key one at a time: 'shop:{shop}'."),
    click.option("--concurrency-limit", metavar="N", help="Tasks of one key at once; 1, or `none`."),
    click.option("--rate", metavar="N/UNIT", help="Starts per second, minute, hour or day: 100/minute."),
    click.option("--burst", type=Whole(), metavar="N", help="Starts of the rate that may come at once."),
    click.option("--rate-per", metavar="WHAT", help="job (default), or key: each has the rate for itself."),
)


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a job's limits, for a command that takes others too."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_limits(given: dict[str, Any]) -> dict[str, Any]:
    """Take the limits out of all that was given, as model.define takes them."""
    from mainspring.model.limits.define_limits import OPTIONS

    limits = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
    of_a_key = limits.get("concurrency_limit")
    if of_a_key is not None and of_a_key.isascii() and of_a_key.isdigit():
        limits["concurrency_limit"] = int(of_a_key)
    elif of_a_key == "none":
        limits["concurrency_limit"] = None
    return limits


def limit_fields(gate: Limits | None) -> dict[str, str]:
    """What a person sees of them."""
    from mainspring.model.limits.limits import in_words

    return {name.replace("_", " "): words for name, words in in_words(gate).items()}
