"""Scope × operation: a token that is narrowed to `report*` sees and touches nothing of another job, by no operation."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from mainspring.api.rows import ROWS
from mainspring.api.table import Row
from mainspring.model.access.actors import Role
from mainspring.model.alerts.rules import AlertRuleSpec
from mainspring.model.flows.batches import Callback
from mainspring.model.flows.rules import NewRule
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.define_job import command, define
from mainspring.operations.alerting import alert_rules, mutes
from mainspring.operations.definitions import calendars, daemons, holds, jobs, rules, schedules, secrets
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import batches, tasks
from mainspring.operations.work.batches import NewBatch
from mainspring.store.access import tokens
from mainspring.store.alerts import deliveries
from mainspring.store.postgres.database import Connection
from tests.api.conftest import ACTOR, MakeCaller
from tests.api.worlds import digest_query
from tests.secret_keys import Ring

MARK = "payroll"  # in every name, key and argument of the other job
DELIVERY = UUID(int=17)  # of a message about it
DAY = timedelta(days=1)
GONE = ", or is not kept any longer; `mainspring task list` has those that are"  # of a task to run after


class Other(NamedTuple):
    """What the narrow token must not find."""

    task: int
    cancelled: int
    running: int


async def make_other(conn: Connection) -> Other:
    await tokens.create(conn, "everything", role=Role.ADMIN)
    await conn.execute("alter sequence mainspring.task_id restart with 5000001")  # no number of anything else
    await jobs.put(conn, ACTOR, "report", define(command(["echo"]), {}))
    hidden = define(command(["echo", MARK]), {"description": MARK})
    await jobs.put(conn, ACTOR, "payroll", hidden)
    spec = ScheduleSpec(job="payroll", every="1s", enabled=True, calendars=["payroll-days"], description=MARK)
    await calendars.put(conn, ACTOR, "payroll-days", ["12-25"])
    await calendars.put(conn, ACTOR, "payroll-unused", ["12-26"])
    await schedules.put(conn, ACTOR, "payroll", spec)
    await daemons.put(conn, ACTOR, "payroll-daemon", hidden)
    made = [(await tasks.submit(conn, ACTOR, NewTask(job="payroll", args={"of": MARK}, key=f"{MARK}-{n}"))).id
            for n in range(3)]  # fmt: skip
    await tasks.cancel(conn, ACTOR, made[1])
    await conn.execute(
        """
        insert into mainspring.agent (session, name, slots, lease_until)
        values (7, 'eve', 5, mainspring.now() + interval '1 hour')
        """
    )
    await conn.execute(
        "update mainspring.task set state = 3, token = 5, session = 7, attempt = 1, started_at = run_at where id = $1",
        made[2],
    )
    payroll = Callback("payroll", {"of": MARK})
    await batches.create(conn, ACTOR, NewBatch(name=MARK, on_success=payroll, on_failure=payroll))
    await conn.execute("insert into mainspring.claim (session, batch, tasks) values (7, 1, array[$1::bigint])", made[2])
    await secrets.put(conn, ACTOR, "payroll-key", "hunter2", keys=Ring())
    await rules.put(conn, ACTOR, "payroll-first", NewRule(jobs="payroll*", priority=9))
    await alert_rules.put(conn, ACTOR, "payroll-fails", AlertRuleSpec(kind="failed", names=["payroll"]))
    await alert_rules.put(conn, ACTOR, "payroll-misses", AlertRuleSpec(kind="missed", names=["payroll"]))
    await mutes.create(conn, ACTOR, MARK, subjects=["job:payroll"], duration=3600.0)
    await mutes.create(conn, ACTOR, MARK, rules=["payroll-fails"], duration=3600.0)
    await holds.hold_job(conn, ACTOR, "payroll", note=MARK)
    message = msgspec.json.encode({"title": f"failed: job:{MARK} firing"}).decode()
    await deliveries.add(conn, "failed", [deliveries.New(DELIVERY, "ops", message)], datetime.now(UTC))
    return Other(*made)


PATHS = {
    "tasks": None,
    "jobs": "payroll",
    "schedules": "payroll",
    "calendars": "payroll-days",
    "daemons": "payroll-daemon",
    "batches": "1",
    "priority-rules": "payroll-first",
    "secrets": "payroll-key",
    "alert-rules": "payroll-fails",
    "deliveries": str(DELIVERY),
}
OF_ALL = {
    "mutes": "1",
    "channels": "ops",
    "alerts": "1",
    "agents": "eve",
    "servers": "test",
    "tokens": "1",
    "sessions": "1",
}

MANIFEST: dict[str, Any] = {
    "mainspring": 1,
    "set": "mine",
    "jobs": {"payroll": {"command": ["id"]}},
    "schedules": {"payroll": {"job": "report", "every": "1h"}, "payroll-daemon": {"job": "payroll", "every": "1h"}},
    "calendars": {"payroll-days": ["12-25"], "payroll-unused": ["12-24"]},
}
BODIES: dict[str, Any] = {
    "POST /tasks": {"job": "payroll"},
    "POST /batches": {"name": "mine", "on_success": {"job": "payroll"}},
    "POST /actions/tasks": {"action": "cancel", "filter": {"state": ["pending", "running"]}},
    "POST /actions/schedules": {"action": "disable", "filter": {}},
    "PUT /jobs/{name}": {"run": {"type": "command", "argv": ["id"]}},
    "PATCH /jobs/{name}": {"description": "mine"},
    "PUT /schedules/{name}": {"job": "report", "every": "1h"},
    "PATCH /schedules/{name}": {"description": "mine"},
    "POST /schedules/{name}/backfill": {
        "from": (datetime.now(UTC) - DAY / 24).isoformat(), "to": datetime.now(UTC).isoformat()
    },
    "PUT /calendars/{name}": {"days": ["12-26"]},
    "POST /manifest/plan": {"manifest": MANIFEST, "adopt": True},
    "POST /manifest/apply": {"manifest": MANIFEST, "hash": "", "adopt": True},
    "PUT /daemons/{name}": {"definition": {"run": {"type": "command", "argv": ["id"]}}},
    "POST /daemons/{name}/scale": {"replicas": 3},
    "PATCH /tasks/{id}": {"priority": 1},
    "PATCH /settings": {"placement": "least_tasks"},
    "POST /preview": {"job": "payroll", "every": "1h"},
    "POST /forecast/spread": {"at": datetime.now(UTC).isoformat(), "by": "jitter"},
    "POST /priority-rules/test": {"job": "report"},
    "PUT /priority-rules/{name}": {"jobs": "payroll", "priority": 1},
    "PUT /alert-rules/{name}": {"kind": "failed"},
    "PATCH /alert-rules/{name}": {"severity": "critical"},
    "PUT /secrets/{name}": {"value": "hunter2"},
    "PUT /channels/{name}": {"type": "webhook", "url": "https://127.0.0.1/"},
    "PATCH /channels/{name}": {"enabled": False},
    "POST /mutes": {"note": "quiet", "subjects": ["job:report"], "duration": 60},
    "POST /tasks/flow": {"steps": [{"job": "payroll"}]},
    "POST /schedules/{name}/skip": {},
    "POST /tokens": {"name": "more", "role": "admin"},
    "POST /logins": {"role": "admin", "jobs": []},
}  # fmt: skip
_HOUR = f"from={(datetime.now(UTC) - DAY).isoformat()}&to={datetime.now(UTC).isoformat()}".replace("+", "%2B")
QUERIES = {
    "GET /timeline": (f"{_HOUR}&schedule=payroll",),
    "GET /strips": ("schedule=payroll",),
    "GET /schedule-count": ("", "name=pay*", "job=pay*", "job=payroll"),
    "GET /fires/next": ("n=100",),
    "GET /check": ("", "schedule=payroll", "limit=1"),
    "GET /tasks": ("", "job=*", "fields=all", "job=payroll", "key=payroll-0", "schedule=payroll", "args.of=payroll"),
    "GET /tasks/count": ("", "job=*", "key=payroll-0"),
    "GET /figures": ("", "job=payroll"),
    "GET /figures/jobs": ("job=payroll", "job=report&job=payroll"),
    "GET /forecast": ("by=job", "by=label"),
    "GET /forecast/cell": (f"at={datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}&cell=24h",),
    "GET /fired": (_HOUR,),
    "GET /calendars": ("", "limit=1"),
    "GET /manifest": ("", "set=payroll-set"),
    "GET /alert-rules": ("", "limit=1"),
    "GET /alerts": ("", "limit=1"),
    "GET /deliveries": ("", "limit=1"),
    "GET /jobs": ("", "name=pay*", "limit=1"),
    "GET /schedules": ("", "order=next", "name=pay*", "job=pay*", "job=payroll", "limit=1"),
    "GET /segments/moves": ("limit=10",),
    "GET /armed": ("", "each=1"),
}
# Of all jobs and of none: who is narrowed to some reads them, and they name no job.
STREAMED = {"GET /events", "GET /tasks/{id}/events", "GET /tasks/{id}/output", "POST /tasks/bulk"}


# Operations for which somebody has asked what they tell of jobs out of reach, and put that into `make_other`, PATHS,
# BODIES and QUERIES where the test below must reach for it.
CONSIDERED = """
    POST /actions/secrets/rotate;
    POST /actions/schedules; POST /actions/tasks; GET /agents; GET /agents/{name}; GET /agents/{name}/armed; POST
    /agents/{name}/drain; GET /agents/{name}/sessions; POST /agents/{name}/undrain; GET /alert-kinds; GET
    /alert-rules; DELETE /alert-rules/{name}; GET /alert-rules/{name}; PATCH /alert-rules/{name}; PUT
    /alert-rules/{name}; POST /alert-rules/{name}/test; GET /alerts; GET /alerts/{id}; GET /armed; GET /audit; GET
    /autoscale; GET /batches; POST /batches; GET /batches/{id}; POST /batches/{id}/cancel; POST /batches/{id}/close;
    GET /batches/{id}/flow; POST /batches/{id}/retry; GET /calendars; DELETE /calendars/{name}; GET
    /calendars/{name}; PUT /calendars/{name}; GET /channels; DELETE /channels/{name}; GET /channels/{name}; PATCH
    /channels/{name}; PUT /channels/{name}; POST /channels/{name}/test; GET /check; GET /daemons; DELETE
    /daemons/{name}; GET /daemons/{name}; PUT /daemons/{name}; POST /daemons/{name}/restart; POST
    /daemons/{name}/scale; POST /daemons/{name}/start; POST /daemons/{name}/stop; GET /deliveries; GET
    /deliveries/{id}; GET /events; GET /failing; GET /figures; GET /figures/jobs; GET /fired; GET /fires/missed; GET
    /fires/next; GET /forecast; GET /forecast/cell; POST /forecast/spread; GET /health; GET /hold; POST /hold; GET
    /jobs; DELETE /jobs/{name}; GET /jobs/{name}; PATCH /jobs/{name}; PUT /jobs/{name}; POST /jobs/{name}/hold; POST
    /jobs/{name}/release; POST /logins; GET /manifest; POST
    /manifest/apply; POST /manifest/plan; GET /metrics; GET /mutes; POST /mutes; DELETE /mutes/{id}; GET /postgresql;
    POST /preview; GET /priority-rules; POST /priority-rules/test; DELETE /priority-rules/{name}; GET
    /priority-rules/{name}; PUT /priority-rules/{name}; GET /punctuality; GET /queues; POST /release; GET
    /schedule-count; GET /schedules; DELETE /schedules/{name}; GET /schedules/{name}; PATCH /schedules/{name}; PUT
    /schedules/{name}; POST /schedules/{name}/backfill; POST /schedules/{name}/disable; POST
    /schedules/{name}/enable; GET /schedules/{name}/explain; GET /schedules/{name}/fires; GET
    /schedules/{name}/next; POST /schedules/{name}/run; POST /schedules/{name}/skip; GET /schedules/{name}/slo; POST
    /schedules/{name}/unskip; GET /secrets; DELETE /secrets/{name}; GET /secrets/{name}; PUT /secrets/{name}; GET
    /segments; GET /segments/moves; GET /servers; GET /servers/{name}; DELETE
    /session; GET /session; GET /sessions; DELETE /sessions/{id}; GET /settings; PATCH /settings; GET /stats; GET
    /strips; GET /tasks; POST /tasks; POST /tasks/bulk; GET /tasks/count; POST /tasks/flow; DELETE /tasks/{id}; GET
    /tasks/{id}; PATCH /tasks/{id}; GET /tasks/{id}/attempts; POST /tasks/{id}/cancel; GET /tasks/{id}/children; GET
    /tasks/{id}/events; GET /tasks/{id}/flow; GET /tasks/{id}/output; POST /tasks/{id}/pause; POST
    /tasks/{id}/restart; POST /tasks/{id}/resume; POST /tasks/{id}/retry; POST /tasks/{id}/skip; GET
    /tasks/{id}/status; GET /timeline; GET /tokens; POST /tokens; DELETE /tokens/{id}
