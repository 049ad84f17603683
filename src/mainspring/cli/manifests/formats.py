"""Formats: YAML, JSON and TOML as plain values, and a manifest as YAML. Every mistake is a ValidationError.

YAML is read by the rules of its version 1.2: `yes`, `on`, `10:30` and `2026-12-25` are text. Depth and anchors are
bounded before anything is built: libyaml's composer overflows the stack, and ten lines of anchors can mean a billion.
Next: cli/manifests/files.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time
from typing import Any

from mainspring.errors import ValidationError, shown
from mainspring.model.tasks.payload import MAX_DEPTH, decode_part

MOST_VALUES = 1_000_000  # of a file, once its anchors are followed

_YAML_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
)


def refused(what: str, why: str) -> ValidationError:
    """A file that cannot be read; `what` is its name."""
    return ValidationError(f"{what}: {why}", field="file")


# ── YAML ────────────────────────────────────────────────────────────────────────────────────────


def read_yaml(text: str, what: str) -> Any:
    import yaml

    loader = _with_resolvers(getattr(yaml, "CSafeLoader", yaml.SafeLoader), own=True)
    try:
        _check_depth(yaml, text, loader, what)
        made = loader(text)
        try:
            node = made.get_single_node()
            if node is None:
                return None
            _Nodes(yaml, what).size(node)
            return made.construct_document(node)
        finally:
            made.dispose()
    except yaml.MarkedYAMLError as error:
        at = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise refused(what, f"not YAML: {at}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise refused(what, f"not YAML: {str(error).splitlines()[0][:200] if str(error) else 'too deep'}") from None


def _with_resolvers(base: Any, *, own: bool) -> Any:
    """A loader or dumper with the scalars of YAML 1.2; `own`: with no others."""
    resolvers = {} if own else {first: list(known) for first, known in base.yaml_implicit_resolvers.items()}
    made: Any = type("Core", (base,), {"yaml_implicit_resolvers": resolvers})
    for name, pattern, first in _SCALARS:
        starts = ["" if character == "\0" else character for character in first]
        made.add_implicit_resolver(_YAML_TAG + name, re.compile(f"^(?:{pattern})$"), starts)
    return made


def _check_depth(yaml: Any, text: str, loader: Any, what: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise refused(what, f"line {event.start_mark.line + 1}: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Nodes:
    """Counts what a tree of YAML means once anchors are followed; refuses duplicate keys."""

    def __init__(self, yaml: Any, what: str) -> None:
        self._yaml = yaml
        self._what = what
        self._sizes: dict[int, int | None] = {}  # by node; None: being counted

    def size(self, node: Any) -> int:
        key = id(node)
        if key in self._sizes:
            known = self._sizes[key]
            if known is None:
                raise self._refused(node, "an anchor that holds itself")
            return known
        self._sizes[key] = None
        total = 1
        if isinstance(node, self._yaml.MappingNode):
            self._check_keys(node)
            total += sum(self.size(one) for pair in node.value for one in pair)
        elif isinstance(node, self._yaml.SequenceNode):
            total += sum(map(self.size, node.value))
        if total > MOST_VALUES:
            raise self._refused(node, f"its anchors stand for more than {MOST_VALUES:,} values")
        self._sizes[key] = total
        return total

    def _check_keys(self, node: Any) -> None:
        seen = set()
        for name, _ in node.value:
            if not isinstance(name, self._yaml.ScalarNode):
                raise self._refused(name, "a key that is no text")
            if name.tag == f"{_YAML_TAG}merge":
                continue
            if name.value in seen:
                raise self._refused(name, f"the key {shown(name.value)} appears twice")
            seen.add(name.value)

    def _refused(self, node: Any, why: str) -> ValidationError:
        return refused(self._what, f"line {node.start_mark.line + 1}: {why}")


def write_yaml(value: Any) -> str:
    """Text that any version of YAML reads as the same value."""
    import yaml

    dumper = _with_resolvers(yaml.SafeDumper, own=False)
    dumper.ignore_aliases = lambda self, data: True
    dumper.add_representer(str, _quoted)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    return text


def _quoted(dumper: Any, text: str) -> Any:
    """Text; with escapes, where it holds line ends that other styles fold into spaces."""
    style = '"' if any(mark in text for mark in ("\x85", "\u2028", "\u2029")) else None
    return dumper.represent_scalar(f"{_YAML_TAG}str", text, style=style)


# ── JSON, TOML ──────────────────────────────────────────────────────────────────────────────────


def read_json(text: str, what: str) -> Any:
    try:
        return decode_part(text, what)
    except ValidationError as error:
        raise ValidationError(error.message, field="file") from None


def read_toml(text: str, what: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise refused(what, f"not TOML: {error}") from None
    except RecursionError:
        raise refused(what, f"nested deeper than {MAX_DEPTH} levels") from None


READERS: dict[str, Callable[[str, str], Any]] = {
    ".yaml": read_yaml,
    ".yml": read_yaml,
    ".json": read_json,
    ".toml": read_toml,
}


def as_plain(value: Any, what: str, path: str = "", change: Callable[[str, str], str] | None = None) -> Any:
    """The value in JSON's own types, days and times as text; `change` is applied to each text, with its path."""
    if path.count("\0") > MAX_DEPTH:
        raise refused(what, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise refused(what, f"{_dotted(path)}: the key {shown(name)} is no text; put it in quotes")
        return {name: as_plain(one, what, f"{path}\0{name}", change) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(one, what, f"{path}\0{number}", change) for number, one in enumerate(value)]
    if isinstance(value, str):
        return value if change is None else change(value, _dotted(path))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    raise refused(what, f"{_dotted(path)}: {shown(value)} is no value that a manifest can hold")


def _dotted(path: str) -> str:
    return path.strip("\0").replace("\0", ".") or "the file"
