"""The methods of mainspring.Client, for docs/reference/client.md."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from mainspring.client import namespaces
from mainspring.client.namespaces import Named, Namespace
from mainspring.client.remote import Client, row_of


def client_page() -> str:
    """A table for each namespace of a client, in the order of its methods."""
    client = Client("http://127.0.0.1:7070")
    rooms = {name: room for name, room in vars(client).items() if isinstance(room, Namespace)}
    assert len(rooms) == len(list(_namespaces()))
    return "".join(_room(name, type(room)) for name, room in rooms.items())


def _namespaces() -> Any:
    for kind in vars(namespaces).values():
        if isinstance(kind, type) and issubclass(kind, Namespace) and kind is not Namespace:
            yield kind


def _room(name: str, room: type[Namespace]) -> str:
    rows = [_row(f"client.{name}.{method}", one) for method, one in vars(room).items() if isinstance(one, Named)]
    return f"\n## `client.{name}`\n\n| method | what | request |\n|---|---|---|\n" + "".join(rows)


def _row(called: str, named: Named[Any, Any]) -> str:
    row = row_of(named.operation)
    what = (named.operation.__doc__ or "").partition("\n")[0]
    columns = [f"`{called}{_signature(named.operation)}`", what, f"`{row.method} {row.path}`"]
    return "| " + " | ".join(column.replace("|", "\\|") for column in columns) + " |\n"


def _signature(operation: Any) -> str:
    """As people write it: without the quotes that annotations have for being read late."""
    signature = inspect.signature(operation)
    _, _, *parameters = signature.parameters.values()
    plain = [one.replace(annotation=_Shown(one.annotation), default=_default(one.default)) for one in parameters]
    return str(signature.replace(parameters=plain, return_annotation=_Shown(signature.return_annotation)))


def _default(value: Any) -> Any:
    return _Shown(f"timedelta(seconds={value.total_seconds():g})") if isinstance(value, timedelta) else value


class _Shown:
    """A text that stands for itself."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
