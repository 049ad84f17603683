"""Messages of alerts: bounded whatever they tell, and readable."""

from __future__ import annotations

from datetime import UTC, date, datetime

import msgspec
import pytest

from mainspring.model.alerts.channels import shown_url
from mainspring.model.alerts.messages import ALERTS, EVENTS, LONGEST_TEXT, Message, Told, as_text, body, compose
from mainspring.model.alerts.mutes import Mute, is_muted, is_quiet

AT = datetime(2026, 11, 15, 23, 30, tzinfo=UTC)


def told(number: int, *, state: str = "firing", new: int = 0, events: int = 0, message: str = "…") -> Told:
    made = [{"task": one} for one in range(events)]
    return Told(number, state, f"job:{number}", message, AT, AT, None, new, new, made, {})  # type: ignore[arg-type]


def made(*alerts: Told) -> Message:
    return compose("7", AT, "here", "failed", "failed", "warning", alerts)


def test_a_message_has_a_bounded_number_of_alerts_and_events_and_counts_the_rest() -> None:
    message = made(*(told(number, new=100, events=100) for number in range(ALERTS + 50)))
    assert len(message.alerts) == ALERTS
    assert sum(len(alert.events) for alert in message.alerts) == EVENTS
    assert (message.more.alerts, message.more.events) == (50, 5000)
    assert sum(alert.new for alert in message.alerts) + message.more.events == 100 * (ALERTS + 50)


def test_what_fires_stands_before_what_is_resolved() -> None:
    message = made(told(1, state="resolved"), told(2))
    assert [alert.id for alert in message.alerts] == [2, 1]
    assert (message.state, message.title) == ("firing", "failed: 1 firing, 1 resolved")
    assert made(told(1, state="resolved")).state == "resolved"


@pytest.mark.parametrize("count", [1, 3, 200])
def test_text_is_short_enough_for_its_receiver_whatever_it_tells(count: int) -> None:
    text = as_text(made(*(told(number, message="x" * 1000) for number in range(count))))
    assert len(text) <= LONGEST_TEXT + 1
    assert "failed" in text.splitlines()[0]


def test_a_webhook_gets_the_very_bytes_that_are_kept() -> None:
    kept = msgspec.json.encode(made(told(1)))
    assert body("webhook", kept) is kept
    assert list(msgspec.json.decode(body("slack", kept))) == ["text"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example/alerts", "https://hooks.example/alerts"),
        ("https://u:p@hooks.example:8443/a?b=c&d", "https://***@hooks.example:8443/a?b=***&d"),
        ("https://hooks.example/v1/0123456789abcdef0123/x", "https://hooks.example/v1/***/x"),
        ("http://10.0.0.1/?secret", "http://10.0.0.1/?***"),
    ],
)
def test_a_url_is_shown_without_what_may_be_a_credential(url: str, shown: str) -> None:
    assert shown_url("webhook", url) == shown


def test_a_mute_covers_what_both_of_its_patterns_match() -> None:
    mutes = [Mute(["no-*"], []), Mute([], ["job:report*"]), Mute(["late"], ["job:mail"])]
    assert is_muted(mutes, "no-agents", "cluster")
    assert is_muted(mutes, "failed", "job:report-daily")
    assert is_muted(mutes, "late", "job:mail")
    assert not is_muted(mutes, "failed", "job:mail")


def test_a_quiet_day_is_a_day_of_its_zone() -> None:
    assert date(2026, 11, 16).weekday() == 0
    assert not is_quiet(["mon"], "UTC", AT), "there it is Sunday evening"
    assert is_quiet(["mon"], "Europe/Paris", AT), "there Monday has begun"
