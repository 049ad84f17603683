"""Priority rules: which tasks get another priority than their job says, by what is known when they are made.

    {"name": "core repositories", "order": 20, "jobs": "build*",
     "when": [{"field": "args.repository", "is": "in", "value": ["core", "main"]}], "priority": "high"}

All conditions of a rule must hold, and the first rule that fits decides. mainspring.by_rules() (0001_schema.sql, 7)
evaluates them, so that SQL obeys as well: a rule becomes a jsonpath here, which is true of the facts about a task that
it fits.
Next: store/flows/rules.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Struct

from mainspring.errors import ValidationError, shown
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.words.globs import as_like
from mainspring.model.words.names import check_name, check_path_name, check_text

Operator = Literal["=", "in", "like", "<", ">", "has"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)
PLAIN_FIELDS = ("tag", "args_count", "args_bytes", "origin", "submitter", "load", "waiting")
COUNTED = ("args_count", "args_bytes", "load", "waiting")  # numbers that cost a look when a task is made
ORIGINS = ("submitted", "schedule", "batch")

MAX_CONDITIONS = 20
MAX_VALUES = 100  # of one condition
MAX_POSITION = 1_000_000
DEFAULT_ORDER = 100

Scalar = str | int | float | bool | None


class Condition(Struct, frozen=True, forbid_unknown_fields=True, rename={"operator": "is"}):
    """`field` is one of PLAIN_FIELDS, or args.PATH."""

    field: str
    operator: Operator
    value: Any

    @property
    def in_words(self) -> str:
        value = ", ".join(map(_word, self.value)) if isinstance(self.value, (list, tuple)) else _word(self.value)
        return f"{self.field} {self.operator} {value}"


class NewRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as people write it. One of `priority` and `shift` is given."""

    order: int = DEFAULT_ORDER  # rules are asked in this order, then by name
    jobs: str = "*"  # pattern of the names of jobs
    when: Sequence[Condition] = ()  # all must hold; none: always
    priority: str | int | None = None  # low, normal, high, critical, or 0 to 9
    shift: int | None = None  # levels up or down
    force: bool = False  # also where the submission gave a priority
    enabled: bool = True


class Rule(NamedTuple):
    """A checked rule: what is stored."""

    name: str
    order: int
    jobs: str
    when: tuple[Condition, ...]
    priority: int | None
    shift: int | None
    force: bool
    enabled: bool

    @property
    def job_like(self) -> str:
        return as_like(self.jobs)

    @property
    def fields(self) -> list[str]:
        """What it looks at besides arguments and tags, which are at hand."""
        return sorted({condition.field for condition in self.when} & {"origin", "submitter", *COUNTED})

    @property
    def path(self) -> str:
        """The jsonpath that is true of a task that it fits."""
        return " && ".join(f"({path(condition)})" for condition in self.when) or "exists($)"


def check_rule(name: str, given: NewRule) -> Rule:
    """The rule; ValidationError names what is wrong with it."""
    check_path_name(name, field="rule")
    if (given.priority is None) == (given.shift is None):
        raise ValidationError(
            "priority, shift: give one of them: a level, or how many levels up or down", field="shift"
        )
    if given.shift is not None and (isinstance(given.shift, bool) or not given.shift or not -9 <= given.shift <= 9):
        raise ValidationError(f"shift: {shown(given.shift)}; give -9 to 9, and not 0", field="shift")
    if not 0 <= given.order <= MAX_POSITION:
        raise ValidationError(f"order: {given.order}; give 0 to {MAX_POSITION:,}", field="order")
    if len(given.when) > MAX_CONDITIONS:
        raise ValidationError(f"when: {len(given.when)} conditions; at most {MAX_CONDITIONS}", field="when")
    for number, condition in enumerate(given.when):
        _check_condition(condition, f"when[{number}]")
    return Rule(
        name,
        given.order,
        check_name(given.jobs, field="jobs"),
        tuple(given.when),
        None if given.priority is None else priority_level(given.priority),
        given.shift,
        given.force,
        given.enabled,
    )


