"""Fuzz: requests that schemathesis makes from the OpenAPI document, against the API on a real socket.

Of every answer: no 5xx but what is documented, a refusal is a problem with a known code, a refused request has changed
no row, and what is answered conforms to the document.

    python -m tests.api.fuzz --cases 10000 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.generation.case import Case

from mainspring.api.openapi.document import answered_errors, document
from mainspring.api.problems import MEDIA_TYPE
from mainspring.api.rows import ROWS
from mainspring.store.embedded.server import Embedded
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.dsn import at_database
from mainspring.store.postgres.migrate import migrate
from mainspring.store.tasks import partitions
from tests.api.fronted import fronted
from tests.api.worlds import World, digest_query, make_world
from tests.cluster import OWN_ALL


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: Any, value: Any) -> bytes:
    """Half of the bodies are lines that are nearly tasks; the others whatever was generated."""
    text = str(value).encode(errors="replace")
    return text if len(text) % 2 else b'{"job": "hello"}\n' + text + b'\n{"job": "hello", "args": {}}\n'


TIMEOUT = 15.0  # seconds for one answer
STREAMS = ("text/event-stream",)
# 503 is documented for what passes by itself; of a database that answers, only these are true.
DOCUMENTED_5XX = {"no_agents", "unhealthy", "busy"}
CHECKED = ("response_schema_conformance", "status_code_conformance", "content_type_conformance")


_RUN = {"run": {"type": "command", "argv": ["echo"]}}
# Of two random bodies one is refused for the first thing that is wrong. These are right but for what was generated.
BASES: dict[str, dict[str, Any]] = {
    "PUT /api/v1/jobs/{name}": _RUN,
    "PUT /api/v1/schedules/{name}": {"job": "hello", "every": "1h"},
    "PUT /api/v1/daemons/{name}": {"definition": _RUN},
    "PUT /api/v1/calendars/{name}": {"days": ["12-24"]},
    "POST /api/v1/preview": {"every": "1h"},
    "POST /api/v1/tasks": {"job": "hello"},
    "POST /api/v1/actions/tasks": {"action": "cancel", "filter": {"job": ["hello"]}},
    "POST /api/v1/actions/schedules": {"action": "disable", "filter": {}},
    "POST /api/v1/tokens": {"name": "more"},
}


class Finding(NamedTuple):
    operation: str
    what: str
    example: str


class Fuzz:
    """One database, one server; findings are collected, not raised."""

    def __init__(self, url: str, conn: Connection, runner: asyncio.Runner, world: World, query: str) -> None:
        self.findings: list[Finding] = []
        self.cases = 0
        self.statuses: Counter[int] = Counter()
        self._url, self._conn, self._runner, self._world, self._query = url, conn, runner, world, query
        self._session = requests.Session()
        self._digest = self._read_digest()
        self._chance = random.Random(7)
        self._codes = {kind.code for kind in answered_errors()}

    def run(self, cases: int, number: int) -> None:
        """So many requests for each operation, all on this one database."""
        for one, operation in enumerate(operations()):
            fuzz_operation(self, operation, cases, number + one)

    def _read_digest(self) -> str:
        return str(self._runner.run(self._conn.fetchval(self._query)))

    def close(self) -> None:
        self._session.close()

    def send(self, case: Case[Any]) -> None:
        self._aim(case)
        kwargs = case.as_transport_kwargs(base_url=self._url)
        kwargs["headers"] = {**kwargs["headers"], "Authorization": f"Bearer {self._world.secret}"}
        self.cases += 1
        try:
            with self._session.request(**kwargs, stream=True, timeout=TIMEOUT, allow_redirects=False) as answer:
                self._check(case, answer)
        except (requests.exceptions.InvalidHeader, UnicodeError, requests.exceptions.InvalidURL):
            return  # a request that this client cannot write
        except requests.exceptions.RequestException as error:
            self._find(case, f"no answer: {type(error).__name__} {error}"[:300])

    def _aim(self, case: Case[Any]) -> None:
        """Two of three name something that is there; nobody waits long."""
        world = self._world
        path = case.operation.path
        names = {"jobs": world.job, "schedules": world.schedule, "calendars": world.calendar,
                 "daemons": world.daemon, "agents": world.agent}  # fmt: skip
        if self._chance.random() < 2 / 3 and case.path_parameters:
            kind = path.split("/")[3]
            if kind in names:
                case.path_parameters["name"] = names[kind]
            elif kind == "tasks":
                case.path_parameters["id"] = self._chance.choice(world.tasks)
            elif kind in ("tokens", "sessions"):
                case.path_parameters["id"] = world.token if kind == "tokens" else world.session
        base = BASES.get(case.operation.label)
        if base is not None and isinstance(case.body, dict) and self._chance.random() < 1 / 2:
            kept = self._chance.sample(sorted(case.body, key=str), min(len(case.body), self._chance.randrange(3)))
            case.body = base | {name: case.body[name] for name in kept}
        if isinstance(case.body, dict) and "job" in case.body and self._chance.random() < 2 / 3:
            case.body["job"] = world.job
        if case.query and isinstance(wait := case.query.get("wait"), (int, float)) and wait > 0:  # the server cuts it
            case.query["wait"] = 0.05

    def _check(self, case: Case[Any], answer: requests.Response) -> None:
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        self.statuses[answer.status_code] += 1
        is_endless = kind in STREAMS or (answer.status_code == 200 and "follow" in (case.query or {}))
        if answer.status_code >= 400:
            self._check_refusal(case, answer, kind)
        before, self._digest = self._digest, self._read_digest()
        if 400 <= answer.status_code < 500 and self._digest != before:
            differing = set(before.split()) ^ set(self._digest.split())
            self._find(
                case, f"refused with {answer.status_code}, but changed {sorted(part[:-32] for part in differing)}"
            )
        if not is_endless:
            self._check_conforms(case, answer)

    def _check_refusal(self, case: Case[Any], answer: requests.Response, kind: str) -> None:
        if answer.status_code == 503 and case.operation.path in ("/api/v1/health", "/readyz"):
            return
        if kind != MEDIA_TYPE:
            self._find(case, f"{answer.status_code} as {kind}: {answer.text[:200]}")
            return
        told = answer.json()
        if told["code"] not in self._codes or told["status"] != answer.status_code:
            self._find(case, f"unknown problem {told}")
        if answer.status_code >= 500 and told["code"] not in DOCUMENTED_5XX:
            self._find(case, f"{answer.status_code} {told['message']}")

    def _check_conforms(self, case: Case[Any], answer: requests.Response) -> None:
        checks: list[Any] = CHECKS.get_by_names(list(CHECKED))
        try:
            case.validate_response(Response.from_requests(answer, verify=False), checks=checks)
        except (FailureGroup, Failure) as error:
            parts: Iterable[Any] = error.exceptions if isinstance(error, FailureGroup) else [error]
            for part in parts:
                self._find(case, f"{answer.status_code}: {type(part).__name__}: {part}"[:600])

    def _find(self, case: Case[Any], what: str) -> None:
        label = case.operation.label
        if sum(found.operation == label for found in self.findings) < 5:
            example = ""
            with suppress(Exception):
                example = case.as_curl_command()[:1500]
            self.findings.append(Finding(label, what, example))


def operations() -> list[Any]:
    schema = schemathesis.openapi.from_dict(document(ROWS))
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


def fuzz_operation(fuzz: Fuzz, operation: Any, cases: int, number: int) -> None:
    """So many requests for one operation, valid ones and others."""
    for mode, share in ((GenerationMode.POSITIVE, cases - cases // 2), (GenerationMode.NEGATIVE, cases // 2)):
        if share == 0:
            continue
        try:
            strategy = operation.as_strategy(generation_mode=mode)
        except Exception as error:  # an operation that takes nothing has no invalid request
            if mode is GenerationMode.NEGATIVE:
                continue
            raise error

        @seed(number)
        @settings(
            max_examples=share,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def run(case: Case[Any]) -> None:
            fuzz.send(case)

        try:
            run()
        except Exception as error:
            if mode is GenerationMode.NEGATIVE and type(error).__name__ in ("Unsatisfiable", "SkipTest"):
                continue
            raise


@contextmanager
def fuzzing(dsn: str) -> Iterator[Fuzz]:
    """On a database that has the schema and nothing else."""
    with asyncio.Runner() as runner, fronted(dsn) as url:
        conn = runner.run(Database(dsn).connect())
        try:
            world = runner.run(make_world(conn))
            query = runner.run(digest_query(conn))
            fuzz = Fuzz(url, conn, runner, world, query)
            yield fuzz
            fuzz.close()
        finally:
            runner.run(conn.close())


# ── the program ─────────────────────────────────────────────────────────────────────────────────


async def _make_template(server_dsn: str) -> None:
    conn = await Database(server_dsn).connect()
    await conn.execute("create database fuzz_template")
    await conn.close()
    database = Database(at_database(server_dsn, "fuzz_template"))
    await migrate(database)
    made = await database.connect()
    await partitions.make_ahead(made, days=3)
    await made.execute(OWN_ALL)
    await made.close()


async def _new_database(server_dsn: str) -> str:
    conn = await Database(server_dsn).connect()
    await conn.execute("drop database if exists fuzzed with (force)")
    await conn.execute("create database fuzzed template fuzz_template strategy file_copy")
    await conn.close()
    return at_database(server_dsn, "fuzzed")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of METHOD /path")
    given = parser.parse_args()
    from tests.conftest import directory_for_a_server
    from tests.places import memory

    chosen = [one for one in operations() if given.only in one.label]
    findings: list[Finding] = []
    statuses: Counter[int] = Counter()
    cases = round_ = 0
    with directory_for_a_server(memory()) as directory:
        embedded = Embedded.start(directory)
        try:
            asyncio.run(_make_template(embedded.dsn))
            while cases < given.cases:
                share = max(2, (given.cases - cases) // len(chosen))
                for number, operation in enumerate(chosen):
                    dsn = asyncio.run(_new_database(embedded.dsn))
                    with fuzzing(dsn) as fuzz:
                        fuzz_operation(fuzz, operation, share, given.seed + 1000 * round_ + number)
                    cases += fuzz.cases
                    statuses += fuzz.statuses
                    findings += fuzz.findings
                    for found in fuzz.findings:
                        print(f"{found.operation}: {found.what}\n    {found.example}", flush=True)
                round_ += 1
                if round_ > 50:
                    break
        finally:
            embedded.stop()
    print(f"{cases} cases, {len(findings)} findings, statuses {dict(sorted(statuses.items()))}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