"""


def test_every_operation_was_considered() -> None:
    considered = {one.strip() for one in " ".join(CONSIDERED.split()).split(";")}
    assert considered == {f"{row.method} {row.path}" for row in ROWS if row.roles}


def requests_of(row: Row, other: Other) -> list[tuple[str, str, Any]]:
    """Method, URL and body of requests that reach for the other job."""
    label = f"{row.method} {row.path}"
    kind = row.path.split("/")[1]
    if "{id}" in row.path and kind == "tasks":
        paths = [row.full_path.replace("{id}", str(id)) for id in other]
    else:
        paths = [re.sub(r"{\w+}", str((PATHS | OF_ALL).get(kind)), row.full_path)]
    queries = QUERIES.get(label, ("",))
    return [
        (row.method, f"{path}?{query}" if query else path, BODIES.get(label)) for path in paths for query in queries
    ]


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN])
async def test_no_operation_shows_or_touches_another_job(as_role: MakeCaller, conn: Connection, role: Role) -> None:
    other = await make_other(conn)
    query = await digest_query(conn)
    caller = await as_role(role, jobs=("report*",), rate=1000.0)
    wrong = []
    for row in ROWS:
        if role not in row.roles or f"{row.method} {row.path}" in STREAMED:
            continue
        for method, url, body in requests_of(row, other):
            before = await conn.fetchval(query)
            answer = await caller.request(method, url, json=body)
            assert answer.status_code < 500 or row.path == "/health", (url, answer.text)
            changed = await conn.fetchval(query) != before
            if f"{row.method} {row.path}" in ("POST /tokens", "POST /logins") and answer.status_code != 403:
                wrong.append((method, url, "more rights than its maker has"))
            if changed:
                wrong.append((method, url, "changed something"))
            is_named = MARK in f"{url} {body}" and not answer.is_success  # a refusal names what was asked for
            text = answer.text + told_by_cursor(as_json(answer))
            if (MARK in text and not is_named) or shows_a_task(as_json(answer), other):
                wrong.append((method, url, answer.text[:300]))
    assert not wrong, "\n".join(map(str, wrong))


def shows_a_task(told: Any, other: Other) -> bool:
    """Whether an `id` of the other job's tasks is anywhere in an answer."""
    if isinstance(told, dict):
        return told.get("id") in other or any(shows_a_task(one, other) for one in told.values())
    return isinstance(told, list) and any(shows_a_task(one, other) for one in told)


