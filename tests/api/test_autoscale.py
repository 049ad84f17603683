"""What docs/how-to/autoscaling.md gives to Kubernetes, against the API that it asks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml

from mainspring.api.make import make_api
from mainspring.model.access.actors import Role
from mainspring.model.metrics.metrics import METRICS
from mainspring.model.tasks.define_job import command, define
from mainspring.operations.condition import autoscale
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs
from tests.journey.pages import Page
from tests.served import served

PAGE = Page("docs/how-to/autoscaling.md")
KEDA, HPA = (list(yaml.safe_load_all(block.text)) for block in PAGE.of("yaml"))


async def asked(url: str, token: str) -> Any:
    """As KEDA does: a GET with the bearer token of the secret; the Host is that of the URL."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(url, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_trigger_of_keda_finds_the_number_of_agents(dsn: str, database: Database, conn: Connection) -> None:
    _, authentication, scaled = KEDA
    [trigger] = scaled["spec"]["triggers"]
    assert (trigger["type"], trigger["metadata"]["authMode"]) == ("metrics-api", "bearer")
    [reference] = authentication["spec"]["secretTargetRef"]
    assert reference["parameter"] == "token"
    _, token = await tokens.create(conn, "keda", role=Role.VIEWER)
    await jobs.register(conn, {"hello": define(command(["true"]), {})})
    autoscale._kept.clear()
    parts = urlsplit(trigger["metadata"]["url"])
    api = make_api(database)
    async with served(api) as url:
        asks = f"{url}{parts.path}?{parts.query}"
        assert (await asked(asks, token))[trigger["metadata"]["valueLocation"]] == 0
        await conn.execute("select mainspring.enqueue('hello') from generate_series(1, 600)")
        autoscale._kept.clear()
        wanted = (await asked(asks, token))[trigger["metadata"]["valueLocation"]]
        assert -(-wanted // int(trigger["metadata"]["targetValue"])) == 2, "25 slots"
        narrow = await asked(f"{asks}&labels=gpu=a100,zone=eu&app=shop", token)
        assert narrow["wanted_agents"] == 0
    await api.close()


def test_the_metric_of_hpa_exists() -> None:
    [scaler] = HPA
    [metric] = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"].removeprefix("mainspring_") in METRICS
    assert metric["external"]["target"]["averageValue"] == str(autoscale.SLOTS_PER_AGENT)


@pytest.mark.parametrize("name", ["wanted_agents", "wanted_slots", "agents", "slots", "missing_agents"])
def test_the_page_names_what_an_alert_tells(name: str) -> None:
    assert f"`{name}`" in PAGE.text
