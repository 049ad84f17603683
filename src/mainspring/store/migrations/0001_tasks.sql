-- Jobs, tasks and what became of them.
-- States are numbers, their names live in model/states.py: 0 blocked, 1 pending, 2 assigned, 3 running,
-- 10 succeeded, 11 failed, 12 timed out, 13 cancelled, 14 skipped, 15 lost.

-- The one clock of everything durable. Tests replace this function to move time.
create function mainspring.now() returns timestamptz
    language sql volatile parallel safe
    as 'select clock_timestamp()';

-- An interned set of requirements: jobs that can run on the same agents share a pool.
create table mainspring.pool (
    id           integer generated always as identity primary key,
    requirements jsonb   not null unique
);

create table mainspring.job (
    id         integer     generated always as identity primary key,
    namespace  text        not null default 'default',
    name       text        not null,
    version    integer     not null default 1,
    pool       integer     not null references mainspring.pool,
    priority   smallint    not null check (priority between 0 and 9),
    definition jsonb       not null,
    created_at timestamptz not null default mainspring.now(),
    updated_at timestamptz not null default mainspring.now(),
    unique (namespace, name)
);

-- Each claim takes the next value; its tasks get tokens of 1024 times that value and more, one by one.
create sequence mainspring.claim_batch;
create sequence mainspring.task_id;

-- Live tasks only. No foreign keys: the hot table pays for each row, and enqueue() looks the job up.
create table mainspring.task (
    id          bigint      not null default nextval('mainspring.task_id') primary key,
    run_at      timestamptz not null,
    created_at  timestamptz not null,
    started_at  timestamptz,
    cancel_at   timestamptz,                     -- when somebody asked to cancel it while an agent had it
    token       bigint,                          -- fences the current attempt
    session     bigint,                          -- the agent session that holds it
    job_id      integer     not null,
    pool        integer     not null,            -- negative while blocked: out of every claim's way
    waiting_for integer     not null default 0,  -- unfinished tasks it depends on
    state       smallint    not null check (state between 0 and 3),
    priority    smallint    not null check (priority between 0 and 9),
    attempt     smallint    not null default 0,
    crashes     smallint    not null default 0,  -- attempts that ended with their agent
    args        jsonb       not null,
    checkpoint  jsonb,
    progress    jsonb,
    key         text
) with (
    fillfactor = 45,                             -- room for the claim's version of each row, which is larger
    -- Claims do not meet what has ended, so vacuum may take its time: in a hurry it takes a third of the throughput.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000, autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 2, autovacuum_vacuum_cost_limit = 400,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000
);

-- A claim changes no column that an index has, so that PostgreSQL updates the row in its page and no index at all.
-- That is why the state is not in the index: what is claimed lies below the floor that the next claim starts from.
create index task_claim on mainspring.task (pool, priority, run_at, id);
create index task_cancel on mainspring.task (id) where cancel_at is not null;

-- Finished tasks: kept by outcome and by day, so that retention drops tables and never deletes rows.
-- The row holds the attempt that ended the task; the attempts before it are in mainspring.attempt.
create table mainspring.task_history (
    id          bigint      not null,
    run_at      timestamptz not null,
    created_at  timestamptz not null,
    started_at  timestamptz,
    finished_at timestamptz not null,
    recorded_at timestamptz not null,
    token       bigint,
    session     bigint,
    job_id      integer     not null,
    pool        integer     not null,
    state       smallint    not null check (state >= 10),
    priority    smallint    not null,
    attempt     smallint    not null,
    crashes     smallint    not null,
    args        jsonb       not null,
    checkpoint  jsonb,
    progress    jsonb,
    result      jsonb,
    error_code  text,
    error       text,
    key         text
) partition by list (state);

create table mainspring.task_history_succeeded partition of mainspring.task_history
    for values in (10, 13, 14) partition by range (recorded_at);
create table mainspring.task_history_failed partition of mainspring.task_history
    for values in (11, 12, 15) partition by range (recorded_at);
create index on mainspring.task_history (id);

-- Attempts that did not end their task, and reports that came too late (error_code stale_attempt).
create table mainspring.attempt (
    task_id     bigint      not null,
    token       bigint      not null,
    number      smallint    not null,
    session     bigint,
    state       smallint    not null,
    started_at  timestamptz,
    finished_at timestamptz not null,
    recorded_at timestamptz not null,
    run_at      timestamptz not null,
    error_code  text,
    error       text
) partition by range (recorded_at);
create index on mainspring.attempt (task_id);

create table mainspring.output (
    task_id     bigint      not null,
    token       bigint      not null,
    number      integer     not null,
    stream      smallint    not null check (stream in (0, 1, 2)),
    at          timestamptz not null,
    recorded_at timestamptz not null,
    data        bytea       not null
) partition by range (recorded_at);
create index on mainspring.output (task_id, token, number);

-- Idempotency keys of submissions.
create table mainspring.task_key (
    job_id     integer     not null,
    key        text        not null,
    task_id    bigint      not null,
    expires_at timestamptz not null,
    primary key (job_id, key)
);
create index on mainspring.task_key (expires_at);

create table mainspring.dependency (
    parent bigint not null,
    child  bigint not null,
    primary key (parent, child)
);
create index on mainspring.dependency (child);

create sequence mainspring.session;

-- One row per agent session: its lease covers all the tasks it holds.
create table mainspring.agent (
    session      bigint      not null default nextval('mainspring.session') primary key,
    name         text        not null,
    slots        integer     not null,
    labels       jsonb       not null default '{}',
    process      text,                              -- who runs it, where a neighbour can see that it died
    connected_at timestamptz not null default mainspring.now(),
    lease_until  timestamptz not null,
    ended_at     timestamptz
);
create index on mainspring.agent (lease_until) where ended_at is null;

-- What a session has claimed, one row per claim: finds an agent's tasks without an index that every task would
-- pay for. May name tasks that have ended since; the task's own row is the truth.
create table mainspring.claim (
    session bigint   not null,
    batch   bigint   not null,
    tasks   bigint[] not null,
    primary key (session, batch)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
alter table mainspring.claim alter column tasks set storage external;
