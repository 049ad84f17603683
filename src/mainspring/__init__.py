"""Mainspring: a distributed job scheduler on PostgreSQL. These are the public names of the SDK."""

from mainspring.agent.control import CancelTask, Fail, RetryAfter, Snooze
from mainspring.agent.current import CurrentTask, TaskCancelled, current_task
from mainspring.errors import (
    Conflict,
    InvalidTransition,
    JobNotFound,
    MainspringError,
    NotFound,
    StaleAttempt,
    StoreUnavailable,
    TaskFailed,
    TaskNotFound,
    ValidationError,
    WaitTimeout,
)
from mainspring.sdk.app import App
from mainspring.sdk.job import Job
from mainspring.sdk.task import Task

__version__ = "0.1.0"

__all__ = [
    "App",
    "CancelTask",
    "Conflict",
    "CurrentTask",
    "Fail",
    "InvalidTransition",
    "Job",
    "JobNotFound",
    "MainspringError",
    "NotFound",
    "RetryAfter",
    "Snooze",
    "StaleAttempt",
    "StoreUnavailable",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskNotFound",
    "ValidationError",
    "WaitTimeout",
    "current_task",
]
