"""The error tree: every error says what happened and what to do next, and knows no HTTP.

    MainspringError
    ├── ValidationError        the caller's input is wrong; `field` names the part
    │   └── BadCursor, Malformed, TooLarge
    ├── NotFound               there is no such thing
    │   ├── JobNotFound, ScheduleNotFound, TaskNotFound, BatchNotFound, CalendarNotFound, AgentNotFound
    │   └── ServerNotFound, TokenNotFound, RuleNotFound, AlertRuleNotFound, ChannelNotFound, SecretNotFound
    ├── Conflict               the thing exists, or is in the wrong state
    │   ├── InvalidTransition  with the `state` of the task, and those that are `allowed`
    │   ├── TaskExists         with the `id` of the task that has the key
    │   ├── BatchEnded         it takes no more tasks; with its `id`
    │   ├── NameTaken, JobInUse, StaleVersion
    │   ├── SecretUnavailable  its key is missing
    │   ├── SessionSuperseded
    │   └── StaleAttempt
    ├── AccessDenied           PostgreSQL or a server refuses the user, or what the user wants to do
    │   └── Unauthorized, Forbidden
    ├── NoAgents               no agent can run what is submitted
    ├── RateLimited            too many requests; `retry_after` says when to try again
    ├── QueueFull              so many tasks wait already; `limit`, `waiting`, and `retry_after` says when to try again
    ├── TaskFailed             the awaited task did not succeed
    ├── BatchFailed            the awaited batch ended, and not all of it succeeded
    ├── ResultLost             the task succeeded by transaction(), and its handler died before it returned
    ├── WaitTimeout            the awaited task did not end in time
    ├── StoreUnavailable       PostgreSQL does not answer; the caller tries again
    │   └── StoreFull, Busy    its disk is full; all connections for requests are in use
    ├── ServerUnavailable      a server of ours cannot be reached, or does not take requests now
    │   └── NotReady, Stopping
    ├── SchemaMismatch         the schema and this program do not fit
    ├── BackupFailed           a backup or a restore failed; nothing was changed
    └── EmbeddedUnavailable    no embedded PostgreSQL can run here

Next: model/tasks/states.py
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Self

MAX_MESSAGE = 2000  # characters of an error's message

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = 10
_REPR.maxlevel = 4


def shown(value: object) -> str:
    """What a caller gave, for an error: its repr, cut short. Never fails, whatever the value is."""
    try:
        return _REPR.repr(value).encode(errors="backslashreplace").decode()
    except Exception:  # its own repr fails, or it is an integer with too many digits to print
        return f"<{type(value).__name__}>"


def shortened(message: str) -> str:
    """A message with its middle left out, if it is long: its end says what to do."""
    if len(message) <= MAX_MESSAGE:
        return message
    half = MAX_MESSAGE // 2 - 20
    return f"{message[:half]} … {len(message) - 2 * half:,} characters … {message[-half:]}"


class MainspringError(Exception):
    """Root of the tree. `code` is stable and for programs, the message is for people, `details` for both.

    A long message is cut in its middle: it quotes input, and ends with what to do.
    """

    code = "error"

    def __init__(self, message: str, *, field: str | None = None, **details: object) -> None:
        self.message = shortened(message)
        super().__init__(self.message)
        self.field = field
        self.details = details  # what a program may want to know: the state of a task, when to try again


def all_errors() -> list[type[MainspringError]]:
    """Every class of the tree, each before its subclasses."""
    kinds: list[type[MainspringError]] = [MainspringError]
    for kind in kinds:  # grows while it is read
        kinds += kind.__subclasses__()
    return kinds


MOST_FAULTS = 20  # of one request that are told


def together(faults: Sequence[ValidationError]) -> ValidationError:
    """The first of them; with several, it tells them all."""
    first = faults[0]
    if len(faults) > 1:
        told = faults[:MOST_FAULTS]
        first.details["errors"] = [{"field": one.field, "code": one.code, "message": one.message} for one in told]
    return first


def from_code(code: str, message: str, field: str | None, **details: object) -> MainspringError:
    """The error for a code from another process; MainspringError if this version does not know the code."""
    kinds = (kind for kind in all_errors() if kind.code == code and kind is not TaskFailed)
    return next(kinds, MainspringError)(message, field=field, **details)


class ValidationError(MainspringError):
    """The caller's input is wrong; nothing was written."""

    code = "validation"


class Malformed(ValidationError):
    """Not HTTP, not JSON, or a length that is wrong."""

    code = "malformed"


class TooLarge(ValidationError):
    """More bytes or more items than one request may have."""

    code = "too_large"


class BadCursor(ValidationError):
    """A cursor that no page gave out, or that belongs to a list with other filters."""

    code = "bad_cursor"


class NotFound(MainspringError):
    code = "not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class ScheduleNotFound(NotFound):
    code = "schedule_not_found"


