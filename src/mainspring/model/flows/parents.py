"""Parents: what became of the tasks that a task ran after, as its attempt sees them.

JSON, a list with an object for each parent, by number: `id`, `job`, `state`, `result`, `error_code`. Up to 64 kB: more
than that goes without the results, and if it is still more, with nothing but the ids.
Next: store/views/parents.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from mainspring.errors import ValidationError

MOST_TOLD = 64 * 1024  # bytes of JSON for one attempt
UNKNOWN = "unknown"  # the state of a parent that retention has dropped

T = TypeVar("T")
Decode = Callable[[str], Any]


class Outcome(Struct, frozen=True, omit_defaults=True):
    """What became of one parent. `result` is JSON; a member that is not set is not told, for its size."""

    id: int
    job: str | UnsetType | None = UNSET  # None: its job was deleted, or nothing is known of it
    state: str | UnsetType = UNSET
    error_code: str | UnsetType | None = UNSET
    result: Raw | UnsetType = UNSET


def told(outcomes: Iterable[Outcome]) -> str:
    """As much of them as an attempt may be told."""
    whole = sorted(outcomes, key=lambda outcome: outcome.id)
    if all(outcome.result is not UNSET for outcome in whole):
        text = msgspec.json.encode(whole)
        if len(text) <= MOST_TOLD:
            return text.decode()
    text = msgspec.json.encode([msgspec.structs.replace(outcome, result=UNSET) for outcome in whole])
    return (text if len(text) <= MOST_TOLD else ids_only(whole)).decode()


def ids_only(outcomes: Iterable[Outcome]) -> bytes:
    return msgspec.json.encode([Outcome(outcome.id) for outcome in outcomes])


def read(text: str) -> list[Outcome]:
    return msgspec.json.decode(text, type=list[Outcome])


def shortened(text: str, limit: int) -> str | None:
    """The same within `limit` bytes: without results, then with the ids alone; None if not even these fit."""
    if len(text) <= limit:
        return text
    outcomes = read(text)
    for shorter in (
        msgspec.json.encode([msgspec.structs.replace(outcome, result=UNSET) for outcome in outcomes]),
        ids_only(outcomes),
    ):
        if len(shorter) <= limit:
            return shorter.decode()
    return None


class Parent:
    """A task that the running task ran after.

    `state` is how it ended; `unknown` if retention has dropped it, None if there are so many parents that only their
    numbers are passed. `error_code` is there if it did not succeed, `job` is the name of its job.
    """

    __slots__ = ("_decode", "_outcome")

    def __init__(self, outcome: Outcome, decoders: Mapping[str, Decode]) -> None:
        self._outcome = outcome
        job = outcome.job
        self._decode = decoders.get(job, msgspec.json.decode) if isinstance(job, str) else msgspec.json.decode

    @property
    def id(self) -> int:
        return self._outcome.id

    @property
    def job(self) -> str | None:
        return self._outcome.job or None

    @property
    def state(self) -> str | None:
        return self._outcome.state or None

    @property
    def error_code(self) -> str | None:
        return self._outcome.error_code or None

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    @property
    def result(self) -> Any:
        """What its handler returned, as the type it is annotated with if this application has its job; else as JSON.

        None if it did not succeed. ValidationError if the results of all parents are over 64 kB together.
        """
        text = self._json()
        return None if text == "null" else self._decode(text)

    def result_as(self, type: type[T]) -> T:
        """The result as this type; msgspec.ValidationError if it does not fit."""
        return msgspec.json.decode(self._json(), type=type)

    def _json(self) -> str:
        if self._outcome.result is UNSET:
            raise ValidationError(
                f"result: the results of the tasks that this one ran after are over {MOST_TOLD // 1024} kB together; "
                f"ask for this one by `await app.task({self.id}).result()`",
                field="result",
            )
        return bytes(self._outcome.result).decode()

    def __repr__(self) -> str:
        return f"<Parent {self.id}: {self.state or 'not told'}>"
