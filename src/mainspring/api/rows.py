"""The rows of the table.

Next: operations/tasks.py
"""

from __future__ import annotations

from mainspring import errors
from mainspring.api.handlers import public, scrape, session, site
from mainspring.api.problems import NotAcceptable, TooLarge, UnsupportedMediaType
from mainspring.api.streams import bulk, events, lines
from mainspring.api.streams import output as output_stream
from mainspring.api.streams.sse import MEDIA_TYPE as SSE
from mainspring.api.table import ACTS, ADMIN, ANY, NOBODY, READS, READS_TASKS, SCRAPES, SUBMITS, Row
from mainspring.operations import (
    access,
    calendars,
    cluster,
    daemons,
    fleet,
    health,
    jobs,
    output,
    schedules,
    settings,
    tasks,
)
from mainspring.operations.planning import backfill, forecast, plan_times, timeline

_RANGE = (("start", "from"), ("end", "to"))  # `from` is a word of Python
_SUBMITS_A_TASK = (errors.JobNotFound, errors.TaskExists, errors.NoAgents)
_FINDS_TASKS = (errors.JobNotFound, errors.ScheduleNotFound, errors.AgentNotFound, errors.BadCursor)
_OF_A_TASK = (errors.TaskNotFound,)
_MOVES_A_TASK = (errors.TaskNotFound, errors.InvalidTransition)
_OF_A_JOB = (errors.JobNotFound,)
_STREAMED = (errors.RateLimited,)
_OF_A_SCHEDULE = (errors.ScheduleNotFound,)

