"""`mainspring rule set | list | show | delete | test | examples`

Next: operations/definitions/rules.py
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, command, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, arguments, name_of
from mainspring.cli.render import confirm, fields, print_if_json, table
from mainspring.errors import ValidationError

if TYPE_CHECKING:
    from mainspring.model.flows.rules import Condition, NewRule
    from mainspring.operations.definitions.rules import RuleView


@click.group(
    cls=Group,
    epilog=examples("mainspring rule set urgent --when 'tag in hotfix,urgent' --priority critical --force"),
)
def rule() -> None:
    """Priority rules: which tasks go first, by their tags, arguments, origin or the load."""


@rule.operation(
    "set",
    "mainspring rule set core --jobs 'build*' --when 'args.repository in core,main' --priority high",
    "mainspring rule set complex --when 'load > 0.8' --when 'args_count > 5' --shift=-2",
)
@click.argument("name", type=name_of("rule"))
@click.option("--jobs", default="*", show_default=True, metavar="PATTERN", help="Names of the jobs it is for.")
@click.option(
    "--when",
    multiple=True,
    metavar="'FIELD IS VALUE'",
    help="A condition; all must hold. FIELD: tag, args.NAME, args_count, args_bytes, origin, submitter, load, waiting. "
    "IS: =, in, like, <, >, has.",
)
@click.option("--priority", metavar="LEVEL", help="low, normal, high, critical, or 0 to 9.")
@click.option("--shift", type=Whole(-9, 9), metavar="N", help="Levels up, or down with a minus.")
@click.option("--order", type=Whole(0, 1_000_000), default=100, show_default=True, help="The first that fits decides.")
@click.option("--force", is_flag=True, help="Also where the submission gave a priority.")
@click.option("--disabled", is_flag=True, help="Keep it, and do not ask it.")
async def set_rule(client: Client, /, name: str, when: tuple[str, ...], disabled: bool, **how: Any) -> None:
    """Make a rule, or replace it."""
    from mainspring.model.flows.rules import NewRule, check_rule

    wanted = NewRule(when=[_condition(text) for text in when], enabled=not disabled, **how)
    check_rule(name, wanted)
    change = await client.call(operations.rules.put, name, wanted)
    confirm(change.rule, "set; tasks obey it from now on" if change.changed else "as it was")


def _condition(text: str) -> Condition:
    from mainspring.model.flows.rules import Condition

    parts = text.split(None, 2)
    if len(parts) < 3:
        raise ValidationError(f"--when: {text!r}; write FIELD IS VALUE, such as 'tag in hotfix,urgent'", field="when")
    field, operator, value = parts
    given: Any = [_value(each.strip()) for each in value.split(",")] if operator == "in" else _value(value)
    return Condition(field, operator, given)  # type: ignore[arg-type]  # check_rule checks it


def _value(text: str) -> Any:
    """JSON, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@rule.operation("list", "mainspring rule list")
async def list_rules(client: Client) -> None:
    """Show all rules in the order in which they are asked."""
    found = await client.call(operations.rules.listing)
    if print_if_json(found):
        return
    table(
        ["ORDER", "NAME", "JOBS", "WHEN", "THEN"],
        [[str(view.order), view.name, view.jobs, _when(view), _then(view)] for view in found],
        empty="no rules; `mainspring rule examples` shows some",
        room=Room(cut=("NAME",), fold=("WHEN",)),
    )


def _when(view: RuleView | NewRule) -> str:
    return " and ".join(condition.in_words for condition in view.when) or "always"


def _then(view: RuleView | NewRule) -> str:
    what = f"priority {view.priority}" if view.priority is not None else f"{view.shift:+d} levels"
    return what + (", forced" if view.force else "") + ("" if view.enabled else ", disabled")


@rule.operation("show", "mainspring rule show core")
@click.argument("name", type=name_of("rule"))
async def show_rule(client: Client, name: str) -> None:
    """Show one rule."""
    view = await client.call(operations.rules.show, name)
    if not print_if_json(view):
        told = {"order": str(view.order), "jobs": view.jobs, "when": _when(view), "then": _then(view)}
        fields({"name": name, **told, "version": str(view.version)})


@rule.operation("delete", "mainspring rule delete core")
@click.argument("name", type=name_of("rule"))
async def delete_rule(client: Client, name: str) -> None:
    """Remove a rule; tasks keep the priority that it gave them."""
    await client.call(operations.rules.delete, name)
    confirm({"name": name, "deleted": True}, "deleted")


@rule.operation(
    "test", "mainspring rule test build --arg repository=core --tag hotfix", "mainspring rule test build --json"
)
@click.argument("job", type=name_of("job"))
@click.option("--args", metavar="JSON", help="All arguments, as one JSON object.")
@click.option("--arg", multiple=True, metavar="NAME=VALUE", help="An argument: JSON, else text; repeatable.")
@click.option("--tag", "tags", multiple=True, metavar="WORD", help="A tag; repeatable.")
@click.option("--priority", metavar="LEVEL", help="As if the submission gave this one.")
@click.option("--origin", type=click.Choice(["submitted", "schedule", "batch"]), default="submitted")
async def test_rules(
    client: Client, /, job: str, args: str | None, arg: tuple[str, ...], tags: tuple[str, ...], **how: Any
) -> None:
    """Show which rule would decide for a task, and why the others do not. Nothing is submitted."""
    from mainspring.model.tasks.payload import decode

    found = await client.call(
        operations.rules.explain, job, args=decode(arguments(args, arg), "args"), tags=list(tags), **how
    )
    if print_if_json(found):
        return
    click.echo(f"priority {found.priority}, {found.reason}")
    table(
        ["RULE", "DECIDES", "WHY"],
        [[answer.rule, "yes" if answer.decides else "no", answer.reason] for answer in found.rules],
        empty="no rules",
        room=Room(cut=("RULE",), fold=("WHY",)),
    )


@command("examples", "mainspring rule examples")
def show_examples() -> None:
    """Show rules that build farms ask for, as commands that set them."""
    from mainspring.model.flows.rules import EXAMPLES

    if print_if_json(EXAMPLES):
        return
    for name, example in EXAMPLES.items():
        click.echo(_as_command(name, example))


def _as_command(name: str, example: NewRule) -> str:
    conditions = "".join(f" --when '{condition.in_words}'" for condition in example.when)
    then = f"--priority {example.priority}" if example.priority is not None else f"--shift={example.shift}"
    force = " --force" if example.force else ""
    return f"mainspring rule set '{name}' --order {example.order}{conditions} {then}{force}"


rule.add_command(show_examples)
