"""InFlight: claims that the database has not answered. What they may have taken is unknown until it does.

Next: server/agents/gateway.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mainspring.errors import StoreUnavailable
from mainspring.store.postgres.database import STATEMENT_TIMEOUT
from mainspring.wire.clock import boottime

MAY_COMMIT_FOR = STATEMENT_TIMEOUT + 5.0  # seconds after its answer was lost in which a claim may still commit

Mark = dict[int, int]  # by session, the last batch that was known when a claim began


class InFlight:
    def __init__(self) -> None:
        self._claiming: list[Mark] = []
        self._unanswered: list[tuple[float, Mark]] = []  # with the time until which each may still commit

    @contextmanager
    def claiming(self, mark: Mark) -> Iterator[None]:
        """Around a claim: what it may have taken counts as unknown until its answer is armed."""
        self._claiming.append(mark)
        try:
            yield
        except (StoreUnavailable, asyncio.CancelledError):
            self._unanswered.append((boottime() + MAY_COMMIT_FOR, mark))  # it may have committed, or may do so yet
            raise
        finally:
            self._claiming.remove(mark)

    def known(self, session: int, batch: int) -> int:
        """The last batch of a session, at most `batch`, up to which every claim has been answered."""
        marks = self._claiming + [mark for _, mark in self._unanswered]
        return min([batch, *(mark[session] for mark in marks if session in mark)])

    @property
    def any_unanswered(self) -> bool:
        """Whether the answer to a claim was lost, so that it may have taken tasks unknown to this server."""
        self._unanswered = [(until, mark) for until, mark in self._unanswered if until > boottime()]
        return bool(self._unanswered)

    @property
    def any_under_way(self) -> bool:
        """Whether a claim is under way whose answer may still arrive."""
        return bool(self._claiming)
