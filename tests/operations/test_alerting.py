"""Alert rules, channels and mutes: checked, versioned, audited, and without their secrets on the way out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.alerting import end_tasks
from tests.operations.conftest import ACTOR, BAD_NAME, same_in_json

from mainspring.errors import (
    AlertRuleNotFound,
    CalendarNotFound,
    ChannelNotFound,
    Conflict,
    Forbidden,
    MainspringError,
    NameTaken,
    NotFound,
    StaleVersion,
    ValidationError,
)
from mainspring.model.access.actors import Actor
from mainspring.model.alerts.channels import ChannelSpec
from mainspring.model.alerts.kinds import KINDS
from mainspring.model.alerts.rules import AlertRuleSpec
from mainspring.operations import alert_rules, alerts, channels, mutes
from mainspring.operations.alerting.alert_rules import AlertRuleChange
from mainspring.operations.alerting.channels import ChannelChange
from mainspring.operations.condition import health
from mainspring.operations.definitions import calendars
from mainspring.store.access import audit
from mainspring.store.postgres.database import Connection

NARROW = Actor("token:narrow", jobs=("mail*",))
WEBHOOK = ChannelSpec(kind="webhook", url="https://hooks.example/alerts")
SECRETIVE = "https://bot:hunter2@hooks.example/T0AB12345678901234/x?token=s3cret&to=ops"


async def noted(conn: Connection) -> list[tuple[str, Any]]:
    found = await audit.search(conn, limit=50)
    return [(one.action, one.changes or one.detail) for one in reversed(found.entries)]


# ── rules ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_rules_that_are_there_from_the_start_are_of_known_kinds(conn: Connection) -> None:
    found = (await alert_rules.listing(conn, ACTOR)).items
    assert {"failed", "missed", "no-agents", "queue-age"} <= {rule.name for rule in found}
    for rule in found:
        assert rule.is_builtin
        assert rule.spec.kind in KINDS
        again = await alert_rules.put(conn, ACTOR, rule.name, rule.spec)
        assert not again.changed, f"{rule.name} is what the checks let through"


async def test_a_rule_is_made_changed_and_deleted_under_its_version(conn: Connection) -> None:
    spec = AlertRuleSpec(kind="late", names=["rep*"], parameters={"after": "30s"}, hold="1m", repeat="2h")
    made = await alert_rules.put(conn, ACTOR, "slow", spec, replace=False)
    assert (made.created, made.rule.version, made.rule.spec.hold, made.rule.spec.repeat) == (True, 1, 60.0, 7200.0)
    assert made.rule.spec.parameters == {"after": 30.0}
    assert same_in_json(made, AlertRuleChange)
    assert msgspec.to_builtins(made.rule.spec)["for"] == 60.0
    for given in (spec, AlertRuleSpec(kind="failed")):
        with pytest.raises(NameTaken):
            await alert_rules.put(conn, ACTOR, "slow", given, replace=False)
    with pytest.raises(StaleVersion):
        await alert_rules.edit(conn, ACTOR, "slow", {"for": 0}, version=7)
    edited = await alert_rules.edit(conn, ACTOR, "slow", {"for": 0, "repeat": None, "severity": "info"}, version=1)
    assert (edited.rule.version, edited.rule.spec.hold, edited.rule.spec.repeat) == (2, 0.0, None)
    other = await alert_rules.edit(conn, ACTOR, "slow", {"kind": "failed"})
    assert other.rule.spec.parameters == {}, "those of another kind are gone"
    assert not (await alert_rules.edit(conn, ACTOR, "slow", {})).changed
    with pytest.raises(StaleVersion):
        await alert_rules.delete(conn, ACTOR, "slow", version=1)
    await alert_rules.delete(conn, ACTOR, "slow", version=3)
    with pytest.raises(AlertRuleNotFound):
        await alert_rules.show(conn, ACTOR, "slow")
    assert [action for action, _ in await noted(conn)] == [
        "alert_rule.create", "alert_rule.change", "alert_rule.change", "alert_rule.delete",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"kind": "lat"}, "kind"),
        ({"kind": "failed", "hold": "5m"}, "for"),
        ({"kind": "late", "parameters": {"afetr": 1}}, "parameters.afetr"),
        ({"kind": "late", "parameters": {"after": "soon"}}, "parameters.after"),
        ({"kind": "failing", "parameters": {"count": 0}}, "parameters.count"),
        ({"kind": "failing", "parameters": {"count": "x"}}, "parameters.count"),
        ({"kind": "no_agents", "names": ["web*"]}, "names"),
        ({"kind": "failed", "names": [BAD_NAME]}, "names"),
        ({"kind": "failed", "repeat": "1s"}, "repeat"),
        ({"kind": "failed", "tz": "Europe/Pariss"}, "tz"),
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused_by_field(
    conn: Connection, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        await alert_rules.put(conn, ACTOR, "slow", AlertRuleSpec(**spec))
    assert refused.value.field == field
    assert await noted(conn) == []


async def test_what_a_rule_names_must_be_there(conn: Connection) -> None:
    with pytest.raises(ChannelNotFound):
        await alert_rules.put(conn, ACTOR, "slow", AlertRuleSpec(kind="failed", channels=["ops"]))
    with pytest.raises(CalendarNotFound):
        await alert_rules.put(conn, ACTOR, "slow", AlertRuleSpec(kind="failed", calendar="free"))
    await calendars.put(conn, ACTOR, "free", ["sun"])
    await alert_rules.put(conn, ACTOR, "slow", AlertRuleSpec(kind="failed", calendar="free"))
    with pytest.raises(Conflict, match="quiet"):
        await calendars.delete(conn, ACTOR, "free")


async def test_a_rule_is_tried_without_telling(conn: Connection) -> None:
    await end_tasks(conn, "report", 2)
    await end_tasks(conn, "mail")
    found = await alert_rules.evaluate(conn, ACTOR, "failed", since="10m")
    assert {one.subject: one.count for one in found.findings} == {"job:report": 2, "job:mail": 1}
    narrow = await alert_rules.evaluate(conn, NARROW, "failed")
    assert [one.subject for one in narrow.findings] == ["job:mail"]
    assert (await alerts.listing(conn, ACTOR)).items == []


# ── channels ────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_webhook_gets_a_secret_that_is_told_once(conn: Connection) -> None:
    made = await channels.put(conn, ACTOR, "ops", WEBHOOK)
    assert made.secret is not None
    assert made.channel.is_signed
    assert same_in_json(made, ChannelChange)
    again = await channels.put(conn, ACTOR, "ops", WEBHOOK)
    assert (again.secret, again.changed) == (None, False)
    assert await conn.fetchval("select secret from mainspring.channel") == made.secret


async def test_what_is_secret_about_a_channel_does_not_come_out(conn: Connection) -> None:
    made = await channels.put(
        conn, ACTOR, "ops", ChannelSpec(kind="webhook", url=SECRETIVE, secret="0123456789abcdef-1")
    )
    await channels.edit(conn, ACTOR, "ops", {"secret": "0123456789abcdef-2"})
    await channels.edit(conn, ACTOR, "ops", {"url": SECRETIVE.replace("hunter2", "hunter3")})
    await channels.put(conn, ACTOR, "team", ChannelSpec(kind="slack", url="https://hooks.slack.com/services/T/B/x"))
    await channels.delete(conn, ACTOR, "ops")
    shown = (await channels.listing(conn, ACTOR)).items
    assert [one.url for one in shown] == ["https://hooks.slack.com/***"]
    assert made.channel.url == "https://***@hooks.example/***/x?token=***&to=***"
    log = await noted(conn)
    assert [action for action, _ in log] == [
        "channel.create", "channel.change", "channel.change", "channel.create", "channel.delete",
    ]  # fmt: skip
    told = repr(log) + repr(shown) + repr(made)
    for secret in ("0123456789abcdef", "hunter", "s3cret", "T0AB12345678901234", "services/T/B"):
        assert secret not in told, secret


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"url": "ftp://hooks.example/"}, "url"),
        ({"url": "https://***@hooks.example/"}, "url"),
        ({"url": "https://hooks.example/a b"}, "url"),
        ({"url": "http://["}, "url"),
        ({"url": "http://user@"}, "url"),
        ({"url": ""}, "url"),
        ({"secret": "short"}, "secret"),
        ({"kind": "slack", "secret": "0123456789abcdef"}, "secret"),
        ({"kind": "mail"}, "kind"),
    ],
)
async def test_a_channel_that_makes_no_sense_is_refused_by_field(
    conn: Connection, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        await channels.put(conn, ACTOR, "ops", ChannelSpec(**{"kind": "webhook", "url": "https://x.example/", **spec}))
    assert refused.value.field == field


async def test_a_channel_is_changed_under_its_version(conn: Connection) -> None:
    await channels.put(conn, ACTOR, "ops", WEBHOOK)
    with pytest.raises(StaleVersion):
        await channels.edit(conn, ACTOR, "ops", {"enabled": False}, version=3)
    off = await channels.edit(conn, ACTOR, "ops", {"enabled": False}, version=1)
    assert (off.channel.enabled, off.channel.is_signed, off.channel.version) == (False, True, 2)
    unsigned = await channels.edit(conn, ACTOR, "ops", {"secret": None})
    assert not unsigned.channel.is_signed
    with pytest.raises(NameTaken):
        await channels.put(conn, ACTOR, "ops", WEBHOOK, replace=False)
    with pytest.raises(ChannelNotFound):
        await channels.edit(conn, ACTOR, "nothing", {"enabled": False})


async def test_what_waits_for_a_channel_ends_with_it(conn: Connection) -> None:
    await channels.put(conn, ACTOR, "ops", WEBHOOK)
    sent = await channels.send_test(conn, ACTOR, "ops")
    assert (await alerts.show_delivery(conn, ACTOR, sent.delivery)).state == "pending"
    await channels.delete(conn, ACTOR, "ops")
    ended = await alerts.show_delivery(conn, ACTOR, sent.delivery)
    assert (ended.state, ended.last_error) == ("given_up", "its channel was deleted")
    assert [one.id for one in (await alerts.list_deliveries(conn, ACTOR, channel="ops")).items] == [sent.delivery]


async def test_messages_are_listed_page_by_page(conn: Connection) -> None:
    await channels.put(conn, ACTOR, "ops", WEBHOOK)
    sent = [(await channels.send_test(conn, ACTOR, "ops")).delivery for _ in range(3)]
    pages = [await alerts.list_deliveries(conn, ACTOR, limit=1)]
    while pages[-1].next is not None:
        pages.append(await alerts.list_deliveries(conn, ACTOR, limit=1, cursor=pages[-1].next))
    assert [one.id for page in pages for one in page.items] == sent[::-1]
    assert len((await alerts.list_deliveries(conn, ACTOR, channel=["o*", "ops"])).items) == 3
    assert (await alerts.list_deliveries(conn, ACTOR, channel=["x*"])).items == []
    with pytest.raises(ChannelNotFound):
        await alerts.list_deliveries(conn, ACTOR, channel=["ops", "other"])


async def test_alerts_of_a_rule_that_there_never_was_are_an_error(conn: Connection) -> None:
    await alert_rules.put(conn, ACTOR, "slow", AlertRuleSpec(kind="failed"))
    for rule in (["slow"], ["typo*"]):
        assert (await alerts.listing(conn, ACTOR, rule=rule)).items == []
    with pytest.raises(AlertRuleNotFound):
        await alerts.listing(conn, ACTOR, rule=["slow", "typo"])
    await conn.execute("""
        insert into mainspring.alert (rule, kind, severity, subject, job, state, is_event, message, details, count,
                                      since, pending_at, seen_at, changed_at)
        select 'gone', 'failed', 'warning', 'job:shop.mail', 'shop.mail', 'resolved', false, 'x', '{}', 0,
               at, at, at, at from mainspring.now() at
    """)
    assert len((await alerts.listing(conn, ACTOR, rule=["gone"])).items) == 1
    with pytest.raises(AlertRuleNotFound):
        await alerts.listing(conn, Actor("x", jobs=("bank.*",)), rule=["gone"])


# ── mutes ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_mute_has_an_end_and_a_note(conn: Connection) -> None:
    made = await mutes.create(conn, ACTOR, "new hosts", rules=["no-agents"], duration="2h")
    assert made.created_by == "test"
    assert [one.id for one in await mutes.listing(conn, ACTOR)] == [made.id]
    await mutes.delete(conn, ACTOR, made.id)
    assert await mutes.listing(conn, ACTOR) == []
    for id in (made.id, 0, -(2**40), 2**31, 2**53 - 1):
        with pytest.raises(NotFound):
            await mutes.delete(conn, ACTOR, id)
    assert [action for action, _ in await noted(conn)] == ["mute.create", "mute.delete"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"rules": ["x"]}, "until"),
        ({"duration": "1h"}, "rules"),
        ({"rules": ["x"], "duration": "2000d"}, "until"),
        ({"rules": ["x"], "duration": "0s"}, "duration"),
        ({"rules": ["x"], "duration": "1h", "note": "  "}, "note"),
        ({"subjects": [BAD_NAME], "duration": "1h"}, "subjects"),
    ],
)
async def test_a_mute_that_makes_no_sense_is_refused_by_field(
    conn: Connection, given: dict[str, Any], field: str
) -> None:
    note = given.pop("note", "why") if "note" in given else "why"
    with pytest.raises(ValidationError) as refused:
        await mutes.create(conn, ACTOR, note, **given)
    assert refused.value.field == field


# ── whoever may see only some jobs ──────────────────────────────────────────────────────────────

_ALERT = """
    insert into mainspring.alert (rule, kind, severity, subject, job, state, is_event, message, details, since,
                                  pending_at, seen_at, count, changed_at)
    select 'failed', 'failed', 'warning', coalesce('job:' || $1, 'cluster'), $1, 'firing', true, '…', '{}', at, at, at,
           1, at
      from (select mainspring.now() as at) now
    returning id
