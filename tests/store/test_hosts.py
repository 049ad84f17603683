"""The hosts of a DSN, in every way that one may write them."""

from __future__ import annotations

import pytest

from mainspring.errors import ValidationError
from mainspring.store.hosts import check_session_attributes, hosts_of


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql://me:p%40ss@a:5433,b/shop", [("a", 5433), ("b", None)]),
        ("postgresql://a,b,c/shop?target_session_attrs=read-write", [("a", None), ("b", None), ("c", None)]),
        ("postgresql://a,b/shop?port=5433", [("a", 5433), ("b", 5433)]),
        ("postgresql:///shop?host=a,b&port=5433,5434", [("a", 5433), ("b", 5434)]),
        ("postgresql:///shop?host=/run/x&port=5433&user=me", [("/run/x", 5433)]),
        ("postgresql://[::1]:5433,[fe80::2]/shop", [("::1", 5433), ("fe80::2", None)]),
        ("postgresql://me@%2Frun%2Fx/shop", [("/run/x", None)]),
        ("postgresql:///shop", []),
        ("postgresql://a,b/shop?port=1,2,3", []),  # the driver says what is wrong with these
        ("postgresql://a:port,b/shop", []),
        ("postgresql://[::1/shop", []),
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
    check_session_attributes(f"postgresql://a,b/shop?target_session_attrs={asked}")


@pytest.mark.parametrize("asked", ["standby", "read-only", "prefer-standby", "nonsense"])
def test_a_dsn_that_asks_for_a_standby_is_refused_in_words(asked: str) -> None:
    with pytest.raises(ValidationError, match="use read-write") as refused:
        check_session_attributes(f"postgresql://me:secret@a,b/shop?target_session_attrs={asked}")
    assert refused.value.field == "dsn"
    assert "secret" not in refused.value.message