class TaskNotFound(NotFound):
    code = "task_not_found"


class BatchNotFound(NotFound):
    code = "batch_not_found"


class CalendarNotFound(NotFound):
    code = "calendar_not_found"


class AgentNotFound(NotFound):
    code = "agent_not_found"


class ServerNotFound(NotFound):
    code = "server_not_found"


class TokenNotFound(NotFound):
    code = "token_not_found"


class RuleNotFound(NotFound):
    code = "rule_not_found"


class AlertRuleNotFound(NotFound):
    code = "alert_rule_not_found"


class ChannelNotFound(NotFound):
    code = "channel_not_found"


class SecretNotFound(NotFound):
    code = "secret_not_found"


class Conflict(MainspringError):
    code = "conflict"


class InvalidTransition(Conflict):
    """The task is in a state that does not allow the move."""

    code = "invalid_transition"


class TaskExists(Conflict):
    """The key of the submission is taken, and the caller wanted no other task; `id` names the one that has it."""

    code = "task_exists"


class BatchEnded(Conflict):
    """The batch has ended or been cancelled: it takes no more tasks. With its `id`."""

    code = "batch_ended"


class NameTaken(Conflict):
    code = "name_taken"


class JobInUse(Conflict):
    """A job that has schedules or live tasks is not deleted."""

    code = "job_in_use"


class SecretUnavailable(Conflict):
    """A secret cannot be encrypted or decrypted, mostly because its key is missing; the message says what to do."""

    code = "secret_unavailable"


class StaleVersion(Conflict):
    """The thing was changed since the caller read it; `version` is the present one."""

    code = "stale_version"


class SessionSuperseded(Conflict):
    """A hello was carried out late: its agent has connected again since. Nothing was changed."""

    code = "session_superseded"


class StaleAttempt(Conflict):
    """An agent reported on an attempt that it no longer owns; the report changes nothing."""

    code = "stale_attempt"


class AccessDenied(MainspringError):
    """The user, the password or the token is refused, or what the user wants to do."""

    code = "access_denied"


class Unauthorized(AccessDenied):
    """No token that a server knows."""

    code = "unauthorized"


class Forbidden(AccessDenied):
    """The role of the token does not allow it; the message names one that does."""

    code = "forbidden"


class NoAgents(MainspringError):
    """Nobody can run what is submitted, and the caller wanted to be told."""

    code = "no_agents"


class RateLimited(MainspringError):
    """Too many requests from one caller; `retry_after` seconds later they are taken again."""

    code = "rate_limited"


class QueueFull(MainspringError):
    """As many tasks wait as may. With `limit` and `waiting`; `retry_after` seconds later there is room again, by the
    rate at which tasks ended lately."""

    code = "queue_full"

    @property
    def limit(self) -> int:
        return self._detail("limit")

    @property
    def waiting(self) -> int:
        return self._detail("waiting")

    @property
    def retry_after(self) -> int:
        return self._detail("retry_after")

    def _detail(self, name: str) -> int:
        value = self.details.get(name, 0)
        assert isinstance(value, int)
        return value


class TaskFailed(MainspringError):
    """Raised by `Task.result()` when the task ended in any state but succeeded."""

    code = "task_failed"

    def __init__(self, message: str, *, task_id: int, state: str, error_code: str | None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state
        self.error_code = error_code


class BatchFailed(MainspringError):
    """Raised by `mainspring batch wait` when not all of the batch succeeded."""

    code = "batch_failed"


class ResultLost(MainspringError):
    """Raised by `Task.result()`: the handler's transaction() has committed, and its return value was not stored."""

    code = "result_lost"


class WaitTimeout(MainspringError, TimeoutError):
    """The task did not end within the given time; it keeps running."""

    code = "wait_timeout"


class StoreUnavailable(MainspringError):
    """PostgreSQL cannot be reached, or failed during a statement; every write is safe to repeat."""

    code = "store_unavailable"

    def for_another_caller(self) -> Self:
        """The same error, without the traceback of the caller that met it first."""
        own = type(self)(self.message, field=self.field, **self.details)
        own.__cause__ = self
        return own


class StoreFull(StoreUnavailable):
    """The disk of PostgreSQL is full."""

    code = "store_full"


class Busy(StoreUnavailable):
    """All connections to PostgreSQL that requests may use are in use."""

    code = "busy"


class ServerUnavailable(MainspringError):
    """A server of ours cannot be reached, or does not take requests now; the caller tries again."""

    code = "server_unavailable"


class NotReady(ServerUnavailable):
    code = "not_ready"


class Stopping(ServerUnavailable):
    code = "stopping"


class SchemaMismatch(MainspringError):
    code = "schema_mismatch"


class BackupFailed(MainspringError):
    """No backup was written, or none was restored; nothing was changed."""

    code = "backup_failed"


class EmbeddedUnavailable(MainspringError):
    code = "embedded_unavailable"
