"""Selection: the part of a cluster that is scaled by itself, by labels.

    gpu=a100    work that requires this label, and agents that have it
    !gpu        work that requires no label `gpu`, and agents without one
Nothing selects everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from mainspring.errors import ValidationError, shown
from mainspring.model.words.names import check_name

MOST = 20  # labels


class Selection(Struct, frozen=True):
    wanted: dict[str, str] = {}
    unwanted: frozenset[str] = frozenset()

    def includes(self, labels: Mapping[str, str]) -> bool:
        """Whether work that requires these labels, or an agent that has them, belongs to it."""
        return all(labels.get(name) == value for name, value in self.wanted.items()) and not (
            self.unwanted & labels.keys()
        )

    def could_run(self, required: Mapping[str, str]) -> bool:
        """Whether an agent with the wanted labels and no other can run what requires these."""
        return all(self.wanted.get(name) == value for name, value in required.items())


def select(labels: Iterable[str], app: str | None, *, field: str = "labels") -> Selection:
    """From texts such as gpu=a100 or gpu=a100,!zone; `app` is one more label."""
    wanted: dict[str, str] = {}
    unwanted = set[str]()
    for text in (part.strip() for given in labels for part in given.split(",")):
        name, equals, value = text.partition("=")
        if text.startswith("!") and not equals:
            unwanted.add(check_name(text[1:], field=field))
        elif equals:
            wanted[check_name(name, field=field)] = check_name(value, field=field)
        elif text:
            raise ValidationError(f"{field}: {shown(text)}; write gpu=a100, or !gpu for without", field=field)
    if app:
        wanted["app"] = check_name(app, field="app")
    if len(wanted) + len(unwanted) > MOST:
        raise ValidationError(f"{field}: at most {MOST}", field=field)
    return Selection(wanted, frozenset(unwanted))
