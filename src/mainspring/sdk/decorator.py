"""What `@app.job(…)` gives, typed so that a job has the arguments and the result of its handler.

Next: sdk/job.py
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from mainspring.sdk.job import Job

P = ParamSpec("P")
R = TypeVar("R")


class Decorator:
    """Registers a function; the overloads take the result's type from an async or a sync handler."""

    def __init__(self, register: Callable[[Callable[..., Any]], Job[..., Any]]) -> None:
        self._register = register

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Job[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Job[..., Any]:
        return self._register(function)
