"""InFlight: claims under way, and claims whose answer was lost. What they may have taken counts as unknown until then.

Next: server/agents/gateway.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mainspring.errors import StoreUnavailable
from mainspring.store.postgres.database import STATEMENT_TIMEOUT
from mainspring.wire.clock import boottime

DOUBT = STATEMENT_TIMEOUT + 5.0  # seconds after which a claim that was not answered cannot be committed any more

Mark = dict[int, int]  # by session, the last batch that was known when a claim began


class InFlight:
    def __init__(self) -> None:
        self._claiming: list[Mark] = []
        self._unanswered: list[tuple[float, Mark]] = []  # and until when they are in doubt

    @contextmanager
    def claiming(self, mark: Mark) -> Iterator[None]:
        """Around a claim: until its answer is armed here, nothing that it may have taken counts as known."""
        self._claiming.append(mark)
        try:
            yield
        except (StoreUnavailable, asyncio.CancelledError):
            self._unanswered.append((boottime() + DOUBT, mark))  # it may have been made, or be made yet
            raise
        finally:
            self._claiming.remove(mark)

    def known(self, session: int, batch: int) -> int:
        """The last batch of a session, at most `batch`, up to which every claim has been answered."""
        marks = self._claiming + [mark for _, mark in self._unanswered]
        return min([batch, *(mark[session] for mark in marks if session in mark)])

    @property
    def any_unanswered(self) -> bool:
        """Whether there may be claims of ours that we know nothing of."""
        self._unanswered = [(until, mark) for until, mark in self._unanswered if until > boottime()]
        return bool(self._unanswered)

    @property
    def any_under_way(self) -> bool:
        """Whether a claim is under way whose answer may still come."""
        return bool(self._claiming)
