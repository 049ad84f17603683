"""Role × operation: who may do what, written down from the specification and not from the table of operations."""

from __future__ import annotations

import re

import pytest

from mainspring.api.handlers.site import PATHS
from mainspring.api.rows import ROWS
from mainspring.api.table import Row
from mainspring.model.access.actors import Role
from mainspring.store.postgres.database import Connection
from tests.api.conftest import Caller, MakeCaller
from tests.api.test_app import assert_problem
from tests.api.worlds import make_world

ADMIN, METRICS = {Role.ADMIN}, {Role.METRICS}
ACTS = ADMIN | {Role.OPERATOR}
READS, SUBMITS = ACTS | {Role.VIEWER}, ACTS | {Role.SUBMITTER}
READS_TASKS = READS | SUBMITS
NOBODY_NEEDED = set(Role)

# A row that is not here is one that nobody has thought about.
ALLOWED: dict[str, set[Role]] = {
    "POST /tasks": SUBMITS,
    "POST /tasks/bulk": SUBMITS,
    "GET /tasks": READS_TASKS,
    "GET /tasks/count": READS_TASKS,
    "GET /tasks/{id}": READS_TASKS,
    "POST /tasks/flow": SUBMITS,
    "GET /tasks/{id}/status": READS_TASKS,
    "GET /tasks/{id}/attempts": READS_TASKS,
    "GET /tasks/{id}/children": READS_TASKS,
    "GET /tasks/{id}/flow": READS_TASKS,
    "GET /tasks/{id}/output": READS_TASKS,
    "GET /tasks/{id}/events": READS_TASKS,
    "DELETE /tasks/{id}": SUBMITS,
    "POST /tasks/{id}/cancel": SUBMITS,
    "POST /tasks/{id}/skip": SUBMITS,
    "POST /tasks/{id}/retry": ACTS,
    "POST /tasks/{id}/pause": ACTS,
    "POST /tasks/{id}/resume": ACTS,
    "POST /tasks/{id}/restart": ACTS,
    "PATCH /tasks/{id}": ACTS,
    "POST /actions/tasks": ACTS,
    "POST /batches": SUBMITS,
    "GET /batches": READS_TASKS,
    "GET /batches/{id}": READS_TASKS,
    "GET /batches/{id}/flow": READS_TASKS,
    "POST /batches/{id}/close": SUBMITS,
    "POST /batches/{id}/cancel": SUBMITS,
    "POST /batches/{id}/retry": ACTS,
    "GET /jobs": READS,
    "GET /jobs/{name}": READS,
    "PUT /jobs/{name}": ADMIN,
    "PATCH /jobs/{name}": ADMIN,
    "DELETE /jobs/{name}": ADMIN,
    "POST /jobs/{name}/hold": ACTS,
    "POST /jobs/{name}/release": ACTS,
    "GET /schedules": READS,
    "GET /schedules/{name}": READS,
    "PUT /schedules/{name}": ADMIN,
    "PATCH /schedules/{name}": ADMIN,
    "DELETE /schedules/{name}": ADMIN,
    "POST /schedules/{name}/enable": ACTS,
    "POST /schedules/{name}/disable": ACTS,
    "POST /schedules/{name}/run": ACTS,
    "POST /schedules/{name}/skip": ACTS,
    "POST /schedules/{name}/unskip": ACTS,
    "POST /schedules/{name}/backfill": ACTS,
    "POST /actions/schedules": ACTS,
    "GET /schedules/{name}/fires": READS,
    "GET /schedules/{name}/explain": READS,
    "GET /schedules/{name}/slo": READS,
    "GET /schedules/{name}/next": READS,
    "POST /preview": READS,
    "GET /check": READS,
    "GET /forecast": READS,
    "GET /forecast/cell": READS,
    "POST /forecast/spread": READS,
    "GET /fired": READS,
    "GET /timeline": READS,
    "GET /schedule-count": READS,
    "GET /fires/next": READS,
    "GET /fires/missed": READS,
    "GET /strips": READS,
    "GET /failing": READS,
    "GET /punctuality": READS,
    "GET /priority-rules": READS,
    "GET /priority-rules/{name}": READS,
    "PUT /priority-rules/{name}": ADMIN,
    "DELETE /priority-rules/{name}": ADMIN,
    "POST /priority-rules/test": READS,
    "GET /secrets": READS,
    "GET /secrets/{name}": READS,
    "PUT /secrets/{name}": ADMIN,
    "DELETE /secrets/{name}": ADMIN,
    "POST /actions/secrets/rotate": ADMIN,
    "GET /calendars": READS,
    "GET /calendars/{name}": READS,
    "PUT /calendars/{name}": ADMIN,
    "DELETE /calendars/{name}": ADMIN,
    "POST /manifest/plan": READS,
    "POST /manifest/apply": ADMIN,
    "GET /manifest": READS,
    "GET /daemons": READS,
    "GET /daemons/{name}": READS,
    "PUT /daemons/{name}": ADMIN,
    "DELETE /daemons/{name}": ADMIN,
    "POST /daemons/{name}/start": ACTS,
    "POST /daemons/{name}/stop": ACTS,
    "POST /daemons/{name}/restart": ACTS,
    "POST /daemons/{name}/scale": ACTS,
    "GET /agents": READS,
    "GET /agents/{name}": READS,
    "GET /agents/{name}/armed": READS,
    "GET /agents/{name}/sessions": READS,
    "GET /armed": READS,
    "POST /agents/{name}/drain": ACTS,
    "POST /agents/{name}/undrain": ACTS,
    "GET /servers": READS,
    "GET /servers/{name}": READS,
    "GET /segments": READS,
    "GET /segments/moves": READS,
    "GET /postgresql": READS,
    "GET /stats": READS,
    "GET /figures": READS,
    "GET /figures/jobs": READS,
    "GET /queues": READS,
    "GET /autoscale": READS,
    "GET /hold": READS,
    "POST /hold": ACTS,
    "POST /release": ACTS,
    "GET /settings": READS,
    "PATCH /settings": ADMIN,
    "GET /alerts": READS,
    "GET /alerts/{id}": READS,
    "GET /deliveries": READS,
    "GET /deliveries/{id}": READS,
    "GET /alert-rules": READS,
    "GET /alert-rules/{name}": READS,
    "PUT /alert-rules/{name}": ADMIN,
    "PATCH /alert-rules/{name}": ADMIN,
    "DELETE /alert-rules/{name}": ADMIN,
    "POST /alert-rules/{name}/test": READS,
    "GET /alert-kinds": READS,
    "GET /channels": READS,
    "GET /channels/{name}": READS,
    "PUT /channels/{name}": ADMIN,
    "PATCH /channels/{name}": ADMIN,
    "DELETE /channels/{name}": ADMIN,
    "POST /channels/{name}/test": ACTS,
    "GET /mutes": READS,
    "POST /mutes": ACTS,
    "DELETE /mutes/{id}": ACTS,
    "GET /events": READS_TASKS,
    "GET /health": READS | METRICS,
    "GET /metrics": READS | METRICS,
    "GET /session": READS_TASKS | METRICS,
    "DELETE /session": READS_TASKS | METRICS,
    "POST /session": NOBODY_NEEDED,
    "GET /sessions": ADMIN,
    "DELETE /sessions/{id}": ADMIN,
    "GET /tokens": ADMIN,
    "POST /tokens": ADMIN,
    "DELETE /tokens/{id}": ADMIN,
    "POST /logins": ADMIN,
    "GET /audit": ADMIN,
    "GET /healthz": NOBODY_NEEDED,
    "GET /readyz": NOBODY_NEEDED,
    "GET /openapi.json": NOBODY_NEEDED,
    **{f"page {path}": NOBODY_NEEDED for path in (*PATHS, "/login", "/static/{name}")},
}


