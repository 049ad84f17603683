"""SendWindow: how much may be under way follows what the line carries."""

from __future__ import annotations

from mainspring.agent.connection.send_window import FIRST, LEAST, MOST, SOON, SendWindow


def send(window: SendWindow, bytes_per_second: float, frames: int) -> float:
    """Fill the window so often; the longest time that a frame took."""
    longest = 0.0
    for _ in range(frames):
        size = window.size
        longest = max(longest, size / bytes_per_second)
        window.arrived(size, size / bytes_per_second)
    return longest


def test_a_quick_line_is_used_in_full_after_a_few_frames() -> None:
    window = SendWindow()
    send(window, 1e8, 10)
    assert window.size == MOST


def test_on_a_slow_line_nothing_waits_long() -> None:
    assert send(SendWindow(), 1000, 100) < 3
    assert send(SendWindow(), 100_000, 100) < 3


def test_a_line_that_becomes_slow_is_followed_down() -> None:
    window = SendWindow()
    send(window, 1e8, 10)
    for _ in range(20):
        window.arrived(window.size, 10.0)
    assert window.size == LEAST


def test_small_frames_prove_nothing_about_large_ones() -> None:
    window = SendWindow()
    for _ in range(100):
        window.arrived(10, SOON / 10)
    assert window.size == FIRST
