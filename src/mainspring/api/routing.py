"""Routing: the raw path of a request → the row of the table, and the texts in its place holders.

Names may hold "/", "." and spaces, so the path is cut at its slashes first and decoded afterwards: %2F stays in a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

from mainspring.api.problems import MethodNotAllowed
from mainspring.errors import Malformed, NotFound, shown


class Routed(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


R = TypeVar("R", bound=Routed)


class Route(NamedTuple, Generic[R]):
    row: R
    names: dict[str, str]


class _Node(Generic[R]):
    """A step of a path: fixed words come before a place holder."""

    def __init__(self) -> None:
        self.words: dict[str, _Node[R]] = {}
        self.holder: tuple[str, _Node[R]] | None = None
        self.rows: dict[str, R] = {}


class Router(Generic[R]):
    def __init__(self, rows: Iterable[R]) -> None:
        self._root: _Node[R] = _Node()
        for row in rows:
            node = self._root
            for part in row.path.strip("/").split("/"):
                if part.startswith("{"):
                    node.holder = node.holder or (part[1:-1], _Node())
                    assert node.holder[0] == part[1:-1], f"{row.path}: a place has one name"
                    node = node.holder[1]
                else:
                    node = node.words.setdefault(part, _Node())
            assert row.method not in node.rows, f"{row.method} {row.path} is there twice"
            node.rows[row.method] = row

    def find(self, method: str, raw_path: bytes) -> Route[R]:
        """NotFound if there is no such path, MethodNotAllowed if it has other methods."""
        asked = "GET" if method == "HEAD" else method
        texts = [_decoded(part) for part in raw_path.strip(b"/").split(b"/")]
        found = [end for end in _ends(self._root, texts, 0, {}) if end[0].rows]
        for node, names in found:
            if asked in node.rows:
                return Route(node.rows[asked], names)
        if not found:
            path = raw_path[:200].decode(errors="backslashreplace")
            raise NotFound(f"no operation at {shown(path)}; /openapi.json lists those there are")
        there = {method for node, _ in found for method in node.rows}
        allowed = sorted({*there, *(("HEAD",) if "GET" in there else ())})
        raise MethodNotAllowed(f"{method[:20]} is not possible here; use {', '.join(allowed)}", allowed=allowed)


def _ends(
    node: _Node[R], texts: Sequence[str], place: int, names: dict[str, str]
) -> Iterator[tuple[_Node[R], dict[str, str]]]:
    """Where the path leads, its words taken for words first: a thing may be called as an operation of its collection
    is. No number is called so."""
    if place == len(texts):
        yield node, names
        return
    text = texts[place]
    if text in node.words:
        yield from _ends(node.words[text], texts, place + 1, names)
    if node.holder is not None and text and (text not in node.words or node.holder[0] != "id"):
        yield from _ends(node.holder[1], texts, place + 1, {**names, node.holder[0]: text})


def _decoded(part: bytes) -> str:
    try:
        return (unquote_to_bytes(part) if b"%" in part else part).decode()
    except UnicodeDecodeError:
        raise Malformed("the path is not UTF-8; percent-encode names as UTF-8") from None