def label(row: Row) -> str:
    return f"{'page' if row.name.startswith('site.') else row.method} {row.path}"


def test_every_operation_is_written_down_and_no_other() -> None:
    assert {label(row) for row in ROWS} == set(ALLOWED)


async def ask(caller: Caller, row: Row) -> int:
    """The status of a request that has its path and nothing else. A stream is asked for by HEAD: it has no end."""
    path = re.sub(r"{\w+}", "999", row.full_path)
    method = "HEAD" if row.method == "GET" else row.method
    answer = await caller.request(method, path)
    if answer.status_code in (401, 403) and method != "HEAD":
        assert_problem(answer, answer.status_code, "forbidden" if answer.status_code == 403 else "unauthorized")
    return answer.status_code


@pytest.mark.parametrize("role", list(Role))
async def test_a_role_may_do_what_the_specification_says_and_nothing_else(
    as_role: MakeCaller, conn: Connection, role: Role
) -> None:
    await make_world(conn)
    caller = await as_role(role, rate=1000.0)
    wrong = []
    for row in ROWS:
        if label(row) == "POST /session":
            continue  # it reads its body; what it needs is in there
        status = await ask(caller, row)
        if (status == 403) != (role not in ALLOWED[label(row)]):
            wrong.append((label(row), status))
    assert not wrong


async def test_without_a_token_only_what_needs_none_answers(anybody: Caller, conn: Connection) -> None:
    wrong = []
    for row in ROWS:
        status = await ask(anybody, row)
        if (status == 401) != (ALLOWED[label(row)] is not NOBODY_NEEDED):
            wrong.append((label(row), status))
    assert not wrong
