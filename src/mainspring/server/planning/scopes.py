"""Providers: call the user's functions that return scopes at plan time, with a deadline, and check what they return.

Next: server/planning/planner.py
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from mainspring.errors import ValidationError
from mainspring.loops import in_thread
from mainspring.model.schedules.define_schedule import check_scopes

TIMEOUT = 10.0  # seconds

Provider = Callable[..., Iterable[str] | Awaitable[Iterable[str]]]


class Providers:
    """The functions of one application that return scopes, by the name of the schedule."""

    def __init__(self, functions: Mapping[str, Provider]) -> None:
        self._functions = functions
        self._running: set[str] = set()  # those whose thread has not returned

    def __bool__(self) -> bool:
        return bool(self._functions)

    async def ask(self, schedule: str, plan_time: datetime) -> tuple[str, ...]:
        """The scopes of a schedule. Any error of its function becomes a ValidationError."""
        function = self._functions.get(schedule)
        if function is None:
            raise ValidationError("the application that runs here has no function for them", field="scopes")
        if schedule in self._running:
            raise ValidationError("the provider has not come back from when it was asked before", field="scopes")
        try:
            async with asyncio.timeout(TIMEOUT):
                return check_scopes(await self._call(schedule, function, plan_time))
        except TimeoutError:
            raise ValidationError(f"the provider took more than {TIMEOUT:g} s", field="scopes") from None
        except ValidationError:
            raise
        except Exception as error:
            raise ValidationError(f"the provider failed: {type(error).__name__}: {error}", field="scopes") from error

    async def _call(self, schedule: str, function: Provider, plan_time: datetime) -> Any:
        arguments = (plan_time,) if inspect.signature(function).parameters else ()
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)

        def call() -> tuple[str, ...]:
            try:
                return check_scopes(function(*arguments))
            finally:
                self._running.discard(schedule)

        self._running.add(schedule)
        try:
            answer = in_thread(call, f"scopes of {schedule}")
        except RuntimeError:  # the system starts no more threads
            self._running.discard(schedule)
            raise
        return await answer
