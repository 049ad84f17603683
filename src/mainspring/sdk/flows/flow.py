"""Flows: tasks that run after each other, submitted in one statement.

    load, clean, report = …                                       # jobs
    await chain(load.with_args("a.csv"), clean.with_args(), report.with_args()).enqueue()
    await group(*(load.with_args(file) for file in files)).then(report.with_args()).enqueue()

A chain runs its parts one after the other, a group runs them side by side; a part is a job with arguments, a chain or a
group. What comes behind a group waits for all of it. Nothing runs in between: the edges are rows, and the tasks are
tasks like all others.
Next: store/submission/enqueue.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mainspring.errors import ValidationError, shown
from mainspring.model.flows.batches import Callback
from mainspring.model.flows.options import OnParentFailure, check_on_parent_failure
from mainspring.sdk.task import Task
from mainspring.store.submission.drivers import check_connection
from mainspring.store.submission.submissions import FlowSubmission, Submission, flow

if TYPE_CHECKING:
    from mainspring.sdk.app import App

MOST_STEPS = 10_000
DEEPEST = 100  # chains in groups in chains


class Step(Callback, frozen=True, eq=False):
    """A job with arguments and what `using` says, made by `job.with_args(…)`."""

    app: Any = None
    submission: Submission = Submission("", "{}")
    decode: Callable[[str], Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it has arguments and perhaps a priority, and nothing else."""
        return self.submission.is_plain and self.submission.key is None

    def then(self, *parts: Part, on_parent_failure: OnParentFailure | None = None) -> Chain:
        """A chain of this and `parts`."""
        return Chain((self,)).then(*parts, on_parent_failure=on_parent_failure)


class _Parts:
    """What a chain and a group have in common. Neither changes: `then` returns a new one."""

    __slots__ = ("policy",)

    def __init__(self, policy: OnParentFailure | None) -> None:
        self.policy = None if policy is None else check_on_parent_failure(policy)

    async def enqueue(self, *, conn: Any = None) -> list[Task[Any]]:
        """Submit all of it, or nothing; returns the tasks in the order in which they are written down.

        conn   a connection of yours: they are part of your transaction
        """
        steps, app, given = self._flow()
        return _tasks(app, steps, await app.submit(given, None if conn is None else check_connection(conn)))

    def enqueue_sync(self, *, conn: Any = None) -> list[Task[Any]]:
        """The same from sync code."""
        steps, app, given = self._flow()
        return _tasks(app, steps, app.submit_sync(given, None if conn is None else check_connection(conn)))

    def _flow(self) -> tuple[list[Step], App, FlowSubmission]:
        placed: list[tuple[Step, Submission, Sequence[int]]] = []
        _place(self, (), None, placed, DEEPEST)
        steps = [step for step, _, _ in placed]
        app = steps[0].app
        if any(step.app is not app for step in steps):
            raise ValidationError("flow: its jobs are of several applications; one submits it", field="flow")
        return steps, app, flow((submission, places) for _, submission, places in placed)


class Chain(_Parts):
    """Parts that run one after the other."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part], policy: OnParentFailure | None = None) -> None:
        super().__init__(policy)
        self.parts = _checked(parts)

    def then(self, *parts: Part, on_parent_failure: OnParentFailure | None = None) -> Chain:
        """This chain, and then `parts` one after the other.

        on_parent_failure   for `parts`: skip, fail or run them if one that they run after does not succeed
        """
        if on_parent_failure is None:
            return Chain((*self.parts, *_checked(parts)), self.policy)
        return Chain((*self.parts, Chain(parts, on_parent_failure)), self.policy)


class Group(_Parts):
    """Parts that run side by side."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part], policy: OnParentFailure | None = None) -> None:
        super().__init__(policy)
        self.parts = _checked(parts)

    def then(self, *parts: Part, on_parent_failure: OnParentFailure | None = None) -> Chain:
        """A chain of this group and `parts`, the first of which runs once all of the group have ended."""
        return Chain((self,)).then(*parts, on_parent_failure=on_parent_failure)


Part = Step | Chain | Group


def chain(*parts: Part, on_parent_failure: OnParentFailure | None = None) -> Chain:
    """Parts that run one after the other: `chain(load.with_args("a.csv"), report.with_args())`.

    on_parent_failure   of its tasks that say nothing by `using`
    """
    return Chain(parts, on_parent_failure)


def group(*parts: Part, on_parent_failure: OnParentFailure | None = None) -> Group:
    """Parts that run side by side; `group(…).then(…)` waits for all of them."""
    return Group(parts, on_parent_failure)


def _checked(parts: Sequence[Any]) -> tuple[Part, ...]:
    if not parts:
        raise ValidationError("flow: a chain or a group has at least one part", field="flow")
    for part in parts:
        if not isinstance(part, (Step, Chain, Group)):
            raise ValidationError(f"flow: {shown(part)}; give job.with_args(…), a chain or a group", field="flow")
    return tuple(parts)


def _place(
    part: Part | _Parts,
    after: Sequence[int],
    policy: str | None,
    placed: list[tuple[Step, Submission, Sequence[int]]],
    depth: int,
) -> Sequence[int]:
    """Add the tasks of a part, behind the places `after`; returns the places of its last ones."""
    if depth == 0:
        raise ValidationError(f"flow: more than {DEEPEST} chains and groups within each other", field="flow")
    if isinstance(part, Step):
        if len(placed) == MOST_STEPS:
            raise ValidationError(f"flow: more than {MOST_STEPS:,} tasks", field="flow")
        own = part.submission.on_parent_failure or policy
        placed.append((part, part.submission._replace(on_parent_failure=own), after))
        return (len(placed) - 1,)
    assert isinstance(part, (Chain, Group))
    policy = part.policy or policy
    if isinstance(part, Group):
        return [place for each in part.parts for place in _place(each, after, policy, placed, depth - 1)]
    for each in part.parts:
        after = _place(each, after, policy, placed, depth - 1)
    return after


def _tasks(app: App, steps: Sequence[Step], ids: Sequence[int]) -> list[Task[Any]]:
    return [Task(app, id, step.job, step.decode) for step, id in zip(steps, ids, strict=True)]
