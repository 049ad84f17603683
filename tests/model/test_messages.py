"""The agent protocol stays encodable: what is sent comes back the same, as JSON and as MessagePack."""

from __future__ import annotations

from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest

from mainspring.model.messages import (
    PROTOCOL,
    AgentMessage,
    Armed,
    AttemptId,
    Cancel,
    Chunk,
    Configure,
    Dispatch,
    Drain,
    Ending,
    Finished,
    Frame,
    Heartbeat,
    Hello,
    Keep,
    Note,
    Output,
    Pause,
    Progress,
    Recall,
    Refused,
    ServerMessage,
    Start,
    Started,
    Submit,
    Submitted,
    Welcome,
)
from mainspring.model.tasks.jobs import Command, Definition, Job, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState

BIG = 2**62
COMMAND = Definition(Command(("ls", "-l"), env={"A": "b"}), Retry(delays=(1.0, 2.0)), requires={"zone": "a"})

FROM_AGENT: list[AgentMessage] = [
    Hello("agent", 100, {"zone": "a"}),
    Keep(7, "secret", 5.5),
    Heartbeat(3),
    Started([Start(BIG, BIG, 1_790_000_000.123456)]),
    Finished(
        [
            Ending(1, 2, 3, 4, TaskState.SUCCEEDED, 5.5, 6.5, result='{"a": 1}'),
            Ending(1, 2, 3, 4, TaskState.FAILED, 0.0, 6.5, None, "code", "é\n🚀", ("a", "b"), 1.5, None, True),
            Ending(1, 2, 3, 4, TaskState.SKIPPED, 5.5, 6.5, snooze=60.0),
        ]
    ),
    Progress([Note(1, 2, "0.5", None), Note(1, 2, None, '{"a": []}')]),
    Output([Chunk(1, 2, 3, 1, 5.5, bytes(range(256)))]),
    Refused([AttemptId(1, 2), AttemptId(BIG, BIG)], "draining"),
    Submit("ab" * 16, 1, 2, "job", ["{}", '{"a": 1}'], many=True, run_at=5.5, delay=0.5, key="é", after=[1, BIG]),
]
FROM_SERVER: list[ServerMessage] = [
    Welcome(7, 15.0, 1_790_000_000.5),
    Configure(15.0, 1_790_000_000.5),
    Dispatch(
        [Job(1, "ls", 2, 3, COMMAND), Job(2, "job", 1, 1, Definition(Python("job")))],
        [Armed(1, 2, 3, 1, 5.5, "{}"), Armed(1, 2, 3, 1, 5.5, '{"a":1}', '{"at":1}', True)],
    ),
    Recall([AttemptId(1, 2)]),
    Cancel([AttemptId(1, 2)]),
    Pause([AttemptId(1, 2)], resume=True),
    Drain(),
    Submitted("ab" * 16, [1, BIG]),
    Submitted("ab" * 16, code="validation", message="é", field="args"),
]


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@pytest.mark.parametrize(
    ("union", "message"),
    [(AgentMessage, m) for m in FROM_AGENT] + [(ServerMessage, m) for m in FROM_SERVER],
    ids=lambda value: type(value).__name__,
)
def test_a_message_comes_back_the_same(codec: ModuleType, union: Any, message: Any) -> None:
    frame = Frame(BIG, 12, [message, message])
    assert codec.decode(codec.encode(frame), type=Frame[union]) == frame


def test_every_message_of_the_protocol_is_tried_here() -> None:
    assert {type(message) for message in FROM_AGENT} == set(get_args(AgentMessage))
    assert {type(message) for message in FROM_SERVER} == set(get_args(ServerMessage))


def test_every_tag_is_another() -> None:
    kinds = (*get_args(AgentMessage), *get_args(ServerMessage))
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


def test_hello_says_its_protocol() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FROM_AGENT[0]))["protocol"] == PROTOCOL


def test_a_message_of_a_newer_version_with_more_fields_is_still_read() -> None:
    later = {"type": "hello", "name": "a", "slots": 1, "labels": {}, "protocol": 1, "colour": "red"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(later), type=AgentMessage) == Hello("a", 1, {})
    longer = [1, 2, 3.0, "new"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(longer), type=Start) == Start(1, 2, 3.0)


def test_the_ending_of_an_older_agent_has_no_instant() -> None:
    """It sends fewer members; an older server ignores those that it does not know."""
    ending = Ending(1, 2, 3, 1, TaskState.SUCCEEDED, 1.0, 2.0, armed_ahead=4.5, fire_at=0.5, planned=True)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(ending))
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(sent[:-3]), type=Ending)
    assert (old.armed_ahead, old.fire_at, old.planned, old.finished_at) == (None, 0.0, False, 2.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([*sent, "more"]), type=Ending) == ending
