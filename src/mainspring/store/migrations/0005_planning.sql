-- What the planner needs: versions of schedules, a cursor with a time to look, the ledger by day, calendars,
-- and on each task the plan time it stands for.

alter table mainspring.schedule
    add column app          text,                       -- the application whose code defines it; null: made by hand
    add column app_version  integer     not null default 0,
    add column code         jsonb,                      -- what that code said last
    add column synced_at    timestamptz,                -- when it last said so
    add column provider_app text,                       -- the application that tells its scopes
    add column since        timestamptz not null default mainspring.now(),   -- from when this version counts
    add column look_at      timestamptz,                -- when a planner looks at it next; null: nothing to plan
    add column runs         bigint      not null default 0,    -- plan times that got a task
    add column problem      text;                       -- why it cannot be planned just now
comment on column mainspring.schedule.next_plan_at is 'all plan times from here on are undecided';

drop index mainspring.schedule_next_plan_at_idx;
create index schedule_look on mainspring.schedule (look_at) where look_at is not null;
create index schedule_job on mainspring.schedule (job_id);
alter table mainspring.schedule set (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- When each application last said what it has: a schedule that it did not name then is gone from its code.
create table mainspring.app (
    name      text        primary key,
    synced_at timestamptz not null
);

-- Versions that count no more, so that a plan time can be told by what was in force then.
create table mainspring.schedule_version (
    schedule_id integer     not null references mainspring.schedule on delete cascade,
    version     integer     not null,
    since       timestamptz not null,
    until       timestamptz not null,
    enabled     boolean     not null,
    kind        text        not null,
    expression  text        not null,
    timezone    text        not null,
    policies    jsonb       not null,
    primary key (schedule_id, version)
);

create function mainspring.keep_version() returns trigger
    language plpgsql
as $$
begin
    insert into mainspring.schedule_version
        (schedule_id, version, since, until, enabled, kind, expression, timezone, policies)
    values (old.id, old.version, old.since, new.since, old.enabled, old.kind, old.expression, old.timezone,
            old.policies);
    return new;
end
$$;
create trigger keep_version before update on mainspring.schedule
    for each row when (new.version <> old.version) execute function mainspring.keep_version();

create table mainspring.calendar (
    namespace  text        not null default 'default',
    name       text        not null,
    days       text[]      not null,                    -- 2026-12-25, 12-25 of every year, sun
    is_spread  boolean     not null default false,      -- whether all schedules that use it have these days
    updated_at timestamptz not null default mainspring.now(),
    primary key (namespace, name)
);

-- The ledger by day of the plan time. What lies outside the days there are, such as a backfill of long ago,
-- goes to the default partition. The primary key makes double planning impossible.
drop table mainspring.fire;
create table mainspring.fire (
    schedule_id integer     not null,
    plan_time   timestamptz not null,
    scope       text        not null default '',
    task_id     bigint,
    reason      text        check (reason in ('overlap', 'paused', 'misfire', 'coalesced', 'no_scopes')),
    origin      text        not null default 'plan' check (origin in ('plan', 'backfill', 'manual')),
    decided_at  timestamptz not null default mainspring.now(),
    primary key (schedule_id, plan_time, scope),
    check ((task_id is null) <> (reason is null))
) partition by range (plan_time);
create table mainspring.fire_default partition of mainspring.fire default;

alter table mainspring.task
    add column schedule_id integer,
    add column plan_time   timestamptz,
    add column scope       text,
    add column origin      text     check (origin in ('plan', 'backfill', 'manual')),
    add column cancel_mode smallint check (cancel_mode in (1, 2));   -- 1: only if it has not started, 2: without grace
alter table mainspring.task_history
    add column schedule_id integer,
    add column plan_time   timestamptz,
    add column scope       text,
    add column origin      text;

-- No state in these either (see task_claim): a task that waits for its turn has a negative pool.
create index task_schedule on mainspring.task (schedule_id, scope, plan_time) where schedule_id is not null;
create index task_turn on mainspring.task (schedule_id, scope, plan_time) where schedule_id is not null and pool < 0;
