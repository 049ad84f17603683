"""Health: what /healthz and /readyz answer, without a token and without a question to PostgreSQL.

Next: server/agents/endpoint.py
"""

from __future__ import annotations

import json
from http import HTTPStatus

HEALTH, READINESS = "/healthz", "/readyz"


def health(path: str, why_not_ready: str | None) -> tuple[HTTPStatus, str]:
    """The status and the body, JSON. /healthz stays 200 in an outage: a restart of the process would not end it."""
    good, bad = ("healthy", "degraded") if path == HEALTH else ("ready", "not_ready")
    body = {"status": good} if why_not_ready is None else {"status": bad, "reason": why_not_ready}
    is_refused = why_not_ready is not None and path == READINESS
    return HTTPStatus.SERVICE_UNAVAILABLE if is_refused else HTTPStatus.OK, json.dumps(body) + "\n"
