"""Masker: values are hidden wherever the stream is split, and all else is left as it is."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.secrets.masker import LEAST, Masker
from mainspring.model.secrets.values import SecretValues

# Few letters, so that values overlap each other and their own beginnings.
TEXTS = st.text("ab", max_size=60).map(str.encode)
VALUES = st.lists(st.text("ab", min_size=LEAST, max_size=9).map(str.encode), min_size=1, max_size=3)


def through(masker: Masker, pieces: list[bytes]) -> bytes:
    return b"".join([*map(masker.feed, pieces), masker.end()])


def replaced(values: list[bytes], text: bytes) -> bytes:
    """What one look at the whole text hides."""
    ordered = sorted(values, key=lambda value: (-len(value), value))
    return re.sub(b"|".join(map(re.escape, ordered)), b"***", text)


@given(VALUES, st.lists(TEXTS, max_size=6))
def test_pieces_are_masked_as_the_whole_is(values: list[bytes], pieces: list[bytes]) -> None:
    assert through(Masker(values), pieces) == replaced(values, b"".join(pieces))


@given(VALUES, st.lists(TEXTS, max_size=6))
def test_no_more_is_kept_back_than_a_value_without_its_end(values: list[bytes], pieces: list[bytes]) -> None:
    masker = Masker(values)
    for piece in pieces:
        masker.feed(piece)
        assert len(masker._kept) < max(map(len, values))


def test_a_value_in_two_pieces_is_hidden_and_nothing_else_waits() -> None:
    masker = Masker([b"hunter2"])
    assert masker.feed(b"one line\n") == b"one line\n"
    assert masker.feed(b"password hun") == b"password "
    assert masker.feed(b"ter2 was it\n") == b"*** was it\n"
    assert masker.end() == b""


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    everything = bytes(range(256)) * 2
    assert through(Masker([b"hunter2"]), [everything]) == everything


def test_the_beginning_of_a_value_is_hidden_where_the_stream_was_cut() -> None:
    masker = Masker([b"hunter2"])
    assert masker.feed(b"x hunte") == b"x "
    assert masker.end(cut=True) == b"***"


def test_short_values_are_not_hidden_and_white_space_around_one_does_not_count() -> None:
    assert through(Masker([b"abc"]), [b"abc"]) == b"abc"
    assert through(Masker([b"\nhunter2\n"]), [b"<hunter2>"]) == b"<***>"


def test_a_text_is_masked_whatever_is_in_it() -> None:
    values = SecretValues({"one": "pässwörd", "two": "pä"}, {})
    assert values.masked("no pässwörd \ud800 here") == "no *** \ud800 here"
    assert "pässwörd" not in repr(values)
