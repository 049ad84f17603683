"""Priority rules: list, show, put, delete; and which one would decide, and why the others do not.

Next: store/flows/rules.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from mainspring.errors import JobNotFound, NameTaken, RuleNotFound, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.flows.options import check_tags
from mainspring.model.flows.rules import COUNTED, ORIGINS, Condition, NewRule, Rule, check_rule, known, path
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.payload import encode
from mainspring.model.words.globs import matches
from mainspring.model.words.names import check_path_name
from mainspring.operations.parts import reach
from mainspring.operations.parts.by_name import check_version
from mainspring.store.access import audit
from mainspring.store.flows import rules
from mainspring.store.flows.rules import Stored
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import jobs

Origin = Literal["submitted", "schedule", "batch"]


class RuleView(msgspec.Struct, frozen=True):
    name: str
    version: int
    order: int
    jobs: str
    when: list[Condition]
    priority: int | None
    shift: int | None
    force: bool
    enabled: bool
    namespace: str = "default"


class RuleChange(msgspec.Struct, frozen=True):
    rule: RuleView
    changed: bool
    created: bool


class ConditionAnswer(msgspec.Struct, frozen=True):
    condition: str  # in words
    holds: bool
    is_now: Any  # what the field is


class RuleAnswer(msgspec.Struct, frozen=True):
    """What one rule says of a task."""

    rule: str
    decides: bool
    reason: str
    conditions: list[ConditionAnswer]


class RuleTest(msgspec.Struct, frozen=True):
    priority: int  # that the task would get
    rule: str | None  # the one that decides; None: the submission or the job does
    reason: str
    rules: list[RuleAnswer]  # all, in their order


async def listing(conn: Connection, actor: Actor) -> list[RuleView]:
    """The priority rules, in the order in which they are asked; those that can concern a job within reach."""
    return [_view(stored) for stored in await rules.listing(conn) if reach.concerns(actor, [stored.rule.jobs])]


async def show(conn: Connection, actor: Actor, name: str) -> RuleView:
    """One priority rule, as it stands."""
    found = await _find(conn, name)
    if not reach.concerns(actor, [found.rule.jobs]):
        raise _not_found(name)
    return _view(found)


async def put(
    conn: Connection, actor: Actor, name: str, rule: NewRule, *, replace: bool = True, version: int | None = None
) -> RuleChange:
    """Make a rule or replace it; submissions obey it from its commit on, tasks that wait keep their priority."""
    reach.check_all(actor, "rules are for jobs")
    wanted = check_rule(name, rule)
    async with conn.transaction():
        present = await rules.find(conn, name, lock=True)
        if present is not None:
            check_version("rule", name, present.version, version)
            if not replace:
                raise NameTaken(f"there is a rule named {name!r}", field="name")
        elif version is not None:
            raise _not_found(name)
        changed = present is None or present.rule != wanted
        if changed:
            await rules.put(conn, wanted)
            before = None if present is None else _told(present.rule)
            await audit.changed(conn, actor, "rule.put", f"rule:{name}", before, _told(wanted))
        return RuleChange(_view(await _find(conn, name)), changed, created=present is None)


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> None:
    """Remove a rule. Tasks that got their priority by it keep it."""
    reach.check_all(actor, "rules are for jobs")
    async with conn.transaction():
        present = await _find(conn, name, lock=True)
        check_version("rule", name, present.version, version)
        await rules.delete(conn, name)
        await audit.changed(conn, actor, "rule.delete", f"rule:{name}", _told(present.rule), None)


async def explain(
    conn: Connection,
    actor: Actor,
    job: str,
    *,
    args: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    priority: str | int | None = None,
    origin: Origin = "submitted",
    submitter: str | None = None,
) -> RuleTest:
    """Which rule would decide the priority of such a task, and why the others do not. Nothing is submitted."""
    if origin not in ORIGINS:
        raise ValidationError(f"origin: {shown(origin)}; use {', '.join(ORIGINS)}", field="origin")
    if not actor.reaches(job):
        raise JobNotFound(f"no job named {job!r}; `mainspring job list` shows what there is", field="job")
    definition = (await jobs.find(conn, job)).definition
    given = None if priority is None else priority_level(priority)
    found = [stored for stored in await rules.listing(conn) if reach.concerns(actor, [stored.rule.jobs])]
    facts = await rules.facts(
        conn, job, encode(dict(args or {}), "args"), check_tags(list(tags)), origin, submitter or actor.name, COUNTED
    )
    conditions = [condition for stored in found for condition in stored.rule.when]
    held = iter(await rules.holds(conn, facts, [path(condition) for condition in conditions]))
    level = definition.priority if given is None else given
    reason = "the submission says so" if given is not None else f"the job {job!r} says so; no rule fits"
    decided: str | None = None
    answers = []
    for stored in found:
        rule = stored.rule
        each = [
            ConditionAnswer(condition.in_words, next(held), known(msgspec.json.decode(facts), condition.field))
            for condition in rule.when
        ]
        why_not = _why_not(rule, job, given, each) if decided is None else f"rule {decided!r} decides before it"
        if why_not is None:
            decided = rule.name
            level = rule.priority if rule.priority is not None else max(0, min(9, level + (rule.shift or 0)))
            reason = f"by rule {rule.name!r}"
        answers.append(RuleAnswer(rule.name, why_not is None, why_not or "it fits", each))
    return RuleTest(level, decided, reason, answers)


def _why_not(rule: Rule, job: str, given: int | None, answers: Sequence[ConditionAnswer]) -> str | None:
    if not rule.enabled:
        return "it is disabled"
    if not matches(job, [rule.jobs]):
        return f"it is for the jobs {rule.jobs!r}"
    if given is not None and not rule.force:
        return "the submission gave a priority, and the rule has no force"
    for answer in answers:
        if not answer.holds:
            return f"{answer.condition}: it is {shown(answer.is_now)}"
    return None


async def _find(conn: Connection, name: str, *, lock: bool = False) -> Stored:
    found = await rules.find(conn, check_path_name(name, field="rule"), lock=lock)
    if found is None:
        raise _not_found(name)
    return found


def _not_found(name: str) -> RuleNotFound:
    return RuleNotFound(f"no rule named {name!r}; `mainspring rule list` shows what there is", field="rule")


def _view(stored: Stored) -> RuleView:
    rule = stored.rule
    return RuleView(
        rule.name, stored.version, rule.order, rule.jobs, list(rule.when), rule.priority, rule.shift, rule.force,
        rule.enabled,
    )  # fmt: skip


def _told(rule: Rule) -> dict[str, Any]:
    """For the audit."""
    told = rule._asdict()
    del told["name"]
    return {**told, "when": [condition.in_words for condition in rule.when]}
