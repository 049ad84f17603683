"""Answers of Redis, and the packages of peers."""

from __future__ import annotations

import json

import pytest
from benchmarks.peers.catalogue import PARTS, PEERS, Peer
from benchmarks.peers.drivers import protocol
from benchmarks.peers.installation import DRIVERS, package_json
from benchmarks.peers.places import redis_number


@pytest.mark.parametrize(
    ("answer", "number"),
    [(":5\r\n", 5), (":0\r\n", 0), ("+OK\r\n", 0), ("*4\r\n:7\r\n$1\r\n", 7), ("*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n", 0)],
)
def test_an_answer_of_redis_is_a_number(answer: str, number: int) -> None:
    assert redis_number(answer) == number


def test_an_error_of_redis_is_no_number() -> None:
    with pytest.raises(RuntimeError, match="NOGROUP"):
        redis_number("-NOGROUP No such key\r\n")


def test_packages_for_npm_are_pinned_by_name() -> None:
    found = json.loads(package_json(("pg-boss==12.35.0", "node==22.23.3")))
    assert found["dependencies"] == {"pg-boss": "12.35.0", "node": "22.23.3"}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_has_a_driver_pinned_packages_and_known_parts(peer: Peer) -> None:
    assert (DRIVERS / (peer.driver if peer.runs_on_node else f"{peer.driver}.py")).exists()
    assert all("==" in package and "/" not in package for package in peer.packages)
    assert set(peer.parts) <= set(PARTS)
    assert peer.unfinished or "throughput" not in peer.parts


def test_instants_are_distinct_and_spread_over_the_span() -> None:
    assert protocol.instants({"tasks": 4, "first": 100.0, "span": 2.0}) == [100.0, 100.5, 101.0, 101.5]
    assert protocol.instants({"tasks": 2, "first": 100.0, "span": 0.0}) == [100.0, 100.0]


def test_chunks_cover_every_number_once() -> None:
    found = [list(chunk) for chunk in protocol.chunks(range(11), 5)]
    assert [number for chunk in found for number in chunk] == list(range(11))
    assert [len(chunk) for chunk in found] == [5, 5, 1]
