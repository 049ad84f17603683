"""Mainspring: a distributed job scheduler on PostgreSQL. These are the public names of the SDK.

They are loaded when first used, so that `mainspring --help` and a test run that only has our plugin pay nothing.
"""

from typing import TYPE_CHECKING

from mainspring.version import VERSION

if TYPE_CHECKING:
    from mainspring.agent.context import (
        CancelTask,
        CurrentTask,
        CurrentTasks,
        Fail,
        LogContext,
        RetryAfter,
        Snooze,
        TaskCancelled,
        current_task,
        current_tasks,
    )
    from mainspring.agent.run.hooks import Failure
    from mainspring.client.remote import Client
    from mainspring.errors import (
        AccessDenied,
        BatchEnded,
        BatchNotFound,
        Conflict,
        Forbidden,
        InvalidTransition,
        JobNotFound,
        MainspringError,
        NoAgents,
        NotFound,
        QueueFull,
        RateLimited,
        ResultLost,
        ServerUnavailable,
        StaleAttempt,
        StaleVersion,
        StoreUnavailable,
        TaskExists,
        TaskFailed,
        TaskNotFound,
        Unauthorized,
        ValidationError,
        WaitTimeout,
    )
    from mainspring.model.access.actors import Access, Role
    from mainspring.model.secrets.references import SecretReference, secret
    from mainspring.sdk.app import App
    from mainspring.sdk.asgi import asgi
    from mainspring.sdk.flows.batch import Batch
    from mainspring.sdk.flows.flow import Chain, Group, Step, chain, group
    from mainspring.sdk.job import Call, Job
    from mainspring.sdk.task import Task

__version__ = VERSION

__all__ = [
    "Access",
    "AccessDenied",
    "App",
    "Batch",
    "BatchEnded",
    "BatchNotFound",
    "Call",
    "CancelTask",
    "Chain",
    "Client",
    "Conflict",
    "CurrentTask",
    "CurrentTasks",
    "Fail",
    "Failure",
    "Forbidden",
    "Group",
    "InvalidTransition",
    "Job",
    "JobNotFound",
    "LogContext",
    "MainspringError",
    "NoAgents",
    "NotFound",
    "QueueFull",
    "RateLimited",
    "ResultLost",
    "RetryAfter",
    "Role",
    "SecretReference",
    "ServerUnavailable",
    "Snooze",
    "StaleAttempt",
    "StaleVersion",
    "Step",
    "StoreUnavailable",
    "Task",
    "TaskCancelled",
    "TaskExists",
    "TaskFailed",
    "TaskNotFound",
    "Unauthorized",
    "ValidationError",
    "WaitTimeout",
    "asgi",
    "chain",
    "current_task",
    "current_tasks",
    "group",
    "secret",
]

_CONTEXT = (
    *("CancelTask", "CurrentTask", "CurrentTasks", "Fail", "LogContext", "RetryAfter", "Snooze", "TaskCancelled"),
    *("current_task", "current_tasks"),
)
_ELSEWHERE = {
    **dict.fromkeys(_CONTEXT, "mainspring.agent.context"),
    "Failure": "mainspring.agent.run.hooks",
    "Access": "mainspring.model.access.actors",
    "Role": "mainspring.model.access.actors",
    "Client": "mainspring.client.remote",
    "asgi": "mainspring.sdk.asgi",
    "App": "mainspring.sdk.app",
    "Batch": "mainspring.sdk.flows.batch",
    "Call": "mainspring.sdk.job",
    **dict.fromkeys(("Chain", "Group", "Step", "chain", "group"), "mainspring.sdk.flows.flow"),
    "Job": "mainspring.sdk.job",
    **dict.fromkeys(("SecretReference", "secret"), "mainspring.model.secrets.references"),
    "Task": "mainspring.sdk.task",
}

if not TYPE_CHECKING:  # a type checker sees the imports above, and reports a name that is not among them

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "testing":
            return import_module("mainspring.testing")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_ELSEWHERE.get(name, "mainspring.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
