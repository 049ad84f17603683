"""Retention: the rows that expire, one rule per table. Partitioned tables drop their partitions instead.

Each call deletes up to `limit` rows; two janitors at once share the work.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from mainspring.model.tasks.states import ASSIGNED, RUNNING
from mainspring.model.watch.slo import MAX_WINDOW
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected

KEEP_MINUTES = timedelta(days=2)  # of figures
KEEP_HOURS = timedelta(days=90)
KEEP_SLO_MINUTES = timedelta(hours=8)  # the longest window of a burn rate has six
KEEP_ALERTS = timedelta(days=30)  # that are over
KEEP_MESSAGES = timedelta(days=7)  # about them

_PAST = "(select mainspring.now()) - $2::interval"  # the instant before which a row has expired


class Rule(NamedTuple):
    table: str
    expired: str  # condition on `r`, a row of the table
    keep: timedelta | None = None  # age of `_PAST`; None: the age of the history
    oldest_first: str | None = None  # column; only where an index has it


RULES = {
    "keys": Rule("task_key", "r.expires_at <= mainspring.now()", oldest_first="expires_at"),
    "hellos": Rule("agent_process", f"r.at < {_PAST}", keep=timedelta(days=1), oldest_first="at"),
    # An agent repeats a submission within its lease, which is an hour at most.
    "submissions": Rule("submission", f"r.at < {_PAST}", keep=timedelta(days=1), oldest_first="at"),
    # A child may wait longer than the history is kept, and its job may keep it longer.
    "dependents": Rule(
        "dependent",
        f"""r.at < {_PAST}
            and not exists (select from mainspring.task t where t.id = r.child)
            and not exists (select from mainspring.task_history h where h.id = r.child)""",
        oldest_first="at",
    ),
    "requests": Rule("request", "r.expires_at <= mainspring.now()", oldest_first="expires_at"),
    "login codes": Rule("login_code", "r.expires_at <= mainspring.now()", oldest_first="expires_at"),
    "console sessions": Rule("console_session", "r.expires_at <= mainspring.now()", oldest_first="expires_at"),
    # What the ledger has outside its partitions.
    "fires": Rule("fire_default", f"r.plan_time < {_PAST} and r.decided_at < {_PAST}"),
    "versions": Rule("schedule_version", f"r.until < {_PAST}"),
    "skips": Rule("schedule_skip", f"r.stop < {_PAST}"),
    # A session with claims may hold a task that could not be rescued: the rescuer must find it again.
    "sessions": Rule(
        "agent",
        f"r.ended_at < {_PAST} and not exists (select from mainspring.claim c where c.session = r.session)",
    ),
    # Of sessions that no longer exist and hold nothing.
    "claims": Rule(
        "claim",
        f"""not exists (select from mainspring.agent a where a.session = r.session)
           and not exists (select from unnest(r.tasks) as claimed(id)
                             join mainspring.task t on t.id = any (array[claimed.id])
                            where t.session = r.session and t.state in ({ASSIGNED:d}, {RUNNING:d}))""",
    ),
    # Of sessions that have ended: an agent that returns in a new session learns from the welcome what it may keep.
    "stop orders": Rule(
        "stop_order",
        """not exists (select from mainspring.agent a
                        where a.session = r.session and a.ended_at is null and a.lease_until > mainspring.now())""",
    ),
    "servers": Rule(
        "server",
        f"""r.status in ('stopped', 'dead') and r.ended_at < {_PAST}
            and not exists (select from mainspring.segment g where g.owner = r.id)""",
    ),
    "moves": Rule("segment_move", f"r.at < {_PAST}", keep=timedelta(days=30), oldest_first="at"),
    # The janitor adds them up by the hour first.
    "minutes": Rule(
        "figure",
        f"""r.minute < {_PAST}
            and exists (select from mainspring.figure_hour h
                         where h.job_id = 0 and h.hour = date_trunc('hour', r.minute, 'UTC'))""",
        keep=KEEP_MINUTES,
        oldest_first="minute",
    ),
    "hours": Rule("figure_hour", f"r.hour < {_PAST}", keep=KEEP_HOURS, oldest_first="hour"),
    "queues": Rule("queue_minute", f"r.minute < {_PAST}", keep=KEEP_MINUTES, oldest_first="minute"),
    "pings": Rule("ping", f"r.plan_time < {_PAST} and r.look_at < {_PAST}", keep=timedelta(days=1)),
    "ledger holes": Rule("ledger_hole", f"r.found_at < {_PAST}", oldest_first="found_at"),
    "slo minutes": Rule("slo_minute", f"r.minute < {_PAST}", keep=KEEP_SLO_MINUTES, oldest_first="minute"),
    "slo hours": Rule("slo_hour", f"r.hour < {_PAST}", keep=timedelta(seconds=MAX_WINDOW + 3600), oldest_first="hour"),
    "alerts": Rule("alert", f"r.state = 'resolved' and r.changed_at < {_PAST}", keep=KEEP_ALERTS),
    "messages": Rule("alert_delivery", f"r.state <> 'pending' and r.created_at < {_PAST}", keep=KEEP_MESSAGES),
    "mutes": Rule("mute", f"r.until < {_PAST}", keep=KEEP_ALERTS, oldest_first="until"),
    # A rate that was not used for a minute is as good as new.
    "rates": Rule("throttle", f"r.wake_at is null and r.until < {_PAST}", keep=timedelta(minutes=1)),
}


def _statement(rule: Rule) -> str:
    """A locked row keeps its ctid; one that changed before it was locked is not visible there, and stays."""
    order = f"order by r.{rule.oldest_first}" if rule.oldest_first else ""
    return f"""
        delete from mainspring.{rule.table} where ctid = any (array(
            select r.ctid from mainspring.{rule.table} r where {rule.expired}
             {order} limit $1 for update skip locked))
    """


_STATEMENTS = {name: _statement(rule) for name, rule in RULES.items()}


async def delete(conn: Connection, name: str, limit: int, history: timedelta) -> int:
    """Delete up to `limit` rows by this rule; returns how many. `history` is how long finished tasks are kept."""
    statement = _STATEMENTS[name]
    ages = (RULES[name].keep or history,) if _PAST in statement else ()
    return affected(await conn.execute(statement, limit, *ages))