TASKS = (
    Row(tasks.submit, "POST", "/tasks", SUBMITS, status=201, body="task", waits=True, errors=_SUBMITS_A_TASK),
    Row(tasks.listing, "GET", "/tasks", READS_TASKS, errors=_FINDS_TASKS),
    Row(tasks.count, "GET", "/tasks/count", READS_TASKS, errors=_FINDS_TASKS),
    Row(tasks.show, "GET", "/tasks/{id}", READS_TASKS, errors=_OF_A_TASK, waits=True),
    Row(tasks.status, "GET", "/tasks/{id}/status", READS_TASKS, errors=_OF_A_TASK),
    Row(tasks.change, "PATCH", "/tasks/{id}", ACTS, errors=_MOVES_A_TASK),
    Row(tasks.act, "POST", "/actions/tasks", ACTS, errors=_FINDS_TASKS),
    Row(tasks.cancel, "POST", "/tasks/{id}/cancel", SUBMITS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.cancel, "DELETE", "/tasks/{id}", SUBMITS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.retry, "POST", "/tasks/{id}/retry", ACTS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.pause, "POST", "/tasks/{id}/pause", ACTS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.resume, "POST", "/tasks/{id}/resume", ACTS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.restart, "POST", "/tasks/{id}/restart", ACTS, status=202, errors=_MOVES_A_TASK),
)
_CHANGES_A_JOB = (errors.JobNotFound, errors.NameTaken, errors.StaleVersion)
JOBS = (
    Row(jobs.listing, "GET", "/jobs", READS, errors=(errors.BadCursor,)),
    Row(jobs.show, "GET", "/jobs/{name}", READS, errors=_OF_A_JOB),
    Row(jobs.put, "PUT", "/jobs/{name}", ADMIN, body="definition", errors=_CHANGES_A_JOB),
    Row(jobs.edit, "PATCH", "/jobs/{name}", ADMIN, body="change", errors=_CHANGES_A_JOB),
    Row(jobs.delete, "DELETE", "/jobs/{name}", ADMIN, errors=(*_CHANGES_A_JOB, errors.JobInUse)),
)
_CHANGES_A_SCHEDULE = (errors.JobNotFound, errors.ScheduleNotFound, errors.NameTaken, errors.StaleVersion)
SCHEDULES = (
    Row(schedules.listing, "GET", "/schedules", READS, errors=(errors.JobNotFound, errors.BadCursor)),
    Row(schedules.show, "GET", "/schedules/{name}", READS, errors=_OF_A_SCHEDULE),
    Row(schedules.put, "PUT", "/schedules/{name}", ADMIN, body="spec", errors=_CHANGES_A_SCHEDULE),
    Row(schedules.edit, "PATCH", "/schedules/{name}", ADMIN, body="change", errors=_CHANGES_A_SCHEDULE),
    Row(schedules.delete, "DELETE", "/schedules/{name}", ADMIN, errors=_CHANGES_A_SCHEDULE),
    Row(schedules.enable, "POST", "/schedules/{name}/enable", ACTS, errors=_OF_A_SCHEDULE),
    Row(schedules.disable, "POST", "/schedules/{name}/disable", ACTS, errors=_OF_A_SCHEDULE),
    Row(schedules.run, "POST", "/schedules/{name}/run", ACTS, errors=_OF_A_SCHEDULE),
    Row(schedules.act, "POST", "/actions/schedules", ACTS, errors=(errors.JobNotFound, errors.BadCursor)),
    Row(plan_times.fires, "GET", "/schedules/{name}/fires", READS, errors=(*_OF_A_SCHEDULE, errors.BadCursor)),
    Row(plan_times.explain, "GET", "/schedules/{name}/explain", READS, errors=_OF_A_SCHEDULE),
    Row(plan_times.next_times, "GET", "/schedules/{name}/next", READS, errors=_OF_A_SCHEDULE),
    Row(plan_times.preview, "POST", "/preview", READS, body="spec"),
    Row(
        plan_times.check,
        "GET",
        "/check",
        READS,
        handler=lines.handle,
        bound=("keep",),
        errors=(*_OF_A_SCHEDULE, errors.BadCursor),
    ),
    Row(backfill.step, "POST", "/schedules/{name}/backfill", ACTS, names=_RANGE, errors=_OF_A_SCHEDULE),
    Row(forecast.forecast, "GET", "/forecast", READS, names=_RANGE),
    Row(timeline.show, "GET", "/timeline", READS, names=_RANGE, errors=_OF_A_SCHEDULE),
)
_CHANGES_A_CALENDAR = (errors.CalendarNotFound, errors.NameTaken, errors.StaleVersion)
CALENDARS = (
    Row(calendars.listing, "GET", "/calendars", READS, errors=(errors.BadCursor,)),
    Row(calendars.show, "GET", "/calendars/{name}", READS, errors=(errors.CalendarNotFound,)),
    Row(calendars.put, "PUT", "/calendars/{name}", ADMIN, errors=_CHANGES_A_CALENDAR),
    Row(calendars.delete, "DELETE", "/calendars/{name}", ADMIN, errors=(*_CHANGES_A_CALENDAR, errors.Conflict)),
)
DAEMONS = (
    Row(daemons.listing, "GET", "/daemons", READS, errors=(errors.BadCursor,)),
    Row(daemons.show, "GET", "/daemons/{name}", READS, errors=_OF_A_SCHEDULE),
    Row(daemons.put, "PUT", "/daemons/{name}", ADMIN, errors=_CHANGES_A_SCHEDULE),
    Row(daemons.delete, "DELETE", "/daemons/{name}", ADMIN, errors=_CHANGES_A_SCHEDULE),
    Row(daemons.start, "POST", "/daemons/{name}/start", ACTS, errors=_OF_A_SCHEDULE),
    Row(daemons.stop, "POST", "/daemons/{name}/stop", ACTS, errors=_OF_A_SCHEDULE),
    Row(daemons.restart, "POST", "/daemons/{name}/restart", ACTS, errors=_OF_A_SCHEDULE),
    Row(daemons.scale, "POST", "/daemons/{name}/scale", ACTS, errors=_OF_A_SCHEDULE),
)
STREAMS = (
    Row(
        bulk.submit, "POST", "/tasks/bulk", SUBMITS, handler=bulk.handle, body_type=bulk.NDJSON,
        media_type=bulk.NDJSON, errors=(errors.JobNotFound, TooLarge, UnsupportedMediaType),
    ),
    Row(events.listen, "GET", "/events", READS_TASKS, handler=events.handle_listen, media_type=SSE, errors=_STREAMED),
    Row(
        events.follow, "GET", "/tasks/{id}/events", READS_TASKS, handler=events.handle_follow, media_type=SSE,
        errors=(*_OF_A_TASK, *_STREAMED),
    ),
    Row(
        output.read, "GET", "/tasks/{id}/output", READS_TASKS, handler=output_stream.handle,
        other_types=(SSE, "text/plain", "application/octet-stream"),
        errors=(*_OF_A_TASK, *_STREAMED, NotAcceptable),
    ),
)  # fmt: skip
FLEET = (
    Row(fleet.listing, "GET", "/agents", READS),
    Row(fleet.show, "GET", "/agents/{name}", READS, errors=(errors.AgentNotFound,)),
    Row(fleet.armed, "GET", "/agents/{name}/armed", READS, errors=(errors.AgentNotFound,)),
    Row(fleet.drain, "POST", "/agents/{name}/drain", ACTS, errors=(errors.AgentNotFound,)),
    Row(fleet.undrain, "POST", "/agents/{name}/undrain", ACTS, errors=(errors.AgentNotFound,)),
    Row(cluster.servers, "GET", "/servers", READS),
    Row(cluster.server, "GET", "/servers/{name}", READS, errors=(errors.ServerNotFound, errors.Conflict)),
    Row(cluster.segments, "GET", "/segments", READS),
    Row(cluster.moves, "GET", "/segments/moves", READS),
    Row(
        health.health, "GET", "/health", SCRAPES, handler=scrape.handle_health, bound=("degraded_after", "skew_limit"),
        answered=(503,),
    ),
    Row(cluster.stats, "GET", "/stats", READS),
    Row(cluster.figures, "GET", "/figures", READS, names=_RANGE),
    Row(cluster.queues, "GET", "/queues", READS),
    Row(settings.show, "GET", "/settings", READS),
    Row(settings.edit, "PATCH", "/settings", ADMIN, errors=(errors.StaleVersion,)),
)  # fmt: skip
ACCESS = (
    Row(session.show, "GET", "/session", ANY, handler=session.handle_show),
    Row(session.logout, "DELETE", "/session", ANY, handler=session.handle_logout),
    Row(access.list_tokens, "GET", "/tokens", ADMIN),
    Row(access.create_token, "POST", "/tokens", ADMIN, status=201, secret="token"),
    Row(access.revoke_token, "DELETE", "/tokens/{id}", ADMIN, errors=(errors.TokenNotFound,)),
    Row(access.create_login, "POST", "/logins", ADMIN, status=201, secret="code"),
    Row(access.list_sessions, "GET", "/sessions", ADMIN),
    Row(access.revoke_session, "DELETE", "/sessions/{id}", ADMIN, errors=(errors.NotFound,)),
    Row(access.list_audit, "GET", "/audit", ADMIN, errors=(errors.BadCursor,)),
)
PUBLIC = (
    Row(
        scrape.metrics, "GET", "/metrics", SCRAPES, base="", handler=scrape.handle_metrics, media_type="text/plain",
        other_types=("application/openmetrics-text",),
    ),
    Row(public.healthz, "GET", "/healthz", NOBODY, base="", guarded=False, handler=public.handle_health),
    Row(public.readyz, "GET", "/readyz", NOBODY, base="", guarded=False, handler=public.handle_health, answered=(503,)),
    Row(public.openapi, "GET", "/openapi.json", NOBODY, base="", handler=public.handle_openapi),
)  # fmt: skip
# Where the API is mounted in another application, people log in there.
LOGIN = (
    Row(session.login, "POST", "/session", NOBODY, handler=session.handle_login, errors=(errors.Unauthorized,)),
    *(Row(site.page, "GET", path, NOBODY, base="", handler=site.handle_page) for path in site.FILES),
)

ROWS = (*TASKS, *STREAMS, *JOBS, *SCHEDULES, *CALENDARS, *DAEMONS, *FLEET, *ACCESS, *PUBLIC, *LOGIN)
