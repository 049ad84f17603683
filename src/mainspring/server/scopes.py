"""Scopes that a function of the user's tells at plan time: asked with a deadline, and believed only if they make sense.

Next: server/planner.py
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any

from mainspring.errors import ValidationError
from mainspring.model.define_schedule import check_scopes

PATIENCE = 10.0  # seconds that a provider may take

Provider = Callable[..., Iterable[str] | Awaitable[Iterable[str]]]


async def ask(provider: Provider, plan_time: datetime) -> tuple[str, ...]:
    """The scopes that `provider` tells; whatever goes wrong in it is a ValidationError."""
    try:
        async with asyncio.timeout(PATIENCE):
            return check_scopes(await _call(provider, plan_time))
    except TimeoutError:
        raise ValidationError(f"scopes: the provider took more than {PATIENCE:g} s", field="scopes") from None
    except ValidationError:
        raise
    except Exception as error:
        raise ValidationError(
            f"scopes: the provider failed: {type(error).__name__}: {error}", field="scopes"
        ) from error


async def _call(provider: Provider, plan_time: datetime) -> Any:
    arguments = (plan_time,) if inspect.signature(provider).parameters else ()
    if inspect.iscoroutinefunction(provider):
        return await provider(*arguments)
    return await asyncio.to_thread(lambda: check_scopes(provider(*arguments)))
