"""Describe: a plan as lines for people.

Next: operations/manifests/describe.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.render import cell, counted, visible
from mainspring.model.words.instants import instant_text

if TYPE_CHECKING:
    from mainspring.model.manifests.manifest import Manifest
    from mainspring.operations.manifests.describe import Change
    from mainspring.operations.manifests.manifest import Plan

MOST_TEXT = 100  # characters of a value

_SIGNS = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "adopt": ("=", "cyan"),
    "delete": ("-", "red"),
}
_WHEN = ("cron", "every", "once", "daily", "weekly", "monthly", "daemon")  # told in words
_WORDS = {"created": "to create", "changed": "to change", "adopted": "to adopt", "deleted": "to delete"}


def summary(plan: Plan) -> str:
    """set shop: 2 to create, 1 to change, 14 unchanged"""
    parts = [f"{getattr(plan, name):,} {words}" for name, words in _WORDS.items() if getattr(plan, name)]
    told = ", ".join([*(parts or ["nothing to change"]), f"{plan.unchanged:,} unchanged"])
    return f"set {visible(plan.set)}: {told}" if plan.set else told


def lines(plan: Plan, manifest: Manifest, *, colour: bool) -> Iterator[str]:
    for change in plan.changes:
        sign, style = _SIGNS[change.action]
        first, *others = _told(change, manifest)
        head = f"{sign} {change.kind} {visible(change.name)}"
        yield f"{click.style(head, fg=style) if colour else head}{first}"
        yield from (f"    {line}" for line in others)


def _told(change: Change, manifest: Manifest) -> list[str]:
    match change.action:
        case "create":
            return [f": {_made(change, manifest)}"]
        case "adopt":
            return [": unchanged, and owned by the set from now on"]
        case "delete":
            return ["", *_recalled(change)]
    differences = [f"{name}: {_value(one.old)} → {_value(one.new)}" for name, one in change.changes.items()]
    if change.adopts:
        differences.append("made by hand until now; the set takes it over")
    return ["", *differences, *_next(change), *_recalled(change), *_users(change)]


def _made(change: Change, manifest: Manifest) -> str:
    """A new object, as the manifest says it."""
    from mainspring.model.access.masking import masked

    said: Any = masked(getattr(manifest, f"{change.kind}s")[change.name])
    if change.kind == "calendar":
        return ", ".join(map(str, said))
    if change.kind == "job":
        return ", ".join(f"{name} {_value(value)}" for name, value in said.items())
    others = {name: value for name, value in said.items() if name not in (*_WHEN, "job", "tz", "enabled")}
    parts = [f"{change.words} ({said.get('tz', 'UTC')}), job {visible(str(said.get('job')))}"]
    parts += [f"{name} {_value(value)}" for name, value in others.items()]
    parts += ["disabled"] if said.get("enabled") is False else []
    parts += [f"first {_instants(change.next_after)}"] if change.next_after else []
    return ", ".join(parts)


def _next(change: Change) -> list[str]:
    if change.kind != "schedule":
        return []
    before, after = _instants(change.next_before), _instants(change.next_after)
    told = [f"is then: {change.words}"] if change.words else []
    return [*told, f"next before: {before}", f"next after:  {after}"] if before != after else told


def _instants(given: Sequence[datetime]) -> str:
    return ", ".join(instant_text(at, "seconds") for at in given) or "none"


def _recalled(change: Change) -> list[str]:
    if (recalled := change.recalled) is None:
        return []
    found = []
    if recalled.taken_back:
        found.append(f"{counted(recalled.taken_back, 'planned task')} would be taken back")
    if recalled.asked_back:
        found.append(f"{counted(recalled.asked_back, 'planned task')} would be asked back from agents")
    if recalled.running:
        found.append(f"{counted(recalled.running, 'task')} running: would not be stopped")
    return found


def _users(change: Change) -> list[str]:
    return [f"followed by: {', '.join(map(visible, change.users))}"] if change.users else []


def _value(value: Any) -> str:
    text = visible("not set" if value is None else cell(value) if not isinstance(value, float) else f"{value:g}")
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
