"""A manifest through YAML and back, as `export` writes and `plan` reads it."""

from __future__ import annotations

from typing import Any

from mainspring.cli.manifests.formats import as_plain, read_yaml, write_yaml


def through_yaml(value: Any) -> Any:
    return as_plain(read_yaml(write_yaml(value), "exported"), "exported")
