-- Rescue and maintenance: attempts that were taken from an agent that lives, what each chore of the janitor came to, and
-- settings for tables whose rows change often.

-- An attempt that its task no longer belongs to, and that its agent is to stop. Told by the session's server; who comes
-- back in another session is told by what it may keep.
create table mainspring.stop_order (
    session bigint      not null,
    task_id bigint      not null,
    token   bigint      not null,
    at      timestamptz not null default mainspring.now(),
    primary key (session, token)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- How long a running task stood still before it went on: that does not count for its timeout. Null for all that never
-- stood still: the hot table pays nothing.
alter table mainspring.task add column paused_for interval;

create table mainspring.chore (
    name         text        primary key,
    runs         bigint      not null default 0,
    rows         bigint      not null default 0,
    failures     bigint      not null default 0,
    last_at      timestamptz not null,
    last_seconds real        not null,
    last_rows    bigint      not null,
    last_error   text                                -- of the last run; null: it went well
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- A lease is renewed every few seconds. Indexed, its time made each renewal touch every index of the table; the sessions
-- that live are few enough to be looked through. See decision 20 for the figures.
drop index mainspring.agent_lease_until_idx;
create index agent_living on mainspring.agent (session) where ended_at is null;
alter table mainspring.agent set (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);

-- Rows come and go, and whoever looks for the oldest walks over those that are gone: not a fifth of the table (the
-- default) may be dead, but about what one round of the janitor, or a minute of work, leaves behind.
alter table mainspring.task_key set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
alter table mainspring.dependency set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- mainspring.claim stays as it is: all its updates are in their page already, and more room only made it larger.
-- Partitions of mainspring.attempt get their settings where they are made.
