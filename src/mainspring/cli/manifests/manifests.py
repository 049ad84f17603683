"""`mainspring plan | apply | export`

Next: operations/manifests/manifest.py
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, operation, shared, with_options
from mainspring.cli.render import confirm, counted, note, on_terminal, print_if_json, print_json, visible
from mainspring.errors import Conflict, NotFound, ValidationError

if TYPE_CHECKING:
    from mainspring.cli.manifests.files import Read
    from mainspring.operations.manifests.manifest import Applied, Plan

DIFFERS = 1  # the exit code of `plan --check`

_reads = with_options(
    click.option(
        "-f", "--file", "files", multiple=True, required=True, metavar="FILE|DIR|-",
        help="A manifest in YAML, JSON or TOML, a directory of them, or standard input; repeatable.",
    ),
    click.option("--prune", is_flag=True, help="Delete what the set owns and the files do not name."),
    click.option("--adopt", is_flag=True, help="Take over what was made by hand and differs."),
    click.option("--env", is_flag=True, help="Replace ${NAME} in texts by variables of the environment."),
)  # fmt: skip


@operation(
    "plan",
    "mainspring plan -f shop.yaml",
    "mainspring plan -f jobs/ --prune --check  for CI: exits with 1 if anything differs",
)
@_reads
@click.option("--check", is_flag=True, help="Exit with 1 if there is a difference.")
async def plan(client: Client, files: tuple[str, ...], prune: bool, adopt: bool, env: bool, check: bool) -> None:
    """Show what applying manifests would change. Changes nothing."""
    read = _read(files, env)
    found = await _planned(client, read, prune=prune, adopt=adopt)
    if not print_if_json(found):
        _show(found, read, to_stderr=False)
    if check and found.changes:
        click.get_current_context().exit(DIFFERS)


@operation(
    "apply",
    "mainspring apply -f shop.yaml",
    "mainspring apply -f jobs/ --prune --yes",
    "mainspring apply -f shop.yaml --yes --hash $(mainspring plan -f shop.yaml --json | jq -r .hash)",
)
@_reads
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--hash", metavar="HASH", help="Only if the plan is the one with this hash, of `plan --json`.")
async def apply(
    client: Client, files: tuple[str, ...], prune: bool, adopt: bool, env: bool, yes: bool, hash: str | None
) -> None:
    """Show what manifests change, ask, and write all of it in one transaction."""
    from mainspring.cli.manifests.files import is_asked

    if not yes and (not is_asked() or "-" in files or shared().json):
        typed = shlex.join(["mainspring", *_typed(files, prune, adopt, env), "--yes"])
        raise ValidationError(
            f"apply: nobody is there to ask; look at the plan first, then type `{typed}`", field="yes"
        )
    read = _read(files, env)
    found = await _planned(client, read, prune=prune, adopt=adopt)
    if not shared().json:
        _show(found, read, to_stderr=True)
    if found.changes and not yes and not click.confirm("apply this?", err=True):
        note("nothing was changed")
        click.get_current_context().exit(1)
    done = await client.call(operations.manifest.apply, read.manifest, hash or found.hash, prune=prune, adopt=adopt)
    confirm(done, _told(done) if found.changes else "nothing to do")


def _told(done: Applied) -> str:
    taken = done.recalled.taken_back + done.recalled.asked_back
    told = ["applied", *([f"{counted(taken, 'planned task')} taken back"] if taken else [])]
    if done.kept:
        names = ", ".join(map(visible, done.kept[:3])) + (
            "" if len(done.kept) <= 3 else f" and {len(done.kept) - 3} more"
        )
        told.append(f"kept, because tasks have not ended: {names}: apply it again later")
    return "; ".join(told)


@operation(
    "export",
    "mainspring export > all.yaml",
    "mainspring export --set shop --json",
    "mainspring export --schema > mainspring.schema.json  for editors",
)
@click.option("--set", "set_name", metavar="NAME", help="What this set owns, in place of all that was made by hand.")
@click.option("--reveal", is_flag=True, help="Write secrets, in place of ***; that is audited.")
@click.option("--schema", is_flag=True, help="Write the JSON Schema of manifests, and read no database.")
async def export(client: Client, set_name: str | None, reveal: bool, schema: bool) -> None:
    """Write jobs, schedules and calendars as a manifest that plans to nothing."""
    import msgspec

    if schema:
        from mainspring.api.openapi.manifest_schema import text

        click.echo(text(), nl=False)
        return
    found = await client.call(operations.manifest.export, set_name=set_name, reveal=reveal)
    plain = {name: value for name, value in msgspec.to_builtins(found).items() if value not in (None, {})}
    if shared().json:
        print_json(plain)
        return
    from mainspring.cli.manifests.formats import write_yaml

    click.echo(write_yaml(plain), nl=False)


def _read(files: tuple[str, ...], env: bool) -> Read:
    from mainspring.cli.manifests.files import environment, read_files

    return read_files(files, environment() if env else None)


async def _planned(client: Client, read: Read, *, prune: bool, adopt: bool) -> Plan:
    try:
        return await client.call(operations.manifest.plan, read.manifest, prune=prune, adopt=adopt)
    except (Conflict, NotFound, ValidationError) as error:
        raise read.placed(error) from None


def _show(found: Plan, read: Read, *, to_stderr: bool) -> None:
    from mainspring.cli.manifests.describe import lines, summary

    stream = sys.stderr if to_stderr else sys.stdout
    colour = stream is not None and stream.isatty() if to_stderr else on_terminal()
    for line in lines(found, read.manifest, colour=colour):
        click.echo(line, err=to_stderr)
    click.echo(summary(found), err=to_stderr)


def _typed(files: tuple[str, ...], prune: bool, adopt: bool, env: bool) -> list[str]:
    flags = {"--prune": prune, "--adopt": adopt, "--env": env}
    return ["apply", *(part for file in files for part in ("-f", file)), *(name for name, on in flags.items() if on)]
