"""Grouped: new tasks of many callers at once share a statement and its commit; each is answered for itself.

What has to look or to lock before it inserts (dependencies, concurrency keys, `if_exists: reject`, `require_agents`)
goes alone.
Next: operations/requests/group_commit.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.access.actors import Actor
from mainspring.model.tasks.states import PENDING
from mainspring.operations import Connections
from mainspring.operations.requests import new_tasks
from mainspring.operations.requests.group_commit import Submissions
from mainspring.operations.requests.new_tasks import NewTask, Submitted
from mainspring.store.submission import enqueue
from mainspring.store.submission.submissions import Submission

Made = tuple[int, bool]  # the id, and whether the task was created: else it is the one that has the key


class GroupedTasks:
    """Belongs to one event loop."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._submissions = Submissions(self._send)

    async def submit(self, actor: Actor, task: NewTask) -> Submitted:
        """As operations.tasks.submit; durable when it returns."""
        checked = await new_tasks.checked_in_turns(actor, task)
        if not new_tasks.can_share(actor, task, checked):
            async with self._connections.acquire() as conn:
                return await new_tasks.submit(conn, actor, task)
        id, created = await self._submissions.submit(checked)
        if created:
            return Submitted(id, PENDING.label, True)
        async with self._connections.acquire() as conn:
            return await new_tasks.answer(conn, task, id, created)

    async def _send(self, submissions: Sequence[Submission]) -> list[Made | None]:
        async with self._connections.acquire() as conn:
            if len(submissions) == 1:
                return [await enqueue.submit_new(conn, submissions[0])]
            found = await enqueue.submit_each_new(conn, submissions)
        return [None if id is None else (id, created) for id, created in found]
