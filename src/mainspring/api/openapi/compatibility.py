"""Compatibility: what a client of the document before would notice in the one after.

Within v1 there are additions only. What a server takes may grow, what it answers may gain members and values: an answer
must still have all that it had, and a request that was taken must still be taken. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]
Schema = dict[str, Any]

_BOUNDS = {"minimum": 1, "minLength": 1, "minItems": 1, "maximum": -1, "maxLength": -1, "maxItems": -1}


def breaking(before: Document, after: Document) -> list[str]:
    """Everything that was removed or narrowed, each as a line that says where."""
    return list(_Comparison(before, after).paths())


class _Comparison:
    def __init__(self, before: Document, after: Document) -> None:
        self._before, self._after = before, after
        self._seen: set[tuple[str, str, bool]] = set()

    def paths(self) -> Iterator[str]:
        for path, operations in self._before["paths"].items():
            for method, old in operations.items():
                place = f"{method.upper()} {path}"
                new = self._after["paths"].get(path, {}).get(method)
                if new is None:
                    yield f"{place}: removed"
                else:
                    yield from self._operation(place, old, new)

    def _operation(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        if old["operationId"] != new["operationId"]:
            yield f"{place}: the operationId {old['operationId']} became {new['operationId']}"
        if lost := set(old.get("x-roles", ())) - set(new.get("x-roles", ())):
            yield f"{place}: no longer for {', '.join(sorted(lost))}"
        yield from self._parameters(place, old, new)
        yield from self._body(f"{place} body", old.get("requestBody"), new.get("requestBody"))
        for status, answer in old["responses"].items():
            if status not in new["responses"]:
                yield f"{place}: no longer answers {status}"
                continue
            now = new["responses"][status]
            yield from _lost(f"{place} {status} header", answer.get("headers", {}), now.get("headers", {}))
            yield from self._content(f"{place} {status}", answer, now, is_read=False)

    def _parameters(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        known = {(one["in"], one["name"]): one for one in old.get("parameters", ())}
        present = {(one["in"], one["name"]): one for one in new.get("parameters", ())}
        for key, one in known.items():
            where = f"{place} {key[0]} {key[1]}"
            if key not in present:
                yield f"{where}: removed"
                continue
            if present[key].get("required") and not one.get("required"):
                yield f"{where}: is required now"
            now = present[key]["schema"]
            if key[0] == "query" and now.get("type") == "array" and one["schema"].get("type") != "array":
                now = now["items"]  # it may be repeated now: given once, it is a list of one
            yield from self._taken(where, one["schema"], now)
        for key, one in present.items():
            if key not in known and one.get("required"):
                yield f"{place} {key[0]} {key[1]}: new, and required"

    def _body(self, place: str, old: Schema | None, new: Schema | None) -> Iterator[str]:
        if old is None:
            if new is not None and new.get("required"):
                yield f"{place}: new, and required"
            return
        if new is None:
            yield f"{place}: removed"
            return
        if new.get("required") and not old.get("required"):
            yield f"{place}: is required now"
        yield from self._content(place, old, new, is_read=True)

    def _content(self, place: str, old: Schema, new: Schema, *, is_read: bool) -> Iterator[str]:
        present = new.get("content", {})
        for kind, one in old.get("content", {}).items():
            if kind not in present:
                yield f"{place}: no longer as {kind}"
            elif is_read:
                yield from self._taken(place, one["schema"], present[kind]["schema"])
            else:
                yield from self._given(place, one["schema"], present[kind]["schema"])

    # ── what requests may hold ──

    def _taken(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        """Whatever `old` allowed, `new` must allow."""
        if self._is_known(old, new, True):
            return
        old, new = self._found(self._before, old), self._found(self._after, new)
        if "anyOf" in old or "anyOf" in new:
            yield from self._alternatives(place, _parts(old), _parts(new), is_read=True)
            return
        if (narrower := _kinds(old) - _kinds(new)) and _kinds(new):
            yield f"{place}: no longer takes {', '.join(sorted(narrower))}"
        if "enum" in new and (lost := _values(old) - _values(new) or ({"any"} if "enum" not in old else set())):
            yield f"{place}: no longer takes {', '.join(sorted(map(str, lost)))}"
        yield from _bounds(place, old, new)
        yield from _lost(place, old.get("properties", {}), new.get("properties", {}))
        for name in set(new.get("required", ())) - set(old.get("required", ())):
            yield f"{place}.{name}: is required now"
        if _is_object(old) and _is_closed(new) and not _is_closed(old):
            yield f"{place}: refuses other members now"
        yield from self._members(place, old, new, is_read=True)

    # ── what answers hold ──

    def _given(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        """All that `old` promised, `new` must promise."""
        if self._is_known(old, new, False):
            return
        old, new = self._found(self._before, old), self._found(self._after, new)
        if "anyOf" in old or "anyOf" in new:
            yield from self._alternatives(place, _parts(old), _parts(new), is_read=False)
            return
        if (others := _kinds(new) - _kinds(old)) and _kinds(old):
            yield f"{place}: may be {', '.join(sorted(others))} now"
        elif _kinds(old) and not _kinds(new):
            yield f"{place}: may be anything now"
        if "enum" in old and (lost := _values(old) - _values(new)):
            yield f"{place}: {', '.join(sorted(map(str, lost)))} removed"
        yield from _lost(place, old.get("properties", {}), new.get("properties", {}))
        for name in set(old.get("required", ())) - set(new.get("required", ())):
            if name in new.get("properties", {}):
                yield f"{place}.{name}: may be left out now"
        yield from self._members(place, old, new, is_read=False)

    def _members(self, place: str, old: Schema, new: Schema, *, is_read: bool) -> Iterator[str]:
        compare = self._taken if is_read else self._given
        for name, one in old.get("properties", {}).items():
            if name in new.get("properties", {}):
                yield from compare(f"{place}.{name}", one, new["properties"][name])
        for name in ("items", "additionalProperties"):
            if isinstance(old.get(name), dict) and isinstance(new.get(name), dict):
                yield from compare(f"{place}[]", old[name], new[name])

    def _alternatives(self, place: str, old: list[Schema], new: list[Schema], *, is_read: bool) -> Iterator[str]:
        """Each alternative of the narrower side must be found on the other, in the order in which they stand."""
        compare = self._taken if is_read else self._given
        known = {self._label(self._before, one): one for one in old}
        present = {self._label(self._after, one): one for one in new}
        lost = known.keys() - present.keys() if is_read else present.keys() - known.keys()
        if "anything" in (present if is_read else known):
            return
        for label in sorted(lost):
            yield f"{place}: no longer takes {label}" if is_read else f"{place}: may be {label} now"
        if not is_read:
            for label in sorted(known.keys() - present.keys() - {"null"}):
                yield f"{place}: is never {label} now"
        for label in known.keys() & present.keys():
            yield from compare(place, known[label], present[label])

    def _label(self, document: Document, schema: Schema) -> str:
        if "$ref" in schema:
            return str(schema["$ref"].rpartition("/")[2])
        return "/".join(sorted(_kinds(schema))) or ("values" if "enum" in schema else "anything")

    def _found(self, document: Document, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _is_known(self, old: Schema, new: Schema, is_read: bool) -> bool:
        """Whether these components were compared already: types may hold themselves."""
        if "$ref" not in old or "$ref" not in new:
            return False
        key = (old["$ref"], new["$ref"], is_read)
        known = key in self._seen
        self._seen.add(key)
        return known


def _lost(place: str, old: Schema, new: Schema) -> Iterator[str]:
    for name in old.keys() - new.keys():
        yield f"{place}.{name}: removed"


def _parts(schema: Schema) -> list[Schema]:
    """The alternatives; several types of one schema are those of each."""
    parts: list[Schema] = schema.get("anyOf") or [schema]
    return [{**part, "type": kind} for part in parts for kind in sorted(_kinds(part))] if _plain(parts) else parts


def _plain(parts: list[Schema]) -> bool:
    return all("$ref" not in part and "properties" not in part and _kinds(part) for part in parts)


def _kinds(schema: Schema) -> set[str]:
    kinds = schema.get("type", [])
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    return found | {"integer"} if "number" in found else found


def _values(schema: Schema) -> set[Any]:
    return set(schema.get("enum", ()))


def _bounds(place: str, old: Schema, new: Schema) -> Iterator[str]:
    for name, sign in _BOUNDS.items():
        if name in new and (name not in old or (new[name] - old[name]) * sign > 0):
            yield f"{place}: {name} is {new[name]} now"


def _is_closed(schema: Schema) -> bool:
    return schema.get("additionalProperties") is False


def _is_object(schema: Schema) -> bool:
    return "object" in _kinds(schema)
