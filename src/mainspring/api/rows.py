"""The rows of the table.

Next: operations/work/tasks.py
"""

from __future__ import annotations

from mainspring import errors
from mainspring.api.handlers import public, scrape, session, site
from mainspring.api.problems import NotAcceptable, UnsupportedMediaType
from mainspring.api.streams import bulk, events, lines
from mainspring.api.streams import output as output_stream
from mainspring.api.streams.sse import MEDIA_TYPE as SSE
from mainspring.api.table import ACTS, ADMIN, ANY, NOBODY, READS, READS_TASKS, SCRAPES, SUBMITS, Row
from mainspring.model.manifests.manifest import MOST_BYTES as MANIFEST_BYTES
from mainspring.operations import access, settings
from mainspring.operations.alerting import alert_rules, alerts, channels, mutes
from mainspring.operations.condition import autoscale, cluster, failing, fleet, health
from mainspring.operations.definitions import calendars, daemons, holds, jobs, rules, schedules, secrets
from mainspring.operations.manifests import manifest
from mainspring.operations.planning import backfill, coming, fired, forecast, herds, plan_times, skips, timeline
from mainspring.operations.work import batches, flows, output, tasks

_RANGE = (("start", "from"), ("end", "to"))  # `from` is a word of Python
_SUBMITS_A_TASK = (
    errors.JobNotFound, errors.TaskExists, errors.QueueFull, errors.NoAgents, errors.BatchNotFound, errors.BatchEnded,
)  # fmt: skip
_OF_A_BATCH = (errors.BatchNotFound,)
_MOVES_A_BATCH = (errors.BatchNotFound, errors.BatchEnded)
_FINDS_TASKS = (errors.JobNotFound, errors.ScheduleNotFound, errors.AgentNotFound, errors.BadCursor)
_OF_A_TASK = (errors.TaskNotFound,)
_MOVES_A_TASK = (errors.TaskNotFound, errors.InvalidTransition)
_OF_A_JOB = (errors.JobNotFound,)
_STREAMED = (errors.RateLimited,)
_OF_A_SCHEDULE = (errors.ScheduleNotFound,)

