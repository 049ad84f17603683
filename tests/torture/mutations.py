"""Mutations: the code is broken on purpose, one promise at a time, and the torture run must notice.

A mutation is a list of edits to a copy of the source: the product has no switch for any of it. Its plan of faults is
written by hand so that it shows within seconds. The same plan must pass with the code as it is.
Next: tests/torture/prove.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.torture.load import JOBS, WAITS
from tests.torture.plan import Fault, Sizes

SECONDS = 20.0
SMALL = Sizes(servers=2, agents=2, workers=0)


class Edit(NamedTuple):
    file: str  # below src/mainspring
    old: str
    new: str


class Mutation(NamedTuple):
    name: str
    edits: tuple[Edit, ...]
    plan: tuple[Fault, ...]
    caught_by: frozenset[str]  # any of these invariants
    sizes: Sizes = SMALL
    seconds: float = SECONDS
    jobs: Mapping[str, int] = JOBS
    holds: bool = False  # jobs are held and released
    alerts: bool = False  # there is a channel
    crowd: bool = False  # more is submitted of a bounded job than may wait
    waits: Mapping[float, int] = WAITS  # seconds at work


# An agent that is out of reach past its lease, and comes back with what it has to say.
AWAY = (
    Fault(3.0, 5.0, "partition", "agent-1/servers", "both"),
    Fault(10.0, 5.0, "partition", "agent-2/servers", "both"),
)
# A server dies while what it writes does not come to the database, and never will; its agents go on with the other one.
REPORTS_UNDER_WAY = (
    Fault(6.7, 0.95, "partition", "server-1/postgres", "up"),
    Fault(7.5, 2.0, "kill", "server-1"),
    Fault(7.6, 0.0, "cut", "server-1/postgres"),
    Fault(23.7, 0.95, "partition", "server-2/postgres", "up"),
    Fault(24.5, 2.0, "kill", "server-2"),
    Fault(24.6, 0.0, "cut", "server-2/postgres"),
)
# A server carries out hellos of agents that are with the other one by then.
LATE_HELLOS = tuple(Fault(at, 5.0, "late", "server-1", amount=0.8) for at in (3.0, 10.0, 17.0, 24.0))
AGENTS_DIE = (
    Fault(4.0, 1.0, "kill", "agent-1"),
    Fault(8.0, 1.0, "kill", "agent-2"),
    Fault(12.0, 1.0, "kill", "agent-1"),
    Fault(16.0, 1.0, "kill", "agent-2"),
)

LEADERS_DIE = tuple(
    Fault(at, 2.0, "kill", f"server-{number}") for at, number in ((6.0, 1), (12.0, 2), (18.0, 1), (24.0, 2))
)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "no fence check",
        (
            Edit(
                "store/tasks/transitions.py",
                "where t.id = any (array[given.id]) and t.token = given.token and t.{START.leaves}\n",
                "where t.id = any (array[given.id]) and t.{START.leaves}\n",
            ),
            Edit(
                "store/tasks/transitions.py",
                "where {{is_given}} and t.token = given.token and t.{FAIL.leaves}\n           -- A daemon ends",
                "where {{is_given}} and t.{FAIL.leaves}\n           -- A daemon ends",
            ),
            Edit(
                "store/tasks/transitions.py",
                "where t.id = any (array[was.id]) and t.token = was.token and t.{RETRY.leaves}",
                "where t.id = any (array[was.id]) and t.{RETRY.leaves}",
            ),
        ),
        AWAY,
        frozenset({"L3", "L6", "L7", "L8"}),
    ),
    Mutation(
        "acknowledgement before commit",
        (
            Edit(
                "server/recording/recorder.py",
                "        with self.offering(flush.endings) as offer:\n",
                "        for link, sequence in flush.settles.items():\n"
                "            link.settle_now(sequence)\n"
                "        with self.offering(flush.endings) as offer:\n",
            ),
        ),
        REPORTS_UNDER_WAY,
        frozenset({"L1", "L8"}),
        jobs={"work": 1},
        seconds=30.0,
        sizes=Sizes(servers=2, agents=4, workers=0),
    ),
    Mutation(
        "local clock for leases",
        (
            Edit(
                "agent/agent.py",
                "        self.lease.renew(sent, seconds)\n",
                "        self.lease.renew(self.clock.now() - boottime() + sent, seconds)\n",
            ),
            Edit(
                "agent/agent.py",
                "            if self.lease.is_ending(boottime()):",
                "            if self.lease.is_ending(self.clock._wall()):",
            ),
            Edit(
                "agent/agent.py",
                "            self.lease.has_expired,\n",
                "            lambda _: self.lease.has_expired(self.clock._wall()),\n",
            ),
        ),
        # Half a minute behind: the lease seems to hold so much longer.
        (
            Fault(3.0, 0.5, "clock", "agent-1", amount=-30.0),
            Fault(8.0, 7.0, "partition", "agent-1/servers", "both"),
            Fault(19.0, 7.0, "partition", "agent-1/servers", "both"),
        ),
        frozenset({"L3"}),
        seconds=30.0,
        jobs={"work": 1},
    ),
    Mutation(
        "round trips taken as symmetric",
        (
            Edit(
                "wire/clock.py",
                "min(AHEAD, (self._high - self._low) / 2)",
                "(self._high - self._low) / 2",
            ),
        ),
        # Lines are slow one way while agents connect: no earlier round trip says more about the clock.
        (
            Fault(3.0, 26.0, "slow", "agent-1/servers", "up", 0.8),
            Fault(3.1, 26.0, "slow", "agent-2/servers", "up", 0.6),
            Fault(3.5, 0.5, "kill", "agent-1"),
            Fault(4.0, 0.5, "kill", "agent-2"),
        ),
        frozenset({"L10"}),
        seconds=30.0,
    ),
    Mutation(
        "no unique fire",
        (
            # Each server plans every schedule, whatever others have decided meanwhile.
            Edit(
                "store/schedules/plans.py",
                's.provider_app is null and {holds("s.segment")}\n',
                "s.provider_app is null and (select bits from owned) is not null\n",
            ),
            Edit(
                "store/schedules/plans.py",
                " and s.next_plan_at = any (array[given.cursor]) and s.enabled\n"
                "           and s.skips = any (array[coalesce(given.skips, 0)])\n"
                "           and (given.epoch is null\n"
                "                or (select g.owner = $13 and g.epoch = given.epoch",
                " and s.enabled\n"
                "           and (given.epoch is null\n"
                "                or (select $13::uuid is not null and g.epoch is not null",
            ),
            Edit("store/postgres/migrations/0001_schema.sql", "    primary key (schedule_id, plan_time, scope),\n", ""),
        ),
        # One that is slow writes what others have decided long ago.
        (Fault(3.0, 14.0, "slow", "server-1/postgres", "both", 0.5),),
        frozenset({"L5"}),
    ),
    Mutation(
        "rescue without a new token",
        (
            Edit(
                "store/tasks/claims.py",
                "token = (select batch from number) * {BATCH_TOKENS} + {_TURN}, attempt = attempt + 1,",
                "token = case when crashes > 0 then token else (select batch from number) * {BATCH_TOKENS} "
                "+ {_TURN} end,\n               attempt = attempt + 1,",
            ),
        ),
        AGENTS_DIE,
        frozenset({"L6"}),
    ),
    Mutation(
        "result dropped on reconnect",
        (
            Edit(
                "agent/connection/outbox.py",
                "if not isinstance(message, (Hello, Submit))]\n",
                "if not isinstance(message, (Hello, Submit, Finished))]\n",
            ),
        ),
        REPORTS_UNDER_WAY,
        frozenset({"L8"}),
        jobs={"work": 1},
        seconds=30.0,
        sizes=Sizes(servers=2, agents=4, workers=0),
    ),
    Mutation(
        "rescue before the lease is over",
        (
            Edit(
                "store/tasks/rescue.py",
                "where ended_at is null and lease_until <= mainspring.now()\n           and session in",
                "where ended_at is null and lease_until <= mainspring.now() + interval '2 s'\n and session in",
            ),
            Edit(
                "store/tasks/rescue.py",
                "where ended_at is null and lease_until <= mainspring.now()\n                            order by",
                "where ended_at is null and lease_until <= mainspring.now() + interval '2 s'\n order by",
            ),
        ),
        # A server cannot renew the leases of its agents, which are as good as they were told to be.
        (
            Fault(3.0, 3.0, "partition", "server-1/postgres", "both"),
            Fault(9.0, 3.0, "partition", "server-2/postgres", "both"),
            Fault(15.0, 3.0, "partition", "server-1/postgres", "both"),
        ),
        frozenset({"L3"}),
    ),
    Mutation(
        "at_most_once runs again",
        (
            Edit(
                "model/tasks/verdict.py",
                '    if definition.delivery == "at_most_once" and not never_starts:\n'
                "        return replace(ending, state=TaskState.LOST)\n",
                "",
            ),
        ),
        AGENTS_DIE,
        frozenset({"L4"}),
        jobs={"launch": 1},
    ),
    Mutation(
        "a late hello ends a newer session",
        (
            Edit(
                "store/postgres/migrations/0001_schema.sql",
                "at = excluded.at where p.connection < excluded.connection;",
                "at = excluded.at where p.connection <> excluded.connection;",
            ),
        ),
        LATE_HELLOS,
        frozenset({"L3", "L4", "L6"}),
        jobs={"work": 1, "launch": 1},
        seconds=32.0,
        sizes=Sizes(servers=2, agents=4, workers=0),
    ),
    Mutation(
        "a transaction that does not end its task",
        (
            Edit(
                "compose/local.py",
                "in await transitions.complete(conn, endings)}",
                "in endings}",
            ),
        ),
        AWAY,
        frozenset({"L2"}),
        jobs={"pay": 1},
    ),
    Mutation(
        "a key that is not looked at",
        (
            Edit(
                "store/postgres/migrations/0001_schema.sql",
                "                if holder <> task then\n                    perform mainspring.check_exists",
                "                if holder <> task and false then\n                    perform mainspring.check_exists",
            ),
        ),
        # Answers do not come, and submissions are repeated.
        (
            Fault(3.0, 6.0, "partition", "client/postgres", "down"),
            Fault(10.0, 6.0, "partition", "client/postgres", "down"),
        ),
        frozenset({"L1"}),
    ),
    Mutation(
        "a key that several may have",
        (
            Edit(
                "store/postgres/migrations/0001_schema.sql",
                "create unique index task_key_slot",
                "create index task_key_slot",
            ),
            Edit(
                "store/limits/release.py",
                "where t.concurrency_key = ranked.key and t.key_slot is not null) had",
                "where t.concurrency_key = ranked.key and t.key_slot < 0) had",
            ),
        ),
        AWAY,
        frozenset({"L3"}),
        jobs={"exclusive": 1},
    ),
    Mutation(
        "callbacks without their guard",
        (
            Edit(
                "store/postgres/migrations/0001_schema.sql",
                "    on conflict do nothing;                      -- the guard\n"
                "    if not found then\n        return false;\n    end if;\n",
                "    on conflict do nothing;\n",
            ),
        ),
        AWAY,
        frozenset({"L12"}),
        jobs={"work": 1},
    ),
    Mutation(
        "a batch that ends without its tasks",
        (
            Edit(
                "store/tasks/transitions.py",
                "            select batch_id, {outcome}, count(*) from {source}",
                "            select batch_id, {outcome}, count(*) + 1 from {source}",
            ),
            Edit(
                "store/postgres/migrations/0001_schema.sql",
                " and not exists (select from mainspring.task t where t.batch_id = settle_batch.batch)\n",
                "\n",
            ),
        ),
        AWAY,
        frozenset({"L12"}),
        jobs={"work": 1},
    ),
    Mutation(
        "a handler that goes on past its lease",
        (
            Edit("agent/run/workers.py", "            if self._lease_expired(now):\n", "            if False:\n"),
            Edit(
                "agent/run/workers.py",
                "                if self._lease_expired(boottime()):\n",
                "                if False:\n",
            ),
            Edit("agent/agent.py", "                await self._lose_session()\n", "                pass\n"),
        ),
        AWAY,
        frozenset({"L3", "L7"}),
    ),
    Mutation(
        "a chunk that goes on past its lease",
        (
            Edit(
                "agent/run/chunks.py",
                "        if call.stopping is not None:\n            self._cancel(call)\n\n    def _stop_all",
                "        if call.stopping is not None and reason != 'lost':\n"
                "            self._cancel(call)\n\n    def _stop_all",
            ),
        ),
        AWAY,
        frozenset({"L3"}),
        jobs={"gather": 1},
        waits={10.0: 1},  # each call is still at work when another agent has its tasks
    ),
    Mutation(
        "an agent that looks at no deadline",
        (
            Edit(
                "agent/run/runner.py",
                "            if armed.expires_at is not None and attempt.has_expired(self._clock.now()):\n",
                "            if armed.expires_at is not None and attempt.has_expired(0.0):\n",
            ),
            Edit("store/flows/expiry.py", "t.expires_at <= (select mainspring.now())", "t.expires_at <= '1970-01-01Z'"),
        ),
        (Fault(4.0, 6.0, "kill", "agent-1"), Fault(4.1, 6.0, "kill", "agent-2")),
        frozenset({"L14"}),
    ),
    Mutation(
        "a hold that nothing looks at",
        (
            Edit(
                "store/limits/release.py",
                "        where h.held_at is null or h.released_at is not null) l\n",
                "        where true) l\n",
            ),
            Edit("store/cluster/holds.py", "(select is_empty from on_hold) or", "true or"),
            Edit("server/dispatch/arming.py", "if self._catalogue.holds is NO_HOLDS:", "if NO_HOLDS is not None:"),
        ),
        (),
        frozenset({"L13"}),
        holds=True,
    ),
    Mutation(
        "a bound that the leader's count decides alone",
        (
            Edit(
                "store/postgres/migrations/0001_schema.sql",
                "counted.live + mainspring.last_task() - counted.created + more <= most",
                "counted.live + more <= most",
            ),
        ),
        (),
        frozenset({"L16"}),
        crowd=True,
    ),
    Mutation(
        "outcomes of a chunk in another order",
        (
            Edit(
                "agent/run/chunks.py",
                "            attempt = call.members.pop(0)\n",
                "            attempt = call.members.pop()\n",
            ),
        ),
        (),
        frozenset({"L8"}),
        jobs={"gather": 1},
    ),
    Mutation(
        "a leader that begins where it is elected",
        (
            Edit(
                "server/alerting/evaluator.py",
                "for at in (rule.looked_to, seen if version == rule.version else None) if",
                "for at in (seen if version == rule.version else None,) if",
            ),
        ),
        LEADERS_DIE,
        frozenset({"L15"}),
        alerts=True,
        seconds=30.0,
    ),
)
