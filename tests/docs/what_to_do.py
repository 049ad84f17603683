"""What each error code of the HTTP API means, and what to do about it: rows of docs/reference/http-errors.md."""

from __future__ import annotations

WHAT_TO_DO = {
    "malformed": "The request is not HTTP or not JSON, or its length is wrong. Correct it.",
    "unauthorized": "There is no token, or it is unknown, expired or revoked. `mainspring token create` makes one. "
    "After ten failures in a minute the address is refused for a while.",
    "access_denied": "PostgreSQL refuses the user of the server. Look at its rights: `mainspring grant`.",
    "forbidden": "The role of the token does not allow it; `role` names one that does. With a cookie also: the header "
    "`Mainspring-CSRF` is missing or wrong, or another site asks.",
    "not_found": "There is no such path, session, alert, mute, message or namespace. `/openapi.json` lists the paths.",
    "agent_not_found": "No agent of this name has been connected.",
    "alert_rule_not_found": "There is no alert rule of this name.",
    "secret_not_found": "There is no secret of this name: `GET /secrets`.",
    "secret_unavailable": "The server has no key to encrypt or decrypt the secret with; the message says which, and "
    "what to do. See [secrets](../how-to/secrets.md).",
    "channel_not_found": "There is no channel of this name.",
    "batch_not_found": "The batch never existed, retention dropped it, or it is not the token's own.",
    "rule_not_found": "There is no priority rule of this name: `GET /priority-rules`.",
    "calendar_not_found": "There is no calendar of this name.",
    "job_not_found": "There is no job of this name, or the token does not reach it.",
    "schedule_not_found": "There is no schedule or daemon of this name, or the token does not reach its job.",
    "server_not_found": "No server has this name or id.",
    "task_not_found": "The task never existed, retention dropped it, or the token does not reach its job.",
    "token_not_found": "There is no token with this number.",
    "method_not_allowed": "The path knows other methods: `allowed`, and the header `Allow`.",
    "not_acceptable": "The answer does not come in the type that `Accept` asks for.",
    "too_slow": "The request did not arrive in time: its head within 10 s, its body with no pause of 30 s. "
    "Send it again.",
    "conflict": "The thing is used, or several match. The message says by what.",
    "batch_ended": "The batch has ended or been cancelled, and takes no more tasks. Create another one.",
    "idempotency_in_progress": "The first request with this key is still under way. Send it again in a moment.",
    "invalid_transition": "The task is in a `state` that does not allow this; `allowed` names those that do. Most "
    "often it has ended meanwhile.",
    "job_in_use": "Schedules or live tasks use the job: `schedules` and `tasks` say how many.",
    "name_taken": "`If-None-Match: *` was sent, and there is one of this name. Choose another name, or leave "
    "the header out.",
    "task_exists": "The key is taken and `if_exists` is `reject`; `id` is the task that has it.",
    "stale_version": "It was changed since you read it; `version` is the present one. Read it again, and decide anew.",
    "too_large": "The body is longer than 1 MB, or an atomic stream has more than 10,000 lines. Send less at once.",
    "unsupported_media_type": "Send `application/json`, or `application/x-ndjson` to `/tasks/bulk`, without "
    "`Content-Encoding`.",
    "wrong_host": "The `Host` header names another server. Add the name to `allowed_hosts`, or set `public_url`: "
    "[serve it to others](../how-to/serve-the-api.md).",
    "bad_cursor": "The cursor is not `next` of a page of this list with these filters. Start without one.",
    "idempotency_mismatch": "The key was used for another request. Use a new one for each.",
    "validation": "The input is wrong; `field` says where, the message what to write. Nothing was written.",
    "rate_limited": "Too many requests, or too many open streams. Wait `retry_after` seconds.",
    "headers_too_large": "Request line and headers are longer than 16 kB.",
    "internal": "A bug of ours. Report it with `request_id`, under which the server's log tells more.",
    "busy": "As many requests are under way as a server carries out at once. Wait `retry_after` seconds.",
    "queue_full": "As many tasks wait as may: `limit` and `waiting`. Wait `retry_after` seconds, or add agents.",
    "no_agents": "`require_agents` was set, and no agent could run the task: `waits` says why.",
    "not_ready": "The server starts, or has lost PostgreSQL. Try again, or ask another server.",
    "schema_mismatch": "The schema of the database and this version do not fit. `mainspring migrate`.",
    "server_unavailable": "The server does not take requests now. Try again, or ask another server.",
    "stopping": "The server stops. Ask another one.",
    "store_full": "The disk of PostgreSQL is full. Free some space; then try again.",
    "store_unavailable": "PostgreSQL does not answer. The write may or may not have been done: send it again with the "
    "same `Idempotency-Key`.",
}
