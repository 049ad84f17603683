"""Waits: why no agent takes a task, in words that say what to do about it.

Next: operations/work/tasks.py
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from mainspring.model.limits.holds import Hold
from mainspring.model.limits.limits import Rate, plain_key
from mainspring.model.placement.placement import Requirements, copies, fits
from mainspring.model.tasks.states import TaskState

NAMED = 5  # agents or tasks at most, in a message
_LONGEST_CAUSE = 200  # characters
_PASSING = {
    *("after", "all_busy", "concurrency_key", "dependencies", "max_running", "rate", "retry"),
    *("held", "released"),
}


class Known(Struct, frozen=True):
    """A live agent, as the database knows it."""

    session: int
    name: str
    slots: int
    labels: dict[str, str]
    offers: dict[str, float]
    draining: bool = False
    due: int = 0  # due tasks that it holds
    used: dict[str, float] = {}  # of what it offers
    lead: float | None = None  # seconds before its time that a task is armed on it, as of its last renewal

    def is_free_for(self, needs: Mapping[str, float]) -> bool:
        free = {name: amount - self.used.get(name, 0.0) for name, amount in self.offers.items()}
        return self.due < self.slots and (not needs or copies(needs, free) > 0)


class Wait(Struct, frozen=True):
    """`code` is for programs: no_agents, no_application, no_labels, no_amounts, all_draining, all_busy; the limit:
    concurrency_key, max_running, rate; no_owner, if no server serves its segment; retry, until its next attempt; held,
    its job or everything; released, while what waited under a hold is let go; dependencies, until other tasks have
    ended; after, for a plan time of another schedule."""

    code: str
    what: str  # in a few words
    more: str = ""  # what is there instead, or what to do

    @property
    def reason(self) -> str:
        return f"{self.what}; {self.more}" if self.more else self.what

    @property
    def is_unrunnable(self) -> bool:
        """Whether it would wait even if all others ended."""
        return self.code not in _PASSING


def why(requirements: Requirements, agents: Sequence[Known]) -> Wait | None:
    """Why none of `agents`, which are all live ones, takes a due task; None if one of them can at once."""
    if not agents:
        start = "start one with `mainspring up`, `worker` or `agent`, and see that a server runs"
        return Wait("no_agents", "no agent is connected", start)
    app = requirements.labels.get("app")
    of_app = [agent for agent in agents if app is None or agent.labels.get("app") == app]
    if not of_app:
        start = "start `mainspring worker MODULE:APP`, or `mainspring up MODULE:APP`"
        return Wait("no_application", f"no agent runs the application {app!r}", f"{start}; {_there(agents)}")
    labels_only = Requirements(requirements.labels)
    labelled = [agent for agent in of_app if fits(labels_only, agent.labels, {})]
    if not labelled:
        return _no_labels(requirements.labels, of_app)
    able = [agent for agent in labelled if fits(requirements, agent.labels, agent.offers)]
    if not able:
        return _no_amounts(requirements.placement.needs, labelled)
    taking = [agent for agent in able if not agent.draining]
    if not taking:
        names = _listed(agent.name for agent in able)
        undrain = f"`mainspring agents undrain {able[0].name}` lets it take tasks again"
        return Wait("all_draining", f"every agent that could run it is draining: {names}", undrain)
    if any(agent.is_free_for(requirements.placement.needs) for agent in taking):
        return None
    busy = _listed(f"{agent.name} ({_in_use(agent, requirements.placement.needs)})" for agent in taking)
    return Wait("all_busy", f"every agent that could run it is busy: {busy}")


class Limited(Struct, frozen=True):
    """A task that waits for its limits, and their present use."""

    key: str | None = None  # as stored
    key_limit: int | None = None
    holders: Sequence[int] = ()  # tasks that hold slots of the key
    max_running: int | None = None
    running: int = 0
    rate: Rate | None = None
    next_in: float | None = None  # seconds until the rate allows a start


def why_limited(task: Limited) -> Wait | None:
    """The limit that it waits for; None if it is about to be released."""
    if task.key is not None and task.key_limit is not None and len(task.holders) >= task.key_limit:
        named = "task" if len(task.holders) == 1 else "tasks"
        verb = "has" if len(task.holders) == 1 else "have"
        holders = _listed(str(holder) for holder in task.holders)
        return Wait("concurrency_key", f"concurrency key {plain_key(task.key)!r}: {named} {holders} {verb} it")
    if task.max_running is not None and task.running >= task.max_running:
        return Wait("max_running", f"max_running: {task.running} of {task.max_running} run")
    if task.rate is not None and task.next_in is not None and task.next_in > 0:
        return Wait("rate", f"rate {task.rate.in_words}: next in {task.next_in:.1f} s")
    return None


class Retried(Struct, frozen=True):
    """A task whose next attempt is not due yet, and how its last one ended."""

    next_in: float  # seconds
    attempts: int  # so far
    retries: int  # its own, or those of its job
    daemon: bool = False
    error: str | None = None  # of the last attempt


def until_retry(task: Retried) -> Wait:
    """When the next attempt is due, and which one it is."""
    verb, number, most = "starts again" if task.daemon else "retry", task.attempts + 1, task.retries + 1
    of_most = f" of {most}" if number <= most else ""  # more than its retries: it crashed, or was rescued
    which = "" if task.daemon else f", attempt {number}{of_most}"
    after = (task.error or "").partition("\n")[0]
    cause = f", after: {after[:_LONGEST_CAUSE]}" if after else ""
    return Wait("retry", f"{verb} in {_duration(task.next_in)}{which}{cause}")


def after_others(parents: Sequence[tuple[int, int | None]], count: int) -> Wait:
    """The tasks that it waits for, the first of them with their states; None: it has ended just now."""
    shown = [f"{id} ({'ended' if state is None else TaskState(state).label})" for id, state in parents]
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return Wait("dependencies", f"waits for {'task' if count == 1 else 'tasks'} {', '.join(shown)}{more}")


def why_held(hold: Hold, job: str) -> Wait:
    """Who holds it and why; or until when what waited is let go."""
    if hold.spread_until is not None:
        until = f"{hold.spread_until:%Y-%m-%d %H:%M:%S} UTC"
        return Wait("released", f"it was released, and what waited is spread until {until}")
    what, target = ("everything", "") if hold.job is None else (f"job {job!r}", f" {shlex.quote(job)}")
    note = f": {hold.note}" if hold.note else ""
    told = f"{what} is held by {hold.held_by} since {hold.held_at:%Y-%m-%d %H:%M:%S} UTC{note}"
    return Wait("held", told, f"`mainspring {'job ' if target else ''}release{target}` lets it go on")


def no_owner(segment: int, problem: str) -> Wait:
    """No server plans and dispatches the tasks of this segment."""
    return Wait("no_owner", f"no server serves segment {segment}: {problem}", "see `mainspring segments`")


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _in_use(agent: Known, needs: Mapping[str, float]) -> str:
    amounts = (f"{name} {agent.used.get(name, 0.0):g} of {agent.offers[name]:g}" for name in needs)
    return ", ".join((f"{agent.due} of {agent.slots} slots", *amounts))


def able_names(requirements: Requirements, agents: Iterable[Known]) -> list[str]:
    """Names of the agents that can run it, now or once others have ended."""
    able = (a.name for a in agents if not a.draining and fits(requirements, a.labels, a.offers))
    return list(dict.fromkeys(able))


def _no_labels(required: Mapping[str, str], agents: Sequence[Known]) -> Wait:
    wanted = {name: value for name, value in required.items() if name != "app"}
    missing = {n: v for n, v in wanted.items() if not any(agent.labels.get(n) == v for agent in agents)}
    who = f"no agent of the application {required['app']!r}" if "app" in required else "no agent"
    together = "" if missing else " together"
    return Wait("no_labels", f"{who} has {_pairs(missing or wanted)}{together}", _there(agents))


def _no_amounts(needs: Mapping[str, float], agents: Sequence[Known]) -> Wait:
    most = {name: max(agent.offers.get(name, 0.0) for agent in agents) for name in needs}
    missing = {name: amount for name, amount in needs.items() if most[name] < amount}
    if not missing:
        return Wait("no_amounts", f"no agent offers {_amounts(needs)} together", _there(agents))
    offered = {name: most[name] for name in missing}
    return Wait(
        "no_amounts", f"no agent offers {_amounts(missing)}", f"the most that one offers is {_amounts(offered)}"
    )


def _there(agents: Sequence[Known]) -> str:
    return "agents there are: " + _listed(_described(agent) for agent in agents)


def _described(agent: Known) -> str:
    facts = ", ".join(part for part in (_pairs(agent.labels), _amounts(agent.offers)) if part)
    return f"{agent.name} ({facts})" if facts else agent.name


def _listed(words: Iterable[str]) -> str:
    different = list(dict.fromkeys(words))
    more = len(different) - NAMED
    return ", ".join(different[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in sorted(amounts.items()))
