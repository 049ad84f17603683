"""DSNs, in every way that one may write them."""

from __future__ import annotations

import pytest

from mainspring.errors import ValidationError
from mainspring.store.postgres.dsn import at_database, check, hosts_of, without_hosts


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql://me:p%40ss@a:5433,b/shop", [("a", 5433), ("b", None)]),
        ("postgresql://a,b,c/shop?target_session_attrs=read-write", [("a", None), ("b", None), ("c", None)]),
        ("postgresql://a,b/shop?port=5433", [("a", 5433), ("b", 5433)]),
        ("postgresql:///shop?host=a,b&port=5433,5434", [("a", 5433), ("b", 5434)]),
        ("postgresql:///shop?host=/run/x&port=5433&user=me", [("/run/x", 5433)]),
        ("postgresql://[::1]:5433,[fe80::2]/shop", [("::1", 5433), ("fe80::2", None)]),
        ("postgresql://a,[::1]:5433/shop", [("a", None), ("::1", 5433)]),
        ("postgresql://me:a[b]c@[::1%25lo]:5433/shop\n", [("::1%lo", 5433)]),
        ("postgresql:///shop?host=[::1]:5433", [("::1", 5433)]),
        ("postgresql://me@%2Frun%2Fx/shop", [("/run/x", None)]),
        ("postgresql:///shop", []),
        ("postgresql://a,b/shop?port=1,2,3", []),  # the driver says what is wrong with these
        ("postgresql://a:port,b/shop", []),
        ("postgresql://[::1/shop", []),
        ("postgresql://[elsewhere]/shop", []),
        ("postgresql://[::1]x/shop", []),
        ("postgresql://a[::1]/shop", []),
        ("", []),
    ],
)
def test_a_dsn_names_its_hosts(dsn: str, hosts: list[tuple[str, int | None]]) -> None:
    assert hosts_of(dsn) == hosts


def test_a_host_is_shown_as_one_would_write_it() -> None:
    shown = [str(host) for host in hosts_of("postgresql://a,[::1]:5433/shop")]
    assert shown == ["a", "[::1]:5433"]


@pytest.mark.parametrize("asked", ["any", "primary", "read-write"])
def test_whatever_can_be_written_to_may_be_asked_for(asked: str) -> None:
    check(f"postgresql://a,b/shop?target_session_attrs={asked}")


@pytest.mark.parametrize("asked", ["standby", "read-only", "prefer-standby", "nonsense"])
def test_a_dsn_that_asks_for_a_standby_is_refused_in_words(asked: str) -> None:
    with pytest.raises(ValidationError, match="use read-write") as refused:
        check(f"postgresql://me:secret@a,b/shop?target_session_attrs={asked}")
    assert refused.value.field == "dsn"
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("host", ["[::1", "[elsewhere]", "[::1]5433", "a[::1]", "::1]", "a:port"])
def test_a_host_that_cannot_be_read_is_refused_without_a_word_of_the_password(host: str) -> None:
    with pytest.raises(ValidationError, match="cannot be read; write postgresql://.*in brackets") as refused:
        check(f"postgresql://me:secret@{host}/shop")
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("dsn", "bare"),
    [
        ("postgresql://me:p%40ss@a,[::1]:5433/shop?sslmode=require", "postgresql://me:p%40ss@/shop?sslmode=require"),
        ("postgresql://me:a[b@[::1]/shop", "postgresql://me:a%5Bb@/shop"),
        ("postgresql:///shop?host=/run/x&user=me", "postgresql:///shop?host=/run/x&user=me"),
    ],
)
def test_the_hosts_can_be_taken_out_of_a_dsn(dsn: str, bare: str) -> None:
    assert without_hosts(dsn) == bare


@pytest.mark.parametrize(
    ("dsn", "other"),
    [
        ("postgresql://me@a,[::1]:5433/shop?sslmode=require", "postgresql://me@a,[::1]:5433/x?sslmode=require"),
        ("postgresql:///shop?host=/run/x", "postgresql:///x?host=/run/x"),  # libpq wants all three slashes
        ("postgresql://a", "postgresql://a/x"),
    ],
)
def test_a_dsn_can_be_led_to_another_database(dsn: str, other: str) -> None:
    assert at_database(dsn, "x") == other
