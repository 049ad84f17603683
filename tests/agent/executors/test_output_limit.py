"""What is kept of a daemon's output: all of it, at a bounded rate."""

from __future__ import annotations

from mainspring.agent.executors.capture import PIECE, REMARK, STDERR, STDOUT, OutputLimit


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.emitted: list[tuple[int, bytes]] = []
        self.flow = OutputLimit(
            lambda stream, data: self.emitted.append((stream, data)), lambda: self.now, rate=10, burst=100
        )

    def write(self, data: bytes, stream: int = STDOUT) -> list[tuple[int, bytes]]:
        self.emitted.clear()
        self.flow.write(stream, data)
        self.flow.flush()
        return list(self.emitted)


def test_what_comes_slowly_is_emitted_for_ever() -> None:
    bench = Bench()
    for _ in range(1000):
        bench.now += 1.0
        assert bench.write(b"0123456789") == [(STDOUT, b"0123456789")]


def test_what_is_beyond_the_rate_is_left_out_with_a_remark() -> None:
    bench = Bench()
    assert bench.write(b"x" * 100) == [(STDOUT, b"x" * 100)], "a burst"
    assert bench.write(b"y" * 50) == []
    assert bench.write(b"z" * 50, STDERR) == []
    bench.now += 5.0
    told = "… 100 bytes left out: too fast …".encode()
    assert bench.write(b"w" * 50) == [(REMARK, told), (STDOUT, b"w" * 50)]
    assert bench.flow.stderr_tail == b"z" * 50, "for the message of a failure"


def test_a_quiet_time_gives_no_more_than_a_burst() -> None:
    bench = Bench()
    bench.now += 1e6
    assert bench.write(b"x" * 101) == []
    assert bench.write(b"x" * 100) != []


def test_the_end_tells_what_was_left_out() -> None:
    bench = Bench()
    bench.write(b"x" * 101)
    bench.flow.close()
    assert bench.emitted == [(REMARK, "… 101 bytes left out: too fast …".encode())]


def test_pieces_are_no_larger_than_may_be_emitted() -> None:
    emitted: list[bytes] = []
    flow = OutputLimit(lambda _stream, data: emitted.append(data), lambda: 0.0)
    flow.write(STDOUT, b"x" * (PIECE * 2 + 1))
    flow.close()
    assert [len(piece) for piece in emitted] == [PIECE, PIECE, 1]
