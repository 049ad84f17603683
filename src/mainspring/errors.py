"""The error tree: every error says what happened and what to do next, and knows no HTTP.

    MainspringError
    ├── ValidationError        the caller's input is wrong; `field` names the part
    ├── NotFound               no such job, schedule, task or calendar
    │   ├── JobNotFound
    │   ├── ScheduleNotFound
    │   └── TaskNotFound
    ├── Conflict               the thing exists, or is in the wrong state
    │   ├── InvalidTransition
    │   └── StaleAttempt
    ├── AccessDenied           PostgreSQL does not let this user in, or not do that
    ├── TaskFailed             the task that was waited for did not succeed
    ├── ResultLost             the task succeeded by transaction(), and its handler did not come to return
    ├── WaitTimeout            the task that was waited for did not end in time
    ├── StoreUnavailable       PostgreSQL does not answer; the caller tries again
    ├── SchemaMismatch         the schema and this program do not fit
    ├── BackupFailed           a backup or a restore did not come to its end; nothing was changed
    └── EmbeddedUnavailable    no embedded PostgreSQL can run here

Next: model/tasks/states.py
"""

from __future__ import annotations


class MainspringError(Exception):
    """Root of the tree. `code` is stable and for programs, the message is for people."""

    code = "error"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


def from_code(code: str, message: str, field: str | None) -> MainspringError:
    """The error that another process named by its code; the root of the tree where this version does not know it."""
    kinds: list[type[MainspringError]] = [MainspringError]
    for kind in kinds:  # grows while it is read
        if kind.code == code and kind is not TaskFailed:
            return kind(message, field=field)
        kinds += kind.__subclasses__()
    return MainspringError(message, field=field)


class ValidationError(MainspringError):
    """Something the caller gave cannot be accepted; nothing was written."""

    code = "validation"


class NotFound(MainspringError):
    code = "not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class ScheduleNotFound(NotFound):
    code = "schedule_not_found"


class TaskNotFound(NotFound):
    code = "task_not_found"


class Conflict(MainspringError):
    code = "conflict"


class InvalidTransition(Conflict):
    """The task is in a state that does not allow the move."""

    code = "invalid_transition"


class StaleAttempt(Conflict):
    """An agent reported on an attempt that it no longer owns; the report changes nothing."""

    code = "stale_attempt"


class AccessDenied(MainspringError):
    """PostgreSQL refuses the user, the password, or what the user wants to do."""

    code = "access_denied"


class TaskFailed(MainspringError):
    """Raised by `Task.result()` when the task ended in any state but succeeded."""

    code = "task_failed"

    def __init__(self, message: str, *, task_id: int, state: str, error_code: str | None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state
        self.error_code = error_code


class ResultLost(MainspringError):
    """Raised by `Task.result()`: the handler's transaction() is committed, and it returned nothing that was kept."""

    code = "result_lost"


class WaitTimeout(MainspringError, TimeoutError):
    """The task did not end within the time given; it goes on."""

    code = "wait_timeout"


class StoreUnavailable(MainspringError):
    """PostgreSQL cannot be reached or went away in the middle; every write is safe to repeat."""

    code = "store_unavailable"


class SchemaMismatch(MainspringError):
    code = "schema_mismatch"


class BackupFailed(MainspringError):
    """No backup was written, or none was restored: what was there before is there still."""

    code = "backup_failed"


class EmbeddedUnavailable(MainspringError):
    code = "embedded_unavailable"