def told_by_cursor(told: Any) -> str:
    """What is in a cursor: it is not encrypted."""
    cursor = told.get("next") if isinstance(told, dict) else None
    return "" if cursor is None else urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("latin-1")


def as_json(answer: Any) -> Any:
    return answer.json() if answer.headers.get("content-type") == "application/json" else None


async def test_no_stream_and_no_dependency_reaches_another_job(as_role: MakeCaller, conn: Connection) -> None:
    other = await make_other(conn)
    caller = await as_role(Role.SUBMITTER, jobs=("report*",))
    for id in other:
        for path in (f"/tasks/{id}/output", f"/tasks/{id}/output?follow=true", f"/tasks/{id}/events"):
            for accept in ("application/json", "text/plain", "text/event-stream"):
                answer = await caller.get(f"/api/v1{path}", headers={"Accept": accept})
                assert answer.json()["code"] == "task_not_found", path
        waiting = await caller.post("/api/v1/tasks", json={"job": "report", "after": [id]})
        assert_unknown(waiting, id)
        lines = f'{{"job": "report", "after": [{id}]}}\n{{"job": "payroll"}}\n'
        headers = {"Content-Type": "application/x-ndjson"}
        told = await caller.post("/api/v1/tasks/bulk", content=lines.encode(), headers=headers)
        refused = [msgspec.json.decode(line) for line in told.text.splitlines()]
        assert [one.get("code") for one in refused] == ["validation", "job_not_found", None]
        assert refused[-1]["accepted"] == 0
    missing = await caller.post("/api/v1/tasks", json={"job": "report", "after": [4_999_999]})
    assert_unknown(missing, 4_999_999)