TASKS = (
    Row(tasks.submit, "POST", "/tasks", SUBMITS, status=201, body="task", waits=True, errors=_SUBMITS_A_TASK),
    Row(flows.submit, "POST", "/tasks/flow", SUBMITS, status=201, errors=_SUBMITS_A_TASK),
    Row(tasks.listing, "GET", "/tasks", READS_TASKS, errors=_FINDS_TASKS),
    Row(tasks.count, "GET", "/tasks/count", READS_TASKS, errors=_FINDS_TASKS),
    Row(tasks.show, "GET", "/tasks/{id}", READS_TASKS, errors=_OF_A_TASK, waits=True),
    Row(tasks.status, "GET", "/tasks/{id}/status", READS_TASKS, errors=_OF_A_TASK),
    Row(tasks.attempts, "GET", "/tasks/{id}/attempts", READS_TASKS, errors=(*_OF_A_TASK, errors.BadCursor)),
    Row(tasks.children, "GET", "/tasks/{id}/children", READS_TASKS, errors=(*_OF_A_TASK, errors.BadCursor)),
    Row(flows.of_task, "GET", "/tasks/{id}/flow", READS_TASKS, errors=_OF_A_TASK),
    Row(tasks.change, "PATCH", "/tasks/{id}", ACTS, errors=_MOVES_A_TASK),
    Row(tasks.act, "POST", "/actions/tasks", ACTS, errors=_FINDS_TASKS),
    Row(tasks.cancel, "POST", "/tasks/{id}/cancel", SUBMITS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.cancel, "DELETE", "/tasks/{id}", SUBMITS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.skip, "POST", "/tasks/{id}/skip", SUBMITS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.retry, "POST", "/tasks/{id}/retry", ACTS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.pause, "POST", "/tasks/{id}/pause", ACTS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.resume, "POST", "/tasks/{id}/resume", ACTS, status=202, errors=_MOVES_A_TASK),
    Row(tasks.restart, "POST", "/tasks/{id}/restart", ACTS, status=202, errors=_MOVES_A_TASK),
)
BATCHES = (
    Row(
        batches.create,
        "POST",
        "/batches",
        SUBMITS,
        status=201,
        body="batch",
        errors=(errors.JobNotFound, *_MOVES_A_BATCH),
    ),
    Row(batches.listing, "GET", "/batches", READS_TASKS, errors=(errors.BadCursor,)),
    Row(batches.show, "GET", "/batches/{id}", READS_TASKS, errors=_OF_A_BATCH),
    Row(flows.of_batch, "GET", "/batches/{id}/flow", READS_TASKS, errors=_OF_A_BATCH),
    Row(batches.close, "POST", "/batches/{id}/close", SUBMITS, errors=_OF_A_BATCH),
    Row(batches.cancel, "POST", "/batches/{id}/cancel", SUBMITS, status=202, errors=_MOVES_A_BATCH),
    Row(batches.retry, "POST", "/batches/{id}/retry", ACTS, status=202, errors=_OF_A_BATCH),
)
_CHANGES_A_JOB = (errors.JobNotFound, errors.NameTaken, errors.StaleVersion)
JOBS = (
    Row(jobs.listing, "GET", "/jobs", READS, errors=(errors.JobNotFound, errors.BadCursor)),
    Row(jobs.show, "GET", "/jobs/{name}", READS, errors=_OF_A_JOB),
    Row(jobs.put, "PUT", "/jobs/{name}", ADMIN, body="definition", errors=_CHANGES_A_JOB),
    Row(jobs.edit, "PATCH", "/jobs/{name}", ADMIN, body="change", errors=_CHANGES_A_JOB),
    Row(holds.hold_job, "POST", "/jobs/{name}/hold", ACTS, errors=_OF_A_JOB),
    Row(holds.release_job, "POST", "/jobs/{name}/release", ACTS, errors=_OF_A_JOB),
    Row(jobs.delete, "DELETE", "/jobs/{name}", ADMIN, errors=(*_CHANGES_A_JOB, errors.JobInUse)),
)
_CHANGES_A_SCHEDULE = (errors.JobNotFound, errors.ScheduleNotFound, errors.NameTaken, errors.StaleVersion)
_NAMES_SCHEDULES = (errors.JobNotFound, errors.ScheduleNotFound)
_FILTERS_SCHEDULES = (*_NAMES_SCHEDULES, errors.NotFound)  # no schedule is of such an app
_FINDS_SCHEDULES = (*_FILTERS_SCHEDULES, errors.BadCursor)
_OF_SCOPES = (errors.ScheduleNotFound, errors.Conflict)  # it has no such scope
_MOVES_A_SCHEDULE = (errors.ScheduleNotFound, errors.InvalidTransition)
SCHEDULES = (
    Row(schedules.listing, "GET", "/schedules", READS, errors=_FINDS_SCHEDULES),
    Row(schedules.count, "GET", "/schedule-count", READS, errors=_FILTERS_SCHEDULES),
    Row(schedules.show, "GET", "/schedules/{name}", READS, errors=_OF_A_SCHEDULE),
    Row(schedules.put, "PUT", "/schedules/{name}", ADMIN, body="spec", errors=_CHANGES_A_SCHEDULE),
    Row(schedules.edit, "PATCH", "/schedules/{name}", ADMIN, body="change", errors=_CHANGES_A_SCHEDULE),
    Row(schedules.delete, "DELETE", "/schedules/{name}", ADMIN, errors=_CHANGES_A_SCHEDULE),
    Row(schedules.enable, "POST", "/schedules/{name}/enable", ACTS, errors=_OF_A_SCHEDULE),
    Row(schedules.disable, "POST", "/schedules/{name}/disable", ACTS, errors=_OF_A_SCHEDULE),
    Row(schedules.run, "POST", "/schedules/{name}/run", ACTS, errors=_OF_SCOPES),
    Row(skips.skip, "POST", "/schedules/{name}/skip", ACTS, errors=_MOVES_A_SCHEDULE),
    Row(skips.unskip, "POST", "/schedules/{name}/unskip", ACTS, errors=_MOVES_A_SCHEDULE),
    Row(schedules.act, "POST", "/actions/schedules", ACTS, errors=_FINDS_SCHEDULES),
    Row(plan_times.fires, "GET", "/schedules/{name}/fires", READS, errors=(*_OF_A_SCHEDULE, errors.BadCursor)),
    Row(plan_times.slo, "GET", "/schedules/{name}/slo", READS, errors=(*_OF_A_SCHEDULE, errors.Conflict)),
    Row(plan_times.explain, "GET", "/schedules/{name}/explain", READS, errors=_OF_A_SCHEDULE),
    Row(plan_times.next_times, "GET", "/schedules/{name}/next", READS, computes=True, errors=_OF_A_SCHEDULE),
    Row(plan_times.preview, "POST", "/preview", READS, computes=True, body="spec"),
    Row(
        plan_times.check,
        "GET",
        "/check",
        READS,
        handler=lines.handle,
        other_types=(bulk.NDJSON,),
        computes=True,
        bound=("keep",),
        errors=(*_OF_A_SCHEDULE, errors.BadCursor, *_STREAMED),
    ),
    Row(backfill.step, "POST", "/schedules/{name}/backfill", ACTS, names=_RANGE, errors=_OF_SCOPES),
    Row(forecast.forecast, "GET", "/forecast", READS, computes=True, names=_RANGE),
    Row(
        timeline.show,
        "GET",
        "/timeline",
        READS,
        computes=True,
        bound=("keep",),
        names=_RANGE,
        errors=_OF_A_SCHEDULE,
    ),
    Row(coming.next_fires, "GET", "/fires/next", READS),
    Row(coming.missed, "GET", "/fires/missed", READS),
    Row(coming.strips, "GET", "/strips", READS, errors=_OF_A_SCHEDULE),
    Row(herds.cell, "GET", "/forecast/cell", READS, computes=True),
    Row(herds.spread, "POST", "/forecast/spread", READS, computes=True),
    Row(fired.fired, "GET", "/fired", READS, computes=True, names=_RANGE),
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
        media_type=bulk.NDJSON, errors=(errors.JobNotFound, errors.TooLarge, UnsupportedMediaType),
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
    Row(fleet.listing, "GET", "/agents", READS, errors=(errors.BadCursor,)),
    Row(fleet.show, "GET", "/agents/{name}", READS, errors=(errors.AgentNotFound,)),
    Row(fleet.armed, "GET", "/agents/{name}/armed", READS, errors=(errors.AgentNotFound,)),
    Row(fleet.sessions, "GET", "/agents/{name}/sessions", READS, errors=(errors.AgentNotFound, errors.BadCursor)),
    Row(fleet.armed_fleet, "GET", "/armed", READS),
    Row(fleet.drain, "POST", "/agents/{name}/drain", ACTS, errors=(errors.AgentNotFound,)),
    Row(fleet.undrain, "POST", "/agents/{name}/undrain", ACTS, errors=(errors.AgentNotFound,)),
    Row(cluster.servers, "GET", "/servers", READS, errors=(errors.BadCursor,)),
    Row(cluster.server, "GET", "/servers/{name}", READS, errors=(errors.ServerNotFound, errors.Conflict)),
    Row(cluster.segments, "GET", "/segments", READS),
    Row(cluster.moves, "GET", "/segments/moves", READS, errors=(errors.BadCursor,)),
    Row(
        health.health, "GET", "/health", SCRAPES, handler=scrape.handle_health, bound=("degraded_after", "skew_limit"),
        answered=(503,), offline=True,
    ),
    Row(cluster.postgresql, "GET", "/postgresql", READS),
    Row(cluster.stats, "GET", "/stats", READS),
    Row(cluster.figures, "GET", "/figures", READS, computes=True, names=_RANGE, errors=_NAMES_SCHEDULES),
    Row(cluster.punctuality, "GET", "/punctuality", READS),
    Row(cluster.job_figures, "GET", "/figures/jobs", READS, computes=True, errors=(errors.JobNotFound,)),
    Row(cluster.queues, "GET", "/queues", READS, errors=(errors.BadCursor,)),
    Row(failing.failing, "GET", "/failing", READS),
    Row(autoscale.autoscale, "GET", "/autoscale", READS),
    Row(holds.show, "GET", "/hold", READS),
    Row(holds.hold, "POST", "/hold", ACTS),
    Row(holds.release, "POST", "/release", ACTS),
    Row(settings.show, "GET", "/settings", READS),
    Row(settings.edit, "PATCH", "/settings", ADMIN, body="change", errors=(errors.StaleVersion,)),
)  # fmt: skip
_CHANGES_AN_ALERT_RULE = (errors.AlertRuleNotFound, errors.NameTaken, errors.StaleVersion)
_PUTS_AN_ALERT_RULE = (*_CHANGES_AN_ALERT_RULE, errors.ChannelNotFound, errors.CalendarNotFound)
_CHANGES_A_CHANNEL = (errors.ChannelNotFound, errors.NameTaken, errors.StaleVersion)
ALERTS = (
    Row(alerts.listing, "GET", "/alerts", READS, errors=(errors.AlertRuleNotFound, errors.BadCursor)),
    Row(alerts.show, "GET", "/alerts/{id}", READS, errors=(errors.NotFound,)),
    Row(alerts.list_deliveries, "GET", "/deliveries", READS, errors=(errors.ChannelNotFound, errors.BadCursor)),
    Row(alerts.show_delivery, "GET", "/deliveries/{id}", READS, errors=(errors.NotFound,)),
    Row(alert_rules.kinds, "GET", "/alert-kinds", READS),
    Row(alert_rules.listing, "GET", "/alert-rules", READS, errors=(errors.BadCursor,)),
    Row(alert_rules.show, "GET", "/alert-rules/{name}", READS, errors=(errors.AlertRuleNotFound,)),
    Row(alert_rules.put, "PUT", "/alert-rules/{name}", ADMIN, body="spec", errors=_PUTS_AN_ALERT_RULE),
    Row(alert_rules.edit, "PATCH", "/alert-rules/{name}", ADMIN, body="change", errors=_PUTS_AN_ALERT_RULE),
    Row(alert_rules.delete, "DELETE", "/alert-rules/{name}", ADMIN, errors=_CHANGES_AN_ALERT_RULE),
    Row(alert_rules.evaluate, "POST", "/alert-rules/{name}/test", READS, errors=(errors.AlertRuleNotFound,)),
    Row(channels.listing, "GET", "/channels", READS, errors=(errors.BadCursor,)),
    Row(channels.show, "GET", "/channels/{name}", READS, errors=(errors.ChannelNotFound,)),
    Row(channels.put, "PUT", "/channels/{name}", ADMIN, body="spec", secret="secret", errors=_CHANGES_A_CHANNEL),
    Row(channels.edit, "PATCH", "/channels/{name}", ADMIN, body="change", secret="secret", errors=_CHANGES_A_CHANNEL),
    Row(channels.delete, "DELETE", "/channels/{name}", ADMIN, errors=_CHANGES_A_CHANNEL),
    Row(channels.send_test, "POST", "/channels/{name}/test", ACTS, status=202, errors=(errors.ChannelNotFound,)),
    Row(mutes.listing, "GET", "/mutes", READS),
    Row(mutes.create, "POST", "/mutes", ACTS, status=201),
    Row(mutes.delete, "DELETE", "/mutes/{id}", ACTS, errors=(errors.NotFound,)),
)
_CHANGES_A_RULE = (errors.RuleNotFound, errors.NameTaken, errors.StaleVersion)
RULES = (
    Row(rules.listing, "GET", "/priority-rules", READS),
    Row(rules.show, "GET", "/priority-rules/{name}", READS, errors=(errors.RuleNotFound,)),
    Row(rules.put, "PUT", "/priority-rules/{name}", ADMIN, body="rule", errors=_CHANGES_A_RULE),
    Row(rules.delete, "DELETE", "/priority-rules/{name}", ADMIN, errors=_CHANGES_A_RULE),
    Row(rules.explain, "POST", "/priority-rules/test", READS, errors=_OF_A_JOB),
)
_CHANGES_A_SECRET = (errors.SecretNotFound, errors.StaleVersion)
_ENCRYPTS = (errors.SecretUnavailable,)
SECRETS = (
    Row(secrets.listing, "GET", "/secrets", READS, errors=(errors.BadCursor,)),
    Row(secrets.show, "GET", "/secrets/{name}", READS, errors=(errors.SecretNotFound,)),
    Row(
        secrets.put, "PUT", "/secrets/{name}", ADMIN, bound=("keys",),
        errors=(*_CHANGES_A_SECRET, errors.NameTaken, *_ENCRYPTS),
    ),
    Row(secrets.delete, "DELETE", "/secrets/{name}", ADMIN, errors=(*_CHANGES_A_SECRET, errors.Conflict)),
    Row(secrets.rotate, "POST", "/actions/secrets/rotate", ADMIN, bound=("keys",), errors=_ENCRYPTS),
)  # fmt: skip
# A set of ten thousand schedules is some megabytes of JSON, and takes some seconds.
_LONG = 60.0  # seconds
_COMPARES = (errors.JobNotFound, errors.ScheduleNotFound, errors.CalendarNotFound, errors.NameTaken, errors.Conflict)
MANIFESTS = (
    Row(
        manifest.plan,
        "POST",
        "/manifest/plan",
        READS,
        computes=True,
        reads=True,
        errors=_COMPARES,
        most_bytes=MANIFEST_BYTES,
        longest=_LONG,
        frees=True,
    ),
    Row(
        manifest.apply,
        "POST",
        "/manifest/apply",
        ADMIN,
        errors=(*_COMPARES, errors.StaleVersion, errors.JobInUse),
        most_bytes=MANIFEST_BYTES,
        longest=_LONG,
        frees=True,
    ),
    Row(
        manifest.export,
        "GET",
        "/manifest",
        READS,
        computes=True,
        names=(("set_name", "set"),),
        errors=(errors.NotFound,),
        frees=True,
    ),
)
ACCESS = (
    Row(session.show, "GET", "/session", ANY, handler=session.handle_show),
    Row(session.logout, "DELETE", "/session", ANY, handler=session.handle_logout),
    Row(access.list_tokens, "GET", "/tokens", ADMIN, errors=(errors.BadCursor,)),
    Row(access.create_token, "POST", "/tokens", ADMIN, status=201, secret="token"),
    Row(access.revoke_token, "DELETE", "/tokens/{id}", ADMIN, errors=(errors.TokenNotFound,)),
    Row(access.create_login, "POST", "/logins", ADMIN, status=201, secret="code"),
    Row(access.list_sessions, "GET", "/sessions", ADMIN, errors=(errors.BadCursor,)),
    Row(access.revoke_session, "DELETE", "/sessions/{id}", ADMIN, errors=(errors.NotFound,)),
    Row(access.list_audit, "GET", "/audit", ADMIN, errors=(errors.BadCursor,)),
)
PUBLIC = (
    Row(
        scrape.metrics, "GET", "/metrics", SCRAPES, base="", handler=scrape.handle_metrics, media_type="text/plain",
        other_types=("application/openmetrics-text",), offline=True,
    ),
    Row(public.healthz, "GET", "/healthz", NOBODY, base="", guarded=False, handler=public.handle_health),
    Row(public.readyz, "GET", "/readyz", NOBODY, base="", guarded=False, handler=public.handle_health, answered=(503,)),
    Row(public.openapi, "GET", "/openapi.json", NOBODY, base="", handler=public.handle_openapi),
)  # fmt: skip
CONSOLE = (
    *(Row(site.page, "GET", path, NOBODY, base="", handler=site.handle_page) for path in site.PATHS),
    Row(site.file, "GET", "/static/{name}", NOBODY, base="", handler=site.handle_file),
)
# Where the API is mounted in another application, people log in there.
LOGIN = (
    Row(session.login, "POST", "/session", NOBODY, handler=session.handle_login, errors=(errors.Unauthorized,)),
    Row(site.page, "GET", "/login", NOBODY, base="", handler=site.handle_page),
)

ROWS = (
    *TASKS, *BATCHES, *STREAMS, *JOBS, *SCHEDULES, *CALENDARS, *DAEMONS, *RULES, *SECRETS, *MANIFESTS, *FLEET, *ALERTS,
    *ACCESS, *PUBLIC, *CONSOLE, *LOGIN,
)  # fmt: skip
