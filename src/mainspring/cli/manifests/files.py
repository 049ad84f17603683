"""Files: the files of one manifest, read and put together; what is wrong names its file.

A directory stands for all *.yaml, *.yml, *.json and *.toml in it, `-` for standard input. All of them are of one set,
and no object is in two of them.
Next: model/manifests/manifest.py
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mainspring.cli.manifests.formats import READERS, as_plain, read_json, read_yaml, refused
from mainspring.errors import MainspringError, ValidationError
from mainspring.model.manifests.manifest import MOST_BYTES, SECTIONS, Manifest, read_manifest

STDIN = "-"
MOST_FILES = 1_000

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")


class File(NamedTuple):
    name: str
    data: bytes


class Read(NamedTuple):
    """The manifest that some files are, and the file that each object is in."""

    manifest: Manifest
    origins: dict[tuple[str, str], str]

    def placed(self, error: MainspringError) -> MainspringError:
        """An error about objects of the manifest, with their files; one in a line."""
        others = error.details.get("errors")
        faults = others if isinstance(others, list) else [{"field": error.field, "message": error.message}]
        lines = [f"{self._file(fault.get('field'))}{fault.get('message')}" for fault in faults]
        return type(error)("\n".join(lines), field=error.field)

    def _file(self, field: object) -> str:
        section, _, path = str(field).partition(".")
        for (kinds, name), file in self.origins.items() if section in SECTIONS else ():
            shown = name[:100]
            if kinds == section and (path == shown or path.startswith(f"{shown}.")):
                return f"{file}: "
        return ""


def read_files(paths: Sequence[str], variables: Mapping[str, str] | None) -> Read:
    """The manifest in these files. With `variables`, ${NAME} in their texts stands for a value.

    What stands in its objects is checked where they are compared.
    """
    parts = [(file.name, _section_of(file, variables)) for file in _files(paths)]
    origins: dict[tuple[str, str], str] = {}
    whole: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, part in parts:
        for section in SECTIONS:
            for key, value in getattr(part, section).items():
                if key in whole[section]:
                    raise refused(name, f"{section}.{key} is in {origins[section, key]} already")
                origins[section, key] = name
                whole[section][key] = value
    return Read(read_manifest({"mainspring": 1, "set": _one_set(parts), **whole}), origins)


def _one_set(parts: list[tuple[str, Manifest]]) -> str | None:
    first_name, first = parts[0]
    for name, part in parts:
        if part.set != first.set:
            raise refused(name, f"set: {part.set or 'none'}; {first_name} has {first.set or 'none'}: apply them apart")
    return first.set


def _section_of(file: File, variables: Mapping[str, str] | None) -> Manifest:
    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refused(file.name, f"not text in UTF-8 (byte {error.start + 1})") from None
    suffix = os.path.splitext(file.name)[1].lower()
    read: Callable[[str, str], Any]
    if file.name == STDIN:
        read = read_json if text.lstrip()[:1] == "{" else read_yaml
    elif suffix in READERS:
        read = READERS[suffix]
    else:
        raise refused(file.name, f"the name of a manifest ends with {', '.join(READERS)}")
    value = as_plain(read(text, file.name), file.name, change=_substitution(file.name, variables))
    try:
        return read_manifest(value)
    except ValidationError as error:
        raise ValidationError(f"{file.name}: {error.message}", field=error.field) from None


def _substitution(file: str, variables: Mapping[str, str] | None) -> Callable[[str, str], str] | None:
    if variables is None:
        return None

    def change(text: str, path: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] is None:
                return "${"  # written as $${
            if found[1] not in variables:
                raise refused(file, f"{path}: ${{{found[1]}}} is not set; set it, or write $${{ for the text itself")
            return variables[found[1]]

        return _VARIABLE.sub(value, text) if "${" in text else text

    return change


# ── where they are ──────────────────────────────────────────────────────────────────────────────


def _files(paths: Sequence[str]) -> Iterator[File]:
    left = MOST_BYTES
    for path in _each(paths):
        data = _content(path, left)
        if len(data) > left:
            raise refused(path, f"more than {MOST_BYTES // 1024 // 1024} MB; divide it into several sets")
        left -= len(data)
        yield File(path, data)


def _each(paths: Sequence[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        if path == STDIN or not os.path.isdir(path):
            found.append(path)
            continue
        with os.scandir(path) as entries:
            names = [one.name for one in entries if one.is_file() and not one.name.startswith(".")]
        inside = sorted(name for name in names if os.path.splitext(name)[1].lower() in READERS)
        if not inside:
            raise refused(path, f"no file in it ends with {', '.join(READERS)}")
        found += [os.path.join(path, name) for name in inside]
    if len(found) > MOST_FILES:
        raise refused(paths[0], f"{len(found):,} files; at most {MOST_FILES:,}")
    if repeated := next((path for path in found if found.count(path) > 1), None):
        raise refused(repeated, "given twice")
    return found


def _content(path: str, most: int) -> bytes:
    try:
        if path == STDIN:
            return b"" if sys.stdin is None else sys.stdin.buffer.read(most + 1)
        with open(path, "rb") as file:
            return file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise refused(path, getattr(error, "strerror", None) or str(error)) from None


def environment() -> Mapping[str, str]:
    return os.environ


def is_asked() -> bool:
    """Whether a person is there to answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()
