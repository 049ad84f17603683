"""The mutations of the torture run can be made: what they change is there, once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.torture.mutations import MUTATIONS, Mutation
from tests.torture.prove import apply
from tests.torture.run import SOURCE


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_what_a_mutation_changes_is_there_once(mutation: Mutation, tmp_path: Path) -> None:
    source = apply(mutation, tmp_path)  # raises where it is not
    for edit in mutation.edits:
        path = source / "mainspring" / edit.file
        if path.suffix == ".py":
            ast.parse(path.read_text())


def test_a_mutation_whose_code_has_moved_on_says_so(tmp_path: Path) -> None:
    first = MUTATIONS[0]
    moved = first._replace(edits=(first.edits[0]._replace(old="there is no such line"),))
    with pytest.raises(AssertionError, match="the code has moved on"):
        apply(moved, tmp_path)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_no_later_migration_puts_right_what_a_mutation_breaks(mutation: Mutation) -> None:
    """A function that is made anew has the same lines again."""
    for edit in mutation.edits:
        path = SOURCE / "mainspring" / edit.file
        later = [other for other in path.parent.glob("*.sql") if other.name > path.name]
        assert path.suffix != ".sql" or not [other.name for other in later if edit.old in other.read_text()]


def test_no_two_mutations_have_one_name() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
