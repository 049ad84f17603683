"""Checked: what the tasks of schedules get by the checks of their job: a priority by rules, a deadline, a bound.

A job without checks, and a schedule without a deadline of its own, pay for one comparison.
Next: store/schedules/plans.py
"""

from __future__ import annotations

CHECKED_COLUMNS = "options, expires_at, is_bounded"
PRIORITY = "coalesce((checked.its->>'priority')::smallint, j.priority)"
CHECKED = """
    nullif(checked.its->'options', 'null'), (checked.its->>'expires_at')::timestamptz,
    (checked.its->>'is_bounded')::boolean
"""


def checking(args: str, run_at: str, policies: str) -> str:
    """SQL that joins the checks to a row of mainspring.job j. The arguments are SQL."""
    expires = f"make_interval(secs => ({policies}->>'expires')::float8)"
    return f"""
        cross join lateral (
            select case when j.is_checked or {policies} ? 'expires' then
                (select to_jsonb(made) from mainspring.planned_task(j, {args}, {run_at}, {expires}) made) end
        ) checked(its)
    """
