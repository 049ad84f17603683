"""An agent that a test plays: a real link to a server's connections, without an agent behind it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from mainspring.model.messages import (
    AgentMessage,
    Armed,
    Dispatch,
    Ending,
    Finished,
    Hello,
    ServerMessage,
    Welcome,
)
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents.connection import AgentConnections
from mainspring.server.recording.recorder import Recorder
from mainspring.wire.channel import memory_pair
from mainspring.wire.link import Link


class HasConnections(Protocol):
    """A server, or the parts of one that a test needs."""

    agent_connections: AgentConnections
    recorder: Recorder


class PlayedAgent:
    """Keeps what it is sent; the test says what it answers."""

    def __init__(self, server: HasConnections, name: str = "agent") -> None:
        near, far = memory_pair()
        self.name = name
        self._recorder = server.recorder
        self._link: Link[AgentMessage, ServerMessage] = Link(near)
        self.serving = asyncio.ensure_future(server.agent_connections.serve(far, process="this one"))
        self.session = 0
        self.armed: list[Armed] = []
        self._listening: asyncio.Task[None] | None = None

    async def say_hello(self, hello: Hello) -> None:
        await self._link.send([hello])
        _, [welcome] = await self._link.receive()
        assert isinstance(welcome, Welcome)
        self.session = welcome.session
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        while True:
            _, messages = await self._link.receive()
            for message in messages:
                if isinstance(message, Dispatch):
                    self.armed += message.tasks
                else:
                    await self.heard(message)

    async def heard(self, message: ServerMessage) -> None:
        """Anything but a dispatch."""

    async def holds(self, count: int) -> list[Armed]:
        """What it was sent, once there are at least so many."""
        async with asyncio.timeout(20):
            while len(self.armed) < count:
                await asyncio.sleep(0)
        return self.armed

    async def finish(self, *armed: Armed) -> None:
        endings = [Ending(a.task, a.token, a.job, a.attempt, TaskState.SUCCEEDED, 1.0, 2.0) for a in armed]
        await self._link.send([Finished(endings)])
        async with asyncio.timeout(20):
            while not self._recorder.backlog:
                await asyncio.sleep(0)
        await self._recorder.flush()

    async def leave(self) -> None:
        assert self._listening is not None
        self._listening.cancel()
        await self._link.close()
        await self.serving