def assert_unknown(answer: Any, id: int) -> None:
    """In the same words, whether the task is another's or nobody's."""
    assert answer.json()["message"] == f"after: task {id} does not exist{GONE}"


async def test_a_narrow_token_has_its_own_batches_only(as_role: MakeCaller, conn: Connection) -> None:
    await make_other(conn)
    caller = await as_role(Role.OPERATOR, jobs=("report*",))
    mine = (await caller.post("/api/v1/batches", json={"name": "mine", "on_success": {"job": "report"}})).json()["id"]
    for path in ("", "/close", "/cancel", "/retry"):
        asked = caller.post if path else caller.get
        assert (await asked(f"/api/v1/batches/1{path}")).json()["code"] == "batch_not_found"
    assert [one["id"] for one in (await caller.get("/api/v1/batches")).json()["items"]] == [mine]
    for body in ({"name": "inner", "parent": 1}, {"job": "report", "batch": 1}):
        answer = await caller.post(f"/api/v1/{'batches' if 'name' in body else 'tasks'}", json=body)
        assert answer.json()["code"] == "batch_not_found"
    lines = f'{{"job": "report", "batch": 1}}\n{{"job": "report", "batch": {mine}}}\n'
    told = await caller.post(
        "/api/v1/tasks/bulk", content=lines.encode(), headers={"Content-Type": "application/x-ndjson"}
    )
    answers = [msgspec.json.decode(line) for line in told.text.splitlines()]
    assert [one.get("code") for one in answers] == [None, "batch_not_found", None]
    assert (await caller.get(f"/api/v1/batches/{mine}")).json()["total"] == 1
    assert len((await caller.get(f"/api/v1/tasks?batch={mine}")).json()["items"]) == 1


async def test_metrics_are_those_of_all_jobs(as_role: MakeCaller) -> None:
    narrow, wide = await as_role(Role.VIEWER, jobs=("report*",)), await as_role(Role.VIEWER)
    assert (await narrow.get("/metrics")).json()["code"] == "forbidden"
    assert (await wide.get("/metrics")).status_code == 200


async def test_health_tells_nothing_of_another_jobs_queue(as_role: MakeCaller, conn: Connection) -> None:
    await make_other(conn)
    await conn.execute("update mainspring.task set run_at = mainspring.now() - interval '1 hour' where state = 1")
    narrow, wide = await as_role(Role.VIEWER, jobs=("report*",)), await as_role(Role.VIEWER)
    degraded = {"backing_up", "unrunnable"}
    told = {one["code"]: one["status"] for one in (await narrow.get("/api/v1/health")).json()["checks"]}
    assert [told[code] for code in sorted(degraded)] == ["healthy", "healthy"]
    seen = {one["code"] for one in (await wide.get("/api/v1/health")).json()["checks"] if one["status"] != "healthy"}
    assert seen & degraded, "the others see that it waits"
