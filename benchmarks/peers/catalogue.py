"""Catalogue: the peers, the versions that are installed, their settings, and what they promise.

`unfinished` tells when everything is recorded: SQL that returns true while something is not, or the commands of Redis
that count what is left. `share` is the part of `--tasks` that a slow peer gets, so that its turn takes no minutes.
Next: benchmarks/peers/installation.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OURS = "mainspring"
PARTS = ("throughput", "submission", "pickup", "lateness", "herd")


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    driver: str  # a module of drivers/, or a file that ends in .mjs
    packages: tuple[str, ...]  # name==version
    place: Literal["postgresql", "redis", "memory"]
    settings: str
    promises: str
    unfinished: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    share: float = 1.0
    submit_seconds: float = 0.0  # that a task with an instant takes at most: the first instant is so far ahead
    bulk: bool = True
    alone: bool = False  # one process submits and runs

    @property
    def runs_on_node(self) -> bool:
        return self.driver.endswith(".mjs")


# Both peers in JavaScript want a newer Node than many systems have; npm knows it as a package.
_NODE = "node==22.23.3"

MAINSPRING = Peer(
    OURS,
    "Mainspring",
    "mainspring",
    (),
    "postgresql",
    "the defaults of `mainspring worker`",
    "Durable when `enqueue` returns. At least once, or at most once, or effectively once. Each attempt has a fencing "
    "token; the history keeps when it started and ended. The tasks of a dead agent run again when its lease ends.",
    ("select exists (select from mainspring.task)",),
)
GRAPHILE = Peer(
    "graphile",
    "Graphile Worker",
    "graphile.mjs",
    ("graphile-worker==0.18.0", "pg==8.23.1", _NODE),
    "postgresql",
    "those of its page on performance: `concurrentJobs: 24`, `maxPoolSize: 25`, `localQueue: {size: 500}`, "
    "`completeJobBatchDelay: 0`, `failJobBatchDelay: 0`; and `pollInterval: 100` ms (default 2000)",
    "Durable, at least once. A finished job is deleted: there is no history, and of its start only the lock. The jobs "
    "of a dead worker stay locked for four hours.",
    ("select exists (select from graphile_worker._private_jobs)",),
)
PGBOSS = Peer(
    "pgboss",
    "pg-boss",
    "pgboss.mjs",
    ("pg-boss==12.35.0", _NODE),
    "postgresql",
    "`batchSize: 1000`, `localConcurrency: 2`, `burstWhenBatchFull: true`, `useListenNotify: true` with a queue of "
    "`notify: true`, polling every 0.5 s (its minimum)",
    "Durable, at least once. Completed jobs are kept for days, with start and end. One call of the handler takes a "
    "whole batch, which succeeds or fails together. The jobs of a dead worker expire, by default after 15 minutes.",
    ("select exists (select from pgboss.job where name = 'stamp' and state < 'completed')",),
)
PGQUEUER = Peer(
    "pgqueuer",
    "PgQueuer",
    "pgqueuer",
    ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
    "postgresql",
    "asyncpg's pool, uvloop, `batch_size=1000` (ends are recorded in batches of that size, or after 0.1 s), "
    "`durability=durable` (default: every table is logged); instants are looked for at most every 0.1 s",
    "Durable, at least once. The job is deleted; a log keeps when it was queued, picked and ended. The jobs of a dead "
    "worker are picked again after 30 s without a heartbeat.",
    ("select exists (select from public.pgqueuer)",),
)
PROCRASTINATE = Peer(
    "procrastinate",
    "Procrastinate",
    "procrastinate",
    ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"),
    "postgresql",
    "psycopg's pool, uvloop, `concurrency=20`, `fetch_job_polling_interval=0.1` (default 5), `listen_notify=True`",
    "Durable; jobs and their events (deferred, started, ended) are kept. The jobs of a dead worker stay `doing` until "
    "the application retries stalled jobs.",
    ("select exists (select from public.procrastinate_jobs where status in ('todo', 'doing'))",),
    share=0.05,
    submit_seconds=0.001,
)
CELERY = Peer(
    "celery",
    "Celery (Redis)",
    "celery",
    ("celery[redis]==5.7.0", "hiredis==3.5.0"),
    "redis",
    "`--pool threads --concurrency 1` (`solo` was as fast, but starts ten tasks a second when many ETAs are due at "
    "once), `worker_prefetch_multiplier=256`, `task_ignore_result`, without gossip, mingle and heartbeat; hiredis",
    "Not durable: Redis has its default snapshots. Acknowledged before it runs (default), so at most once. No history. "
    "Tasks with an ETA wait in the memory of a worker.",
    ("LLEN celery", "HLEN unacked"),
    share=0.05,
    submit_seconds=0.001,
    bulk=False,
)
TASKIQ = Peer(
    "taskiq",
    "Taskiq (Redis)",
    "taskiq",
    ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0", "uvloop==0.23.0"),
    "redis",
    "`RedisStreamBroker`, hiredis, uvloop, `max_async_tasks=100`, `max_prefetch=1000`; instants by `TaskiqScheduler` "
    "and `ListRedisScheduleSource` in the worker's process, every 0.1 s (defaults: a minute and a second)",
    "Not durable: Redis has its default snapshots. Acknowledged after it has run, so at least once while Redis lives; "
    "the tasks of a dead worker come back after ten minutes. No history.",
    ("XPENDING taskiq taskiq",),
    share=0.1,
    submit_seconds=0.001,
    bulk=False,
)
APSCHEDULER = Peer(
    "apscheduler",
    "APScheduler (memory)",
    "apscheduler",
    ("apscheduler==3.11.3", "uvloop==0.23.0"),
    "memory",
    "`AsyncIOScheduler` on uvloop, `MemoryJobStore`, `misfire_grace_time=None`; one process submits and runs",
    "Nothing is durable and nothing recorded: what a timer in Python costs.",
    parts=("lateness", "herd"),
    bulk=False,
    alone=True,
)
APSCHEDULER_POSTGRESQL = Peer(
    "apscheduler-pg",
    "APScheduler (PostgreSQL)",
    "apscheduler",
    ("apscheduler==3.11.3", "uvloop==0.23.0", "sqlalchemy==2.1.8", "psycopg[binary]==3.3.8"),
    "postgresql",
    "the same with `SQLAlchemyJobStore` on psycopg",
    "Durable until it is due: the row is deleted when the handler is submitted, so at most once. No history; one "
    "scheduler only.",
    parts=("submission", "lateness", "herd"),
    submit_seconds=0.006,
    bulk=False,
    alone=True,
)

PEERS = (
    MAINSPRING,
    GRAPHILE,
    PGBOSS,
    PGQUEUER,
    PROCRASTINATE,
    CELERY,
    TASKIQ,
    APSCHEDULER,
    APSCHEDULER_POSTGRESQL,
)