"""


async def test_alerts_about_other_jobs_are_not_seen(conn: Connection) -> None:
    ids = {job: await conn.fetchval(_ALERT, job) for job in ("report", "mail", "mailing", None)}
    seen = (await alerts.listing(conn, NARROW)).items
    assert [one.id for one in seen] == [ids[None], ids["mailing"], ids["mail"]]
    with pytest.raises(NotFound):
        await alerts.show(conn, NARROW, ids["report"])
    pages = [await alerts.listing(conn, NARROW, limit=1)]
    while pages[-1].next is not None:
        pages.append(await alerts.listing(conn, NARROW, limit=1, cursor=pages[-1].next))
    assert [one.id for page in pages for one in page.items] == [one.id for one in seen]
    found = await alerts.listing(conn, ACTOR, subject=["job:mail*"], state=["firing"], rule=["fai*"])
    assert [one.job for one in found.items] == ["mailing", "mail"]
    assert (await alerts.listing(conn, ACTOR, state=["resolved"])).items == []


async def test_an_actor_of_some_jobs_changes_nothing_of_all(conn: Connection) -> None:
    for call in (
        lambda: alert_rules.put(conn, NARROW, "x", AlertRuleSpec(kind="failed")),
        lambda: alert_rules.edit(conn, NARROW, "failed", {"enabled": False}),
        lambda: alert_rules.delete(conn, NARROW, "failed"),
        lambda: channels.put(conn, NARROW, "x", WEBHOOK),
        lambda: channels.edit(conn, NARROW, "x", {}),
        lambda: channels.delete(conn, NARROW, "x"),
        lambda: channels.send_test(conn, NARROW, "x"),
        lambda: mutes.create(conn, NARROW, "x", rules=["x"], duration="1h"),
        lambda: mutes.delete(conn, NARROW, 1),
    ):
        with pytest.raises(MainspringError) as refused:
            await call()
        assert isinstance(refused.value, Forbidden)


# ── health ──────────────────────────────────────────────────────────────────────────────────────


async def test_health_tells_of_messages_that_do_not_arrive(conn: Connection) -> None:
    async def check() -> health.Check:
        return next(one for one in (await health.health(conn, ACTOR)).checks if one.code == "alerts_undelivered")

    await channels.put(conn, ACTOR, "ops", WEBHOOK)
    await channels.send_test(conn, ACTOR, "ops")
    assert (await check()).status == "healthy"
    await conn.execute(
        "update mainspring.alert_delivery set created_at = created_at - $1::interval, last_error = 'it answered 500'",
        timedelta(minutes=5),
    )
    found = await check()
    assert found.status == "degraded"
    assert "it answered 500" in found.message
    assert "ops" in found.message


async def test_kinds_say_what_can_be_looked_for() -> None:
    found = {kind.kind: kind for kind in await alert_rules.kinds(None, ACTOR)}
    assert set(found) == set(KINDS)
    assert (found["late"].about, found["late"].is_event) == ("jobs", False)
    late = [(one.name, one.is_duration, one.default) for one in found["late"].parameters]
    assert late == [("after", True, 60.0), ("count", False, 1), ("window", True, 300.0)]
    assert [one.default for one in found["wanted_agents"].parameters][:2] == [{}, None]
