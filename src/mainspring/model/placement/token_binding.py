"""TokenBinding: the names, labels and offers that agents may have with a token.

Jobs go to agents by name and by label, so a token that binds neither lets its agents take the tasks of any other.
Next: store/access/tokens.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from mainspring.errors import ValidationError
from mainspring.model.words.names import check_name

MAX_PATTERNS = 100


class TokenBinding(Struct, frozen=True):
    """Patterns as the shell has them: `web-*`. A label is `NAME`, with any value, or `NAME=VALUE`."""

    agents: tuple[str, ...] | None = None  # None: any name
    labels: tuple[str, ...] | None = None  # None: any label and any offer

    def why_not(self, name: str, labels: Mapping[str, str], offers: Iterable[str]) -> str | None:
        """Why an agent may not come with this token; None if it may."""
        if self.agents is not None and not any(fnmatchcase(name, pattern) for pattern in self.agents):
            return f"its token is for agents named {_listed(self.agents)}"
        if self.labels is not None:
            for label, value in (*labels.items(), *((offer, "") for offer in offers)):
                if not any(_matches(pattern, label, value) for pattern in self.labels):
                    return f"its token is for the labels {_listed(self.labels)}, not {label}{'=' * bool(value)}{value}"
        return None


def _matches(pattern: str, label: str, value: str) -> bool:
    name, equals, wanted = pattern.partition("=")
    return fnmatchcase(label, name) and (not equals or fnmatchcase(value, wanted))


def _listed(patterns: Sequence[str]) -> str:
    more = len(patterns) - 3
    return ", ".join(patterns[:3]) + (f" and {more} more" if more > 0 else "")


def define_binding(agents: Sequence[str], labels: Sequence[str]) -> TokenBinding:
    """The binding that a person gives; without patterns anything is allowed."""
    for field, given in (("agent", agents), ("label", labels)):
        if len(given) > MAX_PATTERNS:
            raise ValidationError(f"{field}: {len(given)} patterns; at most {MAX_PATTERNS}", field=field)
        for pattern in given:
            check_name(pattern, field=field)
            if field == "label" and not pattern.partition("=")[0]:
                raise ValidationError(f"label: {pattern!r} has no name; write gpu or zone=eu-*", field=field)
    return TokenBinding(tuple(agents) or None, tuple(labels) or None)
