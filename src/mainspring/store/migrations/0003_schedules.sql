-- When jobs run, and the ledger of every decided plan time.

create table mainspring.schedule (
    id           integer     generated always as identity primary key,
    namespace    text        not null default 'default',
    name         text        not null,
    job_id       integer     not null references mainspring.job,
    kind         text        not null check (kind in ('cron', 'every', 'once', 'daemon')),
    expression   text        not null,
    timezone     text        not null default 'UTC',
    policies     jsonb       not null default '{}',
    enabled      boolean     not null default false,
    segment      smallint    not null check (segment between 0 and 99),
    next_plan_at timestamptz,                       -- the cursor; null: nothing more to plan
    version      integer     not null default 1,
    created_at   timestamptz not null default mainspring.now(),
    updated_at   timestamptz not null default mainspring.now(),
    unique (namespace, name)
);
create index on mainspring.schedule (next_plan_at) where enabled;

-- The primary key makes double planning impossible.
create table mainspring.fire (
    schedule_id integer     not null,
    scope       text        not null default '',
    plan_time   timestamptz not null,
    task_id     bigint,
    reason      text check (reason in ('overlap', 'paused', 'misfire', 'coalesced')),
    decided_at  timestamptz not null default mainspring.now(),
    primary key (schedule_id, scope, plan_time),
    check ((task_id is null) <> (reason is null))
);