def _check_condition(condition: Condition, place: str) -> None:
    field, operator, value = condition.field, condition.operator, condition.value
    if field not in PLAIN_FIELDS and not re.fullmatch(r"args(\.[^.]+)+", check_text(field, field=place, limit=200)):
        raise ValidationError(
            f"{place}.field: {shown(field)}; give {', '.join(PLAIN_FIELDS)}, or args.NAME", field=f"{place}.field"
        )
    if operator not in OPERATORS:
        raise ValidationError(f"{place}.is: {shown(operator)}; use {', '.join(OPERATORS)}", field=f"{place}.is")
    if operator == "in":
        if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_VALUES:
            raise ValidationError(
                f"{place}.value: {shown(value)}; with `in` give a list of 1 to {MAX_VALUES}", field=f"{place}.value"
            )
        wrong = [each for each in value if not _is_scalar(each)]
    else:
        wrong = [] if _is_scalar(value) else [value]
    if operator in ("<", ">") and not (isinstance(value, (int, float)) and not isinstance(value, bool)):
        raise ValidationError(f"{place}.value: {shown(value)}; {operator} compares numbers", field=f"{place}.value")
    if operator == "like" and not isinstance(value, str):
        raise ValidationError(f"{place}.value: {shown(value)}; give text with * such as core-*", field=f"{place}.value")
    if wrong:
        raise ValidationError(
            f"{place}.value: {shown(wrong[0])}; give text, a number, true, false or null", field=f"{place}.value"
        )
    if field == "origin":
        given = value if isinstance(value, (list, tuple)) else [value]
        if operator != "like" and any(each not in ORIGINS for each in given):
            raise ValidationError(f"{place}.value: {shown(value)}; use {', '.join(ORIGINS)}", field=f"{place}.value")


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        check_text(value, field="value", limit=1000)
        return True
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and value - value == 0)


# ── as jsonpath ─────────────────────────────────────────────────────────────────────────────────


def path(condition: Condition) -> str:
    """One condition. In the lax mode of jsonpath a list is looked into, and what is missing fits nothing."""
    subject = "$" + "".join(f".{_literal(step)}" for step in condition.field.split("."))
    if condition.operator == "has":
        return f"{subject}[*] == {_literal(condition.value)}"
    if condition.operator == "in":
        return " || ".join(f"{subject} == {_literal(value)}" for value in condition.value)
    if condition.operator == "like":
        pattern = ".*".join(re.escape(part) for part in condition.value.split("*"))
        return f'{subject} like_regex {_literal(f"^{pattern}$")} flag "s"'
    return f"{subject} {'==' if condition.operator == '=' else condition.operator} {_literal(condition.value)}"


def _literal(value: Scalar) -> str:
    return msgspec.json.encode(value).decode()


def _word(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def known(facts: Mapping[str, Any], field: str) -> Any:
    """What is known of a field, to explain a rule; None if nothing is."""
    found: Any = facts
    for step in field.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


# ── examples ────────────────────────────────────────────────────────────────────────────────────


def _when(field: str, operator: Operator, value: Any) -> Condition:
    return Condition(field, operator, value)


# What build farms ask for. `mainspring rule examples` shows them, `--set` stores them.
EXAMPLES: dict[str, NewRule] = {
    "urgent labels": NewRule(
        order=10, when=[_when("tag", "in", ["hotfix", "urgent", "critical"])], priority="critical", force=True
    ),
    "important repositories": NewRule(
        order=20, when=[_when("args.repository", "in", ["core", "main", "production"])], priority="high"
    ),
    "busy: complex tasks later": NewRule(
        order=30, when=[_when("load", ">", 0.8), _when("args_count", ">", 5)], shift=-2
    ),
    "simple tasks sooner": NewRule(order=40, when=[_when("args_count", "<", 3)], shift=1),
    "events before schedules": NewRule(order=50, when=[_when("origin", "=", "submitted")], priority="high"),
}
