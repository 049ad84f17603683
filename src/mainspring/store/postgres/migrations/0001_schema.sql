-- The schema of Mainspring, in reading order:
--    1 clock and installation      2 jobs and pools     3 tasks       4 history     5 keys and dependencies
--    6 limits                      7 submission         8 schedules   9 daemons    10 agents and claims
--   11 servers, segments, leader  12 access            13 settings and maintenance       14 figures
--   15 alerts                     16 batches          17 what a producer sees
--
-- SQL has no names for numbers. These numbers are part of the schema and do not change:
--   state         live (mainspring.task): 0 blocked, 1 pending, 2 assigned, 3 running
--                 final (mainspring.task_history): 10 succeeded, 11 failed, 12 timed out, 13 cancelled, 14 skipped,
--                 15 lost
--   priority      0 to 9, higher first: 2 low, 5 normal, 7 high, 9 critical
--   cancel_mode   null: stop with grace, 1 recall: only if it has not started, 2 kill: stop without grace,
--                 3 restart: stop and run again, which costs no attempt
--   pool          the kind of pool that a task is in:
--                   > 0, target is null      served: agents claim from it
--                   > 0, target is not null  gated: waits for the limits of its job
--                   < 0                      blocked: waits for dependencies or its turn; -pool is where it goes next
--                   0                        daemon: a replica, which no claim of the dispatcher takes
--                   2147483647               parked: waits for a slot or for the rate of its concurrency key
--   batch.state   0 open, 1 closed, 2 ended
--   token         2048 × claim batch + position in the batch
--   segment       0 to 99; of a schedule: its column; of a task: id modulo 100
-- model/tasks/states.py names the states and cancel modes, model/tasks/pools.py the kinds of pool.
--
-- No name in a function may depend on the search path of its caller, who could define an operator or a table of that
-- name. So each function in plpgsql sets search_path = pg_catalog, pg_temp and qualifies what is ours, and each one in
-- SQL has a body (`return`, `begin atomic`) whose names are resolved when it is created. tests/store/test_functions.py
-- checks it. No function is open to PUBLIC: see the end of this file.


-- 1 Clock and installation ------------------------------------------------------------------------------------------

-- The clock for everything durable. Tests replace this function to move time.
create function mainspring.now() returns timestamptz
    language sql volatile parallel safe
    return clock_timestamp();

-- The id of this database, part of every idempotency key that a handler sees: task 1 here and task 1 of another
-- database must have different keys. A dump carries it along; `restore --renew-id` replaces it.
create table mainspring.installation (
    id      uuid    not null default gen_random_uuid(),
    the_one boolean not null default true primary key check (the_one)   -- allows one row
);
insert into mainspring.installation default values;


-- 2 Jobs and pools --------------------------------------------------------------------------------------------------

-- An interned set of requirements. Jobs that can run on the same agents share a pool, so one claim serves one pool, and
-- a pool without a fitting agent does not hold up another.
create table mainspring.pool (
    id           integer generated always as identity primary key,
    requirements jsonb   not null unique,
    target       integer references mainspring.pool,   -- set: gated; its tasks move to this pool when they get a slot
    gating_since xid8                                  -- set: tasks that belong here may still wait in the target
);
create index pool_gate on mainspring.pool (id) where target is not null;

-- Requirements are labels by name. Names that begin with "@" are no labels: "@needs", "@prefer", "@strategy", "@sticky"
-- and "@broadcast" hold the placement (model/placement/placement.py), "@gate" marks a gated pool.
comment on column mainspring.pool.requirements is 'labels, and under names that begin with @ the placement';

-- The labels among a pool's requirements.
create function mainspring.labels(requirements jsonb) returns jsonb
    language sql immutable parallel safe
begin atomic
    select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(requirements) where key not like '@%';
end;

create table mainspring.job (
    id         integer     generated always as identity primary key,
    namespace  text        not null default 'default',
    name       text        not null,
    version    integer     not null default 1,
    pool       integer     not null references mainspring.pool,   -- of its new tasks; gated if the job has limits
    priority   smallint    not null check (priority between 0 and 9),
    definition jsonb       not null,
    created_at timestamptz not null default mainspring.now(),
    updated_at timestamptz not null default mainspring.now(),
    held       timestamptz,                              -- set: mainspring.hold has its row, and its pool is gated
    app        text,                                     -- the application whose code defines it; null: none does
    manifest   text,                                     -- the set of manifests that owns it; null: none does

    -- What its submissions are checked against, so that one look-up finds all of it: fill_checks() copies it from the
    -- definition, the priority rules and the settings. All null for most jobs, which then pay nothing.
    is_checked  boolean  not null default false,   -- whether any of these is set
    expires     interval,                          -- after its time a task that has not started is skipped
    max_queued  integer,                           -- tasks that may wait
    max_in_all  integer,                           -- the same of all jobs together
    rule_when   jsonpath[],                        -- priority rules for it: the first that fits decides
    rule_level  smallint[],                        -- what each gives: a priority,
    rule_shift  smallint[],                        -- or so many levels more or less
    rule_force  boolean[],                         -- also where the submission gave a priority
    rule_option jsonb[],                           -- {"rule": its name}, for the options of the task
    rule_fields text[],                            -- what they look at besides arguments and tags; null: nothing
    unique (namespace, name)
) with (toast_tuple_target = 8160);                -- rules are not compressed: each submission would unpack them

-- Holds: nothing of a held job is dispatched, or nothing at all. Claims read this table in every statement: it has a row
-- for each hold and is mostly empty. A released hold stays until what waited has been let go, bit by bit.
create table mainspring.hold (
    job_id      integer     references mainspring.job on delete cascade,    -- null: everything
    held_at     timestamptz not null,
    held_by     text        not null,
    note        text,
    skips       boolean     not null,            -- plan times are decided as paused meanwhile
    released_at timestamptz,                     -- null: it is in force
    spread_until timestamptz,                    -- what waited at its release is spread up to then
    waiting     bigint                           -- how many tasks that were
);
create unique index hold_job on mainspring.hold (coalesce(job_id, 0));


-- 3 Tasks -----------------------------------------------------------------------------------------------------------

-- Each claim takes the next batch; its tasks get the tokens 2048 × batch, 2048 × batch + 1, and so on. So the tokens of
-- a task strictly increase, at the price of one sequence value per claim.
-- Both end where other languages would read the numbers wrong: ids and tokens stay below 2^53.
create sequence mainspring.claim_batch maxvalue 4398046511103;       -- 2^53 / 2048 - 1
create sequence mainspring.task_id maxvalue 9007199254740991;

-- Live tasks only; an ended task moves to mainspring.task_history. No foreign keys: this is the hot table, every row
-- would pay for them, and enqueue() looks the job up anyway. Columns that are never null stand first, widest first to
-- avoid padding, then those that a claim sets: from the first null on, PostgreSQL computes where each column of each row
-- begins. Columns that few tasks use are null in all others, which costs nothing. Constraints name no lists: PostgreSQL
-- parses the stored text of each one in every statement that writes a row, and a list is long in it.
create table mainspring.task (
    id              bigint      not null default nextval('mainspring.task_id') primary key,
    run_at          timestamptz not null,
    created_at      timestamptz not null,
    job_id          integer     not null,
    pool            integer     not null,            -- see the head of this file
    waiting_for     integer     not null default 0,  -- unfinished tasks it depends on
    state           smallint    not null check (state between 0 and 3),       -- blocked to running
    priority        smallint    not null check (priority between 0 and 9),
    attempt         smallint    not null default 0,
    crashes         smallint    not null default 0,  -- attempts that ended with their agent
    token           bigint,                          -- fences the current attempt
    session         bigint,                          -- the agent session that holds it
    args            jsonb       not null,
    started_at      timestamptz,
    cancel_at       timestamptz,                     -- when its cancellation was requested while an agent held it
    paused_at       timestamptz,                     -- since when its processes are to be paused
    paused_for      interval,                        -- time spent paused before; does not count towards its timeout
    cancel_mode     smallint    check (cancel_mode between 1 and 3),          -- recall, kill, restart
    checkpoint      jsonb,
    progress        jsonb,
    key             text,                            -- idempotency key of its submission

    -- Planned by a schedule: which plan time it stands for.
    plan_time       timestamptz,
    schedule_id     integer,
    scope           text,                            -- of a replica: its number
    origin          text,                            -- plan, backfill, manual, daemon

    -- Replica of a daemon.
    generation      integer,                         -- the generation of its schedule that it runs or is about to run
    restarts        integer,
    failures        smallint,                        -- short lives in a row; null: none
    healthy         boolean,                         -- result of its health check; null: not known

    -- Part of a broadcast.
    parent_id       bigint,                          -- the broadcast
    target          text,                            -- name of the only agent that may run it

    -- Under a limit. A slot is held by the row itself, so it is freed with the row and cannot leak.
    gate            integer,                         -- the gated pool that it passed or is parked for; it returns there
    job_slot        integer,
    key_slot        smallint,
    key_given       boolean,                         -- true: the submission named the key; else the job's template did
    concurrency_key text,                            -- see key_within()

    submitted_by    text,                            -- the role that submitted it; null: the schema's owner, a schedule, a server
    batch_id        bigint,                          -- see 15
    expires_at      timestamptz,                     -- start deadline: it is skipped if it has not started by then
    is_bounded      boolean,                         -- true: counts towards the max_queued of its job
    options         jsonb,                           -- what few tasks have: model/flows/options.py

    -- The kind of pool and the state go together: what is blocked is in a blocked pool, what is parked is pending. (A run
    -- of a broadcast stays in a blocked pool in all its states.) Only columns at the start of the row: each claim and each
    -- start pays for the check.
    constraint task_pool_check check ((state > 0 or pool < 0) and (pool < 2147483647 or state = 1))
) with (
    fillfactor = 45,                             -- room in the page for the row that a claim writes, which is larger
    -- Claims do not scan ended tasks, so vacuum need not hurry; a fast vacuum costs a third of the throughput.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000, autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 2, autovacuum_vacuum_cost_limit = 400,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000
);

-- A claim changes no indexed column, so PostgreSQL writes the new row into the same page and touches no index (HOT).
-- Therefore no index of this table contains the state. The next claim skips claimed tasks because they lie below the
-- floor that it starts from.
create index task_claim on mainspring.task (pool, priority, run_at, id);
create index task_cancel on mainspring.task (id) where cancel_at is not null;
create index task_schedule on mainspring.task (schedule_id, scope, plan_time) where schedule_id is not null;
-- Tasks that wait for their turn (overlap policy) are in a negative pool.
create index task_overlap on mainspring.task (schedule_id, scope, plan_time) where schedule_id is not null and pool < 0;
-- Tasks of schedules that wait for another schedule, or for its tasks.
create index task_after on mainspring.task (id) where schedule_id is not null and waiting_for > 0;
create unique index task_replica on mainspring.task (schedule_id, scope) where origin = 'daemon';
create index task_paused on mainspring.task (id) where paused_at is not null;
create index task_parent on mainspring.task (parent_id) where parent_id is not null;
-- These two enforce the limits, whatever a server believes: no two live tasks hold the same slot.
create unique index task_job_slot on mainspring.task (job_id, job_slot) where job_slot is not null;
create unique index task_key_slot on mainspring.task (concurrency_key, key_slot) where key_slot is not null;
-- Parked tasks by key, in the order in which they are released. `+ 0`, here and where they are searched: with a plain
-- `pool = `, the planner sometimes took task_claim, and read and sorted all that are parked for the first of one key.
create index task_parked on mainspring.task (concurrency_key, priority desc, run_at, id) where pool + 0 = 2147483647;
create index task_expires on mainspring.task (expires_at) where expires_at is not null;
create index task_bounded on mainspring.task (job_id, id) where is_bounded;
create index task_batch on mainspring.task (batch_id, id) where batch_id is not null;


-- 4 History ---------------------------------------------------------------------------------------------------------
-- Partitioned by day: retention drops tables and never deletes rows. The janitor makes the partitions of the next days
-- (store/tasks/partitions.py).

-- Ended tasks. The row holds the attempt that ended the task; earlier attempts are in mainspring.attempt. Partitioned
-- by outcome first, because failures are kept longer.
create table mainspring.task_history (
    id              bigint      not null,
    run_at          timestamptz not null,
    created_at      timestamptz not null,
    started_at      timestamptz,
    finished_at     timestamptz not null,
    recorded_at     timestamptz not null,            -- when this row was written; selects the partition
    token           bigint,
    session         bigint,
    job_id          integer     not null,
    pool            integer     not null,
    state           smallint    not null check (state >= 10),   -- succeeded or another final state
    priority        smallint    not null,
    attempt         smallint    not null,
    crashes         smallint    not null,
    armed_ahead     real,                            -- seconds before run_at that its agent had it; negative: after it
    exit_code       integer,                         -- of a command that failed; negative: the signal that ended it
    args            jsonb       not null,
    checkpoint      jsonb,
    progress        jsonb,
    result          jsonb,
    -- transaction() completes a task before its handler returns. True: the result is still to come. Null: it will never
    -- come, because the handler failed after the commit.
    result_due      boolean     default false,
    error_code      text,
    error           text,
    key             text,

    -- As in mainspring.task.
    plan_time       timestamptz,
    schedule_id     integer,
    scope           text,
    origin          text,
    parent_id       bigint,
    target          text,
    key_given       boolean,
    concurrency_key text,
    submitted_by    text,
    batch_id        bigint,
    options         jsonb
) partition by list (state);

create table mainspring.task_history_succeeded partition of mainspring.task_history
    for values in (10, 13, 14) partition by range (recorded_at);     -- succeeded, cancelled, skipped
create table mainspring.task_history_failed partition of mainspring.task_history
    for values in (11, 12, 15) partition by range (recorded_at);     -- failed, timed out, lost
create index on mainspring.task_history (id);
-- For searches by the time of their end. Rows come in this order, so one small entry stands for many pages. An index on
-- (job_id, id) costs more than it is worth: decision 40.
create index task_history_recorded on mainspring.task_history using brin (recorded_at)
    with (pages_per_range = 32, autosummarize = on);
create index task_history_parent on mainspring.task_history (parent_id) where parent_id is not null;
create index task_history_batch on mainspring.task_history (batch_id, id) where batch_id is not null;

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
    armed_ahead real,
    exit_code   integer,
    error_code  text,
    error       text
) partition by range (recorded_at);
create index on mainspring.attempt (task_id, token);     -- a daemon may have thousands: the last come first
create index attempt_recorded on mainspring.attempt using brin (recorded_at)
    with (pages_per_range = 32, autosummarize = on);

-- Chunks of output. Bytes, because a command may write anything and text cannot hold NUL.
create table mainspring.output (
    task_id     bigint      not null,
    token       bigint      not null,
    number      integer     not null,
    stream      smallint    not null check (stream in (0, 1, 2)),    -- a remark of ours, stdout, stderr
    at          timestamptz not null,
    recorded_at timestamptz not null,
    data        bytea       not null
) partition by range (recorded_at);
create index on mainspring.output (task_id, token, number);


-- DDL needs the owner of the tables: servers with another role call these functions.

-- Makes the partition of a day. Of `fire` it takes the rows of that day out of the default partition.
create function mainspring.make_partition(parent text, day date) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    name  text := parent || to_char(day, '_YYYYMMDD');
    start text := to_char(day, 'YYYY-MM-DD 00:00Z');
    stop  text := to_char(day + 1, 'YYYY-MM-DD 00:00Z');
begin
    if parent <> all (array['task_history_succeeded', 'task_history_failed', 'attempt', 'output', 'fire']) then
        raise exception 'parent: % has no partitions by day', quote_literal(parent) using errcode = 'MSV01';
    end if;
    if parent = 'fire' then
        lock table mainspring.fire_default in access exclusive mode;
    end if;
    execute format('create table mainspring.%I (like mainspring.%I including defaults including constraints)
                        with (autovacuum_vacuum_insert_threshold = 1000000)', name, parent);  -- rows do not die here
    if parent = 'fire' then
        execute format('with moved as (
                            delete from mainspring.fire_default where plan_time >= %L and plan_time < %L returning *
                        )
                        insert into mainspring.%I select * from moved', start, stop, name);
    end if;
    execute format('alter table mainspring.%I attach partition mainspring.%I for values from (%L) to (%L)',
                   parent, name, start, stop);
end
$$;

-- Replaces the partition of a past day by one with only the rows of these jobs, whose name ends in k; drops it if there
-- are none. Returns how many there are. The parent is locked only at the end. Of attempts and output it keeps what
-- belongs to tasks that ended on that day or the next.
create function mainspring.condense_partition(name text, jobs integer[]) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_partition_pruning = on            -- when it plans: the bounds are in the text
as $$
declare
    parent text;
    bounds text;
    day    date := to_date(right(name, 8), 'YYYYMMDD');
    start  text := to_char(day, 'YYYY-MM-DD 00:00Z');
    stop   text := to_char(day + 2, 'YYYY-MM-DD 00:00Z');
    kept   bigint;
begin
    select p.relname, pg_get_expr(c.relpartbound, c.oid) into parent, bounds
      from pg_inherits
      join pg_class c on c.oid = inhrelid and c.relname = condense_partition.name
      join pg_class p on p.oid = inhparent and p.relnamespace = 'mainspring'::regnamespace
     where p.relname in ('task_history_succeeded', 'task_history_failed', 'attempt', 'output');
    if parent is null or day >= (mainspring.now() at time zone 'UTC')::date then
        return 0;
    end if;
    execute format('lock table mainspring.%I in share mode', name);      -- nothing of it changes while it is copied
    execute format('create table mainspring.%I (like mainspring.%I including all)', name || 'k', parent);
    execute format(case when parent like 'task_history%' then 'insert into mainspring.%I
                            select * from mainspring.%I where job_id = any (%L::integer[])'
                        else 'insert into mainspring.%I
                            select * from mainspring.%I where task_id in (
                                select id from mainspring.task_history
                                 where job_id = any (%L::integer[]) and recorded_at >= %L and recorded_at < %L)'
                   end, name || 'k', name, jobs, start, stop);
    get diagnostics kept = row_count;
    execute format('drop table mainspring.%I', name);
    if kept = 0 then
        execute format('drop table mainspring.%I', name || 'k');
    else
        execute format('alter table mainspring.%I attach partition mainspring.%I %s', parent, name || 'k', bounds);
    end if;
    return kept;
end
$$;

-- Makes one partition of all condensed days of a past month, so that long retention does not make many; its name ends in
-- YYYYMMk. Returns how many rows there are; 0 if a day of the month is not condensed.
create function mainspring.merge_partitions(parent text, month date) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    name  text := parent || to_char(month, '_YYYYMM') || 'k';
    start date := date_trunc('month', month)::date;
    stop  date := (date_trunc('month', month) + interval '1 month')::date;
    day   text;
    days  text[];
    more  bigint;
    rows  bigint := 0;
begin
    select array_agg(c.relname::text order by c.relname) into days
      from pg_inherits
      join pg_class c on c.oid = inhrelid
      join pg_class p on p.oid = inhparent and p.relnamespace = 'mainspring'::regnamespace and p.relname = parent
     where c.relname like parent || to_char(month, '_YYYYMM') || '%';
    if parent <> all (array['task_history_succeeded', 'task_history_failed', 'attempt', 'output'])
       or stop > (mainspring.now() at time zone 'UTC')::date or days is null
       or exists (select from unnest(days) as given(name) where given.name !~ '_[0-9]{8}k$') then
        return 0;
    end if;
    foreach day in array days loop
        execute format('lock table mainspring.%I in share mode', day);
    end loop;
    execute format('create table mainspring.%I (like mainspring.%I including all)', name, parent);
    foreach day in array days loop
        execute format('insert into mainspring.%I select * from mainspring.%I', name, day);
        get diagnostics more = row_count;
        rows := rows + more;
    end loop;
    foreach day in array days loop
        execute format('drop table mainspring.%I', day);
    end loop;
    execute format('alter table mainspring.%I attach partition mainspring.%I for values from (%L) to (%L)',
                   parent, name, to_char(start, 'YYYY-MM-DD 00:00Z'), to_char(stop, 'YYYY-MM-DD 00:00Z'));
    return rows;
end
$$;

-- Drops a partition of a past day, or a condensed one; no effect if there is none of that name.
create function mainspring.drop_partition(name text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (
        select from pg_inherits
          join pg_class child on child.oid = inhrelid and child.relname = drop_partition.name
          join pg_class parent on parent.oid = inhparent and parent.relnamespace = 'mainspring'::regnamespace
           and parent.relname in ('task_history_succeeded', 'task_history_failed', 'attempt', 'output', 'fire')
    ) and substring(name from '_([0-9]+)k?$') < to_char(mainspring.now() at time zone 'UTC', 'YYYYMMDD') then
        execute format('drop table mainspring.%I', name);
    end if;
end
$$;


-- 5 Idempotency keys and dependencies -------------------------------------------------------------------------------

-- Rows of both tables come and go, and a search for the oldest walks over the dead ones. So vacuum starts at about what
-- one round of the janitor or a minute of work leaves behind, not at a fifth of the table (the default).
create table mainspring.task_key (
    job_id     integer     not null,
    key        text        not null,
    task_id    bigint      not null,
    expires_at timestamptz not null,
    primary key (job_id, key)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
create index on mainspring.task_key (expires_at);

create table mainspring.dependency (
    parent bigint not null,
    child  bigint not null,
    primary key (parent, child)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
create index on mainspring.dependency (child);

-- The same edges, kept after the parent has ended: what was submitted to run after a task. Its options name the parents
-- of a task. The janitor deletes those whose children retention has dropped.
create table mainspring.dependent (
    parent bigint      not null,
    child  bigint      not null,
    at     timestamptz not null,                 -- when the child was submitted
    primary key (parent, child)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
create index on mainspring.dependent (at);

create function mainspring.check_key(key text, ttl interval) returns void
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
begin
    if length(key) not between 1 and 200 or key ~ '[[:cntrl:]]' then
        raise exception 'key: 1 to 200 characters, none of them a control character' using errcode = 'MSV01';
    end if;
    if ttl is null or ttl <= '0' or ttl > interval '10 years' then
        raise exception 'key_ttl: % is not between 0 and 10 years', ttl using errcode = 'MSV01';
    end if;
end
$$;

-- Gives `key` to `task` and returns that task, or returns the task that has the key. An expired key is given anew.
create function mainspring.take_key(job_id integer, key text, ttl interval, task bigint) returns bigint
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    made   timestamptz := mainspring.now();
    holder bigint;
begin
    perform mainspring.check_key(key, ttl);
    loop
        insert into mainspring.task_key as k (job_id, key, task_id, expires_at)
        values (take_key.job_id, take_key.key, task, made + ttl)
        on conflict on constraint task_key_pkey do update
            set task_id = excluded.task_id, expires_at = excluded.expires_at
          where k.expires_at <= made
        returning k.task_id into holder;
        if holder is null then
            select k.task_id into holder from mainspring.task_key k
             where k.job_id = take_key.job_id and k.key = take_key.key;
        end if;
        if holder is not null then     -- null: the key was deleted between the two statements
            return holder;
        end if;
    end loop;
end
$$;

-- The role that called, which SECURITY DEFINER hides from current_user. A role that was set must be one that the session
-- may set, so it cannot be forged.
create function mainspring.caller() returns text
    language sql stable
    return case current_setting('role') when 'none' then session_user::text else current_setting('role') end;

-- Whether a role may read the tasks of all others.
create function mainspring.reads_all(role text) returns boolean
    language sql stable
    return has_table_privilege(role, 'mainspring.task', 'select');

-- Makes `child` wait for those of `parents` that have not ended; returns how many. A parent that ends at this very
-- moment leaves an edge behind, which server/planning/dependencies.py finds. So does one that ended without success
-- before: with on_parent_failure 'skip' or 'fail' the child waits for it until that loop ends the child, with 'run' it
-- does not wait, and without a policy it is refused. A role that reads only its own tasks can name only those.
create function mainspring.depend(child bigint, parents bigint[], on_parent_failure text) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    waiting integer;
    unmet   bigint;
    is_known boolean;                            -- the one that is unmet has ended
    only_of text;                                -- null: of all roles
begin
    if cardinality(parents) > 1000 then
        raise exception 'after: % tasks; at most 1000', cardinality(parents) using errcode = 'MSV01';
    end if;
    if exists (select from unnest(parents) as given(parent) where given.parent is null) then
        raise exception 'after: null is not a task' using errcode = 'MSV01';
    end if;
    if not mainspring.reads_all(mainspring.caller()) then
        only_of := mainspring.caller();
    end if;
    -- One statement: in its snapshot a task is either live or in the history.
    with given as materialized (
        select distinct unnest(parents) as parent
    ), live as materialized (
        select t.id as parent from mainspring.task t
         where t.id = any (parents) and (only_of is null or t.submitted_by = only_of)
    ), ended as materialized (                   -- succeeded is null: there is no such task
        select given.parent, found.succeeded
          from given
         cross join lateral (
             select bool_or(h.state = 10 /* succeeded */) as succeeded from mainspring.task_history h
              where h.id = given.parent and (only_of is null or h.submitted_by = only_of)
         ) found
         where given.parent not in (select live.parent from live)
    ), edge as (
        insert into mainspring.dependency (parent, child)
        select live.parent, depend.child from live
        union all
        select ended.parent, depend.child from ended
         where not ended.succeeded and depend.on_parent_failure in ('skip', 'fail')
        returning parent
    ), kept as (
        insert into mainspring.dependent (parent, child, at)
        select given.parent, depend.child, mainspring.now() from given
    )
    select counted.edges, refused.parent, refused.is_known
      into waiting, unmet, is_known
      from (select count(*) as edges from edge) counted
      left join lateral (
          select ended.parent, ended.succeeded is not null as is_known from ended
           where ended.succeeded is null or not ended.succeeded and depend.on_parent_failure is null
           order by ended.parent limit 1
      ) refused on true;
    if is_known then
        raise exception 'after: task % did not succeed; retry it with `mainspring task retry %`, or say with'
            ' on_parent_failure what becomes of a task after it: run, skip or fail', unmet, unmet
            using errcode = 'MSV01';
    elsif unmet is not null then
        raise exception 'after: task % does not exist, or is not kept any longer; `mainspring task list` has those'
            ' that are', unmet using errcode = 'MSV01';
    end if;
    if waiting > 0 then
        perform pg_notify('mainspring', 'dependency');
    end if;
    return waiting;
end
$$;


-- 6 Limits ----------------------------------------------------------------------------------------------------------
-- Tasks of a job with limits wait in a gated pool, which no claim serves. With a slot they move to the target of that
-- pool, from where they are claimed like any others. A task whose concurrency key has no slot or no rate left is
-- parked, so that it does not block the tasks behind it.

-- Rates (GCRA). The key is empty where the rate is that of the whole job.
create table mainspring.throttle (
    job_id  integer     not null,
    key     text        not null,
    until   timestamptz not null,                -- the starts so far have used up the rate until then
    wake_at timestamptz,                         -- when to look again at the tasks parked for this key
    primary key (job_id, key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index throttle_wake on mainspring.throttle (wake_at) where wake_at is not null;
create index throttle_until on mainspring.throttle (until) where wake_at is null;

-- The gated pool of a job before the pool `target`; made if it does not exist. A job without limits has another one while
-- it is held. A server of an older version does not know gated pools: for it, "@gate" is an amount that no agent offers,
-- so it never claims from one.
create function mainspring.gate(namespace text, job text, target integer, is_held boolean default false) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    wanted jsonb;
    found  integer;
begin
    select requirements || jsonb_build_object(
               '@gate', jsonb_build_array(namespace, job) || case when is_held then '["held"]' else '[]'::jsonb end,
               '@needs', coalesce(requirements->'@needs', '{}') || '{"@gate": 1}')
      into strict wanted from mainspring.pool p where p.id = gate.target;
    loop
        select p.id into found from mainspring.pool p where p.requirements = wanted;
        if found is not null then
            return found;
        end if;
        insert into mainspring.pool (requirements, target) values (wanted, gate.target)
        on conflict (requirements) do nothing;
    end loop;
end
$$;

-- The concurrency key as stored. The jobs of a namespace share keys, so a namespace other than default is part of it.
create function mainspring.key_within(namespace text, key text) returns text
    language sql immutable parallel safe
    return case when namespace = 'default' then key else namespace || e'\x1f' || key end;

-- A key from the template of its job: {name} stands for that argument, else for its default, else for nothing. A key
-- that is too long is cut and ends in a hash.
create function mainspring.fill_key(template text, args jsonb, defaults jsonb) returns text
    language sql immutable parallel safe
begin atomic
    select case when length(whole) <= 200 then whole else left(whole, 160) || '#' || md5(whole) end
      from (select regexp_replace(string_agg(part.text || coalesce(
                       case when args ? name.match[1] then coalesce(args->>name.match[1], 'null')
                            else defaults->>name.match[1] end, ''), '' order by part.n), '[[:cntrl:]]', '?', 'g') as whole
              from regexp_split_to_table(template, '\{\w+\}') with ordinality as part(text, n)
              left join regexp_matches(template, '\{(\w+)\}', 'g') with ordinality as name(match, n) on name.n = part.n
           ) filled;
end;

-- Releases up to `most` tasks parked for `key` into their gated pool, first ones first; returns how many. There they
-- compete in the order of that pool, whose gate is notified. The settings force the index task_parked whatever the
-- statistics say.
create function mainspring.unpark(key text, most integer, job integer default null) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    moved integer;
begin
    with released as (
        update mainspring.task t set pool = t.gate
         where t.ctid = any (array(
                   select l.ctid from mainspring.task l
                    where l.pool + 0 = 2147483647 -- parked
                      and l.concurrency_key = unpark.key and (job is null or l.job_id = job)
                    order by l.priority desc, l.run_at, l.id
                    limit most
                      for update skip locked))
           and t.pool + 0 >= 2147483647          -- another form: no scan of that index; the row has its ctid
        returning t.gate
    )
    select count(pg_notify('mainspring', 'gate ' || gate)) into moved from released;
    return moved;
end
$$;

-- A slot of a job is free, or one of a key: wakes the next. The tasks of a job that requires other labels by now wait at
-- another gate than the one that the holder has passed.
create function mainspring.slot_freed(gate integer, job integer, key text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if key is not null then
        perform mainspring.unpark(key, 1);
    end if;
    perform pg_notify('mainspring', 'gate ' || gate);
    perform pg_notify('mainspring', 'gate ' || j.pool) from mainspring.job j where j.id = job and j.pool <> gate;
end
$$;

-- A task that ends frees its slots with its row. A trigger, so that every way to end a task also wakes the next; except
-- the statement that hands slots over itself, says so by this setting, and calls slot_freed for those that it does not
-- hand over (store/limits/handover.py).
create function mainspring.free_slots() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform mainspring.slot_freed(old.gate, old.job_id, case when old.key_slot is not null then old.concurrency_key end);
    return null;
end
$$;
create trigger free_slots after delete on mainspring.task
    for each row when (
        (old.job_slot is not null or old.key_slot is not null)
        and current_setting('mainspring.hands_over', true) is distinct from 'on')
    execute function mainspring.free_slots();

-- Checks the concurrency key of a submission and returns the gated pool in which its task waits.
create function mainspring.keyed_gate(namespace text, job text, pool integer, gated boolean, key text) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if length(key) not between 1 and 200 or key ~ '[[:cntrl:]]' then
        raise exception 'concurrency_key: 1 to 200 characters, none of them a control character'
            using errcode = 'MSV01';
    end if;
    if gated then
        return pool;
    end if;
    if exists (select from mainspring.pool p where p.id = keyed_gate.pool and p.requirements->'@broadcast' = 'true') then
        raise exception 'concurrency_key: % is a broadcast, which runs on all agents at once; leave the key out',
            quote_literal(job) using errcode = 'MSV01';
    end if;
    return mainspring.gate(namespace, job, pool);
end
$$;


-- 7 Submission ------------------------------------------------------------------------------------------------------
-- From any language: select mainspring.enqueue('report', '{"day": "2026-11-15"}', priority => 'high').
-- Errors have a SQLSTATE of ours, and then nothing is written: MSV01 invalid input, MSJ01 no such job, MSQ01 the queue is
-- full, MSE01 the key is taken, MSB01 no such batch, MSB02 the batch has ended.

create function mainspring.no_such_job(job text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'no job named %; jobs are registered when their application starts, or by `mainspring job create`',
        coalesce(quote_literal(left(job, 200)), 'null') using errcode = 'MSJ01';
end
$$;

-- Arguments are a JSON object of at most 1 MB (1048576 bytes) and 64 levels. Integers stay below 2^53
-- (9007199254740992), so that every language reads them exactly, and other numbers within what a float can hold.
create function mainspring.check_args(args jsonb) returns void
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
declare
    plain text := args::text;
    depth integer;
begin
    if args is null or jsonb_typeof(args) <> 'object' then
        raise exception 'args: must be a JSON object of named arguments, such as {"day": "2026-11-15"}'
            using errcode = 'MSV01';
    end if;
    if octet_length(plain) > 1048576 then
        raise exception 'args: % bytes of JSON; at most 1 MB. Store the data elsewhere and pass a reference',
            octet_length(plain) using errcode = 'MSV01';
    end if;
    -- Less than 128 bytes cannot be nested deeper than 64 levels.
    if octet_length(plain) >= 128 then
        with recursive node(value, level) as (
            select args, 1
            union all
            select child.value, node.level + 1
              from node cross join lateral (
                  select value from jsonb_each(case when jsonb_typeof(node.value) = 'object' then node.value end)
                  union all
                  select value from jsonb_array_elements(
                      case when jsonb_typeof(node.value) = 'array' then node.value end)
              ) child
             where node.level < 66 and jsonb_typeof(child.value) in ('object', 'array')
        )
        select max(level) into depth from node;
        if depth > 64 then
            raise exception 'args: JSON nested deeper than 64 levels' using errcode = 'MSV01';
        end if;
    end if;
    if plain ~ '\d{16}' and exists (
        select from jsonb_path_query(args, 'strict $.**') as leaf(value)
         where case when jsonb_typeof(leaf.value) = 'number' then
                   abs((leaf.value)::numeric) >= 9007199254740992
                   and ((leaf.value)::numeric % 1 = 0 or abs((leaf.value)::numeric) > 1e308)
               end
    ) then
        raise exception 'args: an integer beyond ±2^53−1 loses digits in other languages; pass it as a string'
            using errcode = 'MSV01';
    end if;
end
$$;

-- Cheap test for arguments that need check_args(); almost none do. 22 bytes or less cannot break a rule: the
-- shortest that does is {"":1e400}, which has 23 as an element of an array. Only stable, because pg_column_size is;
-- otherwise PostgreSQL would not inline it.
create function mainspring.is_suspect(args jsonb) returns boolean
    language sql stable parallel safe
    return args is null or jsonb_typeof(args) <> 'object'
        or (pg_column_size(args) > 22 and (octet_length(args::text) >= 128 or args::text ~ '[0-9]{16}'));

-- The instant that run_at or delay means, checked; now if both are null.
create function mainspring.due_at(run_at timestamptz, delay interval, made timestamptz) returns timestamptz
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz;
begin
    if run_at is not null and delay is not null then
        raise exception 'run_at, delay: give one of them, not both' using errcode = 'MSV01';
    end if;
    if delay < '0' or delay > interval '230 years' then
        raise exception 'delay: % is negative, or beyond the year 2200', delay using errcode = 'MSV01';
    end if;
    at := coalesce(run_at, made + coalesce(delay, '0'));
    if not isfinite(at) or at < '1970-01-01Z' or at >= '2200-01-01Z' then
        raise exception 'run_at: % is outside 1970 to 2200', at using errcode = 'MSV01';
    end if;
    return at;
end
$$;

create function mainspring.check_priority(priority text) returns smallint
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
declare
    level smallint := case
        when priority ~ '^[0-9]$' then priority::smallint
        when priority = 'low' then 2
        when priority = 'normal' then 5
        when priority = 'high' then 7
        when priority = 'critical' then 9
    end;
begin
    if level is null then
        raise exception 'priority: %; use low, normal, high, critical or 0 to 9', quote_literal(left(priority, 40))
            using errcode = 'MSV01';
    end if;
    return level;
end
$$;

-- What few tasks have, as JSON; model/flows/options.py has the same checks for what comes by Python. Other members are the
-- engine's own: no submission may claim to be the callback of a batch.
create function mainspring.check_options(options jsonb) returns void
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
declare
    tags jsonb := options->'tags';
    name text;
begin
    if (case when jsonb_typeof(options) = 'object'
             then options - array['tags', 'timeout', 'retries', 'stalls_after', 'on_parent_failure', 'submitter'] <> '{}'
             else options is not null end) then
        raise exception 'options: %; give tags, timeout, retries, stalls_after, on_parent_failure or submitter',
            quote_literal(left(options::text, 200)) using errcode = 'MSV01';
    end if;
    if jsonb_typeof(tags) <> 'array' or jsonb_array_length(tags) > 10 or exists (
        select from jsonb_array_elements(tags) as tag(value)
         where jsonb_typeof(tag.value) <> 'string' or length(tag.value #>> '{}') not between 1 and 50
            or tag.value #>> '{}' ~ '[[:cntrl:]]'
    ) then
        raise exception 'tags: at most 10 words of 1 to 50 characters, none of them a control character'
            using errcode = 'MSV01';
    end if;
    foreach name in array array['timeout', 'stalls_after', 'retries'] loop
        if (case jsonb_typeof(options->name) when 'number' then name = 'retries' and (options->name)::numeric % 1 <> 0
                 else options ? name end) then
            raise exception '%: %; give a number', name, quote_literal(left(options->>name, 40)) using errcode = 'MSV01';
        end if;
        continue when name = 'retries';
        if (options->>name)::float8 <= 0 or (options->>name)::float8 > 315360000 then
            raise exception '%: % seconds is not between 0 and 10 years', name, options->>name using errcode = 'MSV01';
        end if;
    end loop;
    if (options->>'retries')::numeric not between 0 and 1000 then
        raise exception 'retries: %; give 0 to 1000', options->>'retries' using errcode = 'MSV01';
    end if;
    if options->>'on_parent_failure' not in ('skip', 'run', 'fail') then
        raise exception 'on_parent_failure: %; use skip, run or fail',
            quote_literal(left(options->>'on_parent_failure', 40)) using errcode = 'MSV01';
    end if;
end
$$;

-- The start deadline of a task that is due at `due`.
create function mainspring.deadline(due timestamptz, expires interval) returns timestamptz
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
begin
    if expires <= '0' or expires > interval '10 years' then
        raise exception 'expires: % is not between 0 and 10 years', expires using errcode = 'MSV01';
    end if;
    return due + expires;
end
$$;

-- The number of the task that was created last, or is being created.
create function mainspring.last_task() returns bigint
    language sql volatile
begin atomic
    select case when is_called then last_value else 0 end from mainspring.task_id;
end;

-- The most that can wait, as far as the leader knows: of each bounded job, and under 0 of all jobs together. All tasks up
-- to `created` were committed or given up when they were counted, so at most `live` of them wait, and of the later ones
-- at most as many as numbers were drawn since. store/flows/bounds.py counts; a task that comes back from the history
-- deletes the row.
create table mainspring.queue_bound (
    job_id     integer     not null primary key,
    live       bigint      not null,
    created    bigint      not null,             -- the number of a task
    counted_at timestamptz not null,
    held       bigint      not null default 0,   -- by agents, of those that are live: they do not wait
    full_since timestamptz                       -- the first count of those in a row that found it full
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- How many tasks of a job wait, counted up to `most`; of all jobs, if it is null.
create function mainspring.count_waiting(job integer, most bigint) returns bigint
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    waiting bigint;
begin
    if job is null then
        select count(*) into waiting from (select from mainspring.task t where t.state < 2 limit most) found;
    else
        select count(*) into waiting
          from (select from mainspring.task t where t.job_id = job and t.is_bounded and t.state < 2 limit most) found;
    end if;
    return waiting;
end
$$;

-- Whether `more` tasks may wait beside those that do: null, or else how many wait. Exact but for what other transactions
-- have not committed yet. Three looks, each dearer than the one before: numbers drawn since the leader's count; later
-- tasks one by one; all. A large queue is not counted for each submission: it is full until the leader counts again.
create function mainspring.without_room(job integer, most integer, more bigint) returns bigint
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    counted record;
    waiting bigint;
begin
    if more > most then
        return mainspring.count_waiting(job, most + 1);
    end if;
    select b.live, b.created, b.counted_at, b.held into counted from mainspring.queue_bound b where b.job_id = coalesce(job, 0);
    if counted.live + mainspring.last_task() - counted.created + more <= most then
        return null;
    end if;
    if most > 10000 and counted.counted_at > mainspring.now() - interval '5 seconds' then
        if job is null then
            select count(*) into waiting from mainspring.task t where t.id > counted.created and t.state < 2;
        else
            select count(*) into waiting from mainspring.task t
             where t.job_id = job and t.is_bounded and t.id > counted.created and t.state < 2;
        end if;
        waiting := waiting + counted.live - counted.held;
    else
        waiting := mainspring.count_waiting(job, most - more + 1);
        if waiting + more > most and most <= 10000 then      -- refused: how many there are, and not only that
            waiting := mainspring.count_waiting(job, most + 10000);
        end if;
    end if;
    return case when waiting + more > most then waiting end;
end
$$;

-- Counts the refusals of all queues.
create sequence mainspring.queue_full;

-- Raises MSQ01 if `more` tasks of a job do not fit below the bounds; its detail is JSON. At the rate at which tasks of it
-- ended in the last minute or two there is room again after `retry_after` seconds.
create function mainspring.admit(job text, id integer, max_queued integer, max_in_all integer, more bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    bound   integer;
    waiting bigint;
    of_job  integer;
    rate    float8;
    after   integer;
    held    text;                                -- how to end the hold; null: there is none
begin
    if max_queued is not null then
        waiting := mainspring.without_room(id, max_queued, more);
        bound := max_queued;
        of_job := id;
    end if;
    if waiting is null and max_in_all is not null then
        waiting := mainspring.without_room(null, max_in_all, more);
        bound := max_in_all;
        of_job := 0;
    end if;
    if waiting is null then
        return;
    end if;
    select sum(f.count) / extract(epoch from mainspring.now() - min(f.minute)) into rate from mainspring.figure f
     where f.job_id = of_job and f.minute >= date_trunc('minute', mainspring.now(), 'UTC') - interval '1 minute'
       and not f.again;
    after := case when rate > 0 then least(300, greatest(1, ceil((waiting + more - bound) / rate))) else 60 end;
    perform nextval('mainspring.queue_full');    -- counts, although this transaction ends without a trace
    select case when h.job_id is null then 'everything is held, so none starts; `mainspring release`'
                else format('the job is held, so none starts; `mainspring job release %s`', quote_literal(job)) end
      into held from mainspring.hold h
     where h.released_at is null and (h.job_id = admit.id or h.job_id is null)
     order by h.job_id is null desc limit 1;
    raise exception 'queue full: % % %, and at most % may; %',
        waiting, case when waiting = 1 then 'task of' else 'tasks of' end,
        case when of_job = 0 then 'all jobs' else quote_literal(job) end || case when waiting = 1 then ' waits' else ' wait' end,
        bound,
        coalesce(held || ' lets it go on, then try again', format('try again in %s s', after))
        using errcode = 'MSQ01', detail = jsonb_build_object(
            'limit', bound, 'waiting', waiting, 'retry_after', after, 'job', job);
end
$$;

-- Whether the queue of a job has no room for so many more: a schedule with when_full=skip asks.
create function mainspring.is_full(job integer, more bigint) returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    its record;
begin
    select j.max_queued, j.max_in_all into its from mainspring.job j where j.id = job;
    return (its.max_queued is not null and mainspring.without_room(job, its.max_queued, more) is not null)
        or (its.max_in_all is not null and mainspring.without_room(null, its.max_in_all, more) is not null);
end
$$;

-- Priority rules. `conditions` is what people wrote; model/rules.py makes a jsonpath of it, which is true of the facts
-- about a task that the rule fits, and a LIKE pattern of `jobs`.
create table mainspring.priority_rule (
    name       text        primary key,
    position   integer     not null,                   -- rules are asked in this order, then by name
    jobs       text        not null,                   -- pattern of the names of jobs
    job_like   text        not null,
    conditions jsonb       not null,
    condition  jsonpath    not null,
    fields     text[]      not null,                   -- what it looks at besides arguments and tags
    priority   smallint    check (priority between 0 and 9),
    shift      smallint    check (shift between -9 and 9),
    force      boolean     not null default false,     -- also where the submission gave a priority
    enabled    boolean     not null default true,
    version    integer     not null default 1,
    updated_at timestamptz not null default mainspring.now(),
    check ((priority is null) <> (shift is null))
);

-- How busy the agents are that could run the tasks of a pool; written by the leader.
create table mainspring.pool_load (
    pool  integer not null primary key,
    busy  integer not null,
    slots integer not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What the submissions of a job are checked against. A change of rules or settings calls renew_checks().
create function mainspring.fill_checks() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    new.expires := make_interval(secs => coalesce(
        (new.definition->>'expires')::float8,
        (select (s.value#>>'{}')::float8 from mainspring.setting s where s.name = 'default_expires')));
    new.max_queued := (new.definition->>'max_queued')::integer;
    new.max_in_all := (select (s.value#>>'{}')::integer from mainspring.setting s where s.name = 'max_queued');
    select array_agg(r.condition order by r.position, r.name), array_agg(r.priority order by r.position, r.name),
           array_agg(r.shift order by r.position, r.name), array_agg(r.force order by r.position, r.name),
           array_agg(jsonb_build_object('rule', r.name) order by r.position, r.name)
      into new.rule_when, new.rule_level, new.rule_shift, new.rule_force, new.rule_option
      from mainspring.priority_rule r where r.enabled and new.name like r.job_like;
    select array_agg(distinct f order by f) into new.rule_fields
      from mainspring.priority_rule r, unnest(r.fields) f where r.enabled and new.name like r.job_like;
    new.is_checked := (new.expires, new.max_queued, new.max_in_all, new.rule_when) is distinct from (null, null, null, null);
    return new;
end
$$;
create trigger fill_checks before insert or update on mainspring.job
    for each row execute function mainspring.fill_checks();

-- A job that is being registered has the old checks, and the update would not see it: each waits for the other. Whoever
-- reads jobs does not wait.
create function mainspring.renew_checks() returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    lock table mainspring.job in exclusive mode;
    update mainspring.job set is_checked = is_checked;
end
$$;

-- The priority of a task by the rules of its job: that of the first rule that fits, or `ranked`, and then no rule. With a
-- priority that the submission gave only rules that force theirs are asked. enqueue() does the same itself: there a call
-- would take as long as twenty rules.
create function mainspring.by_rules(
    job_id integer, whens jsonpath[], levels smallint[], shifts smallint[], forces boolean[], options jsonb[],
    fields text[], args jsonb, tags jsonb, origin text, submitter text, is_given boolean,
    inout ranked smallint, out rule text
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    facts jsonb := jsonb_build_object('args', args, 'tag', coalesce(tags, '[]'));
begin
    if fields is not null then
        facts := facts || mainspring.rule_facts(job_id, args, origin, submitter, fields);
    end if;
    for number in 1..cardinality(whens) loop
        if (not is_given or forces[number]) and facts @@ whens[number] then
            rule := options[number]->>'rule';
            ranked := coalesce(levels[number], least(9, greatest(0, ranked + shifts[number])));
            return;
        end if;
    end loop;
end
$$;

-- What rules look at besides arguments and tags. Load and queue are as of the leader's last count.
create function mainspring.rule_facts(job_id integer, args jsonb, origin text, submitter text, fields text[])
    returns jsonb
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    facts jsonb := jsonb_build_object('origin', origin, 'submitter', submitter);
begin
    if 'args_count' = any (fields) then
        facts := facts || jsonb_build_object('args_count', (select count(*) from jsonb_object_keys(args)));
    end if;
    if 'args_bytes' = any (fields) then
        facts := facts || jsonb_build_object('args_bytes', octet_length(args::text));
    end if;
    if 'waiting' = any (fields) then
        facts := facts || jsonb_build_object('waiting', (
            select coalesce(sum(q.tasks), 0) from mainspring.queue_figure q
             where q.job_id = rule_facts.job_id and q.state < 2));
    end if;
    if 'load' = any (fields) then
        facts := facts || jsonb_build_object('load', (
            select coalesce(p.busy / nullif(p.slots, 0)::float8, 1) from mainspring.job j
              join mainspring.pool gate on gate.id = j.pool
              left join mainspring.pool_load p on p.pool = coalesce(gate.target, gate.id)
             where j.id = rule_facts.job_id));
    end if;
    return facts;
end
$$;

-- For a task that a schedule makes: its priority and options by the rules of its job, its deadline, and whether it counts
-- towards a bound. Called for jobs that are checked only.
create function mainspring.planned_task(
    job mainspring.job, args jsonb, run_at timestamptz, inout expires interval,
    out priority smallint, out options jsonb, out expires_at timestamptz, out is_bounded boolean
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    rule text;
begin
    expires := coalesce(expires, job.expires);
    expires_at := run_at + expires;
    is_bounded := case when job.max_queued is not null then true end;
    priority := job.priority;
    if job.rule_when is not null then
        select ruled.ranked, ruled.rule into priority, rule from mainspring.by_rules(
            job.id, job.rule_when, job.rule_level, job.rule_shift, job.rule_force, job.rule_option, job.rule_fields, args,
            null, 'schedule', null, false, job.priority) ruled;
    end if;
    if rule is not null then
        options := jsonb_build_object('rule', rule);
    end if;
end
$$;

-- Many tasks of one job in one statement, all or none. Returns the ids in the order of the arguments.
create function mainspring.enqueue_many(
    job       text,
    args      jsonb[],
    priority  text        default null,
    run_at    timestamptz default null,
    delay     interval    default null,
    namespace text        default 'default',
    concurrency_key text  default null,
    tags      text[]      default null,
    expires   interval    default null,
    batch     bigint      default null,
    timeout   interval    default null,
    retries   integer     default null,
    stalls_after interval default null,
    submitter text        default null
) returns bigint[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    definition record;
    level      smallint;
    made       timestamptz := mainspring.now();
    due        timestamptz := made;
    stored_key text;
    is_named   boolean;
    options    jsonb;
    deadline   timestamptz;
    ids        bigint[];
    caller     text := nullif(mainspring.caller(), current_user);   -- once, not for each task
    ranks      smallint[];                                     -- by the rules of the job, if it has any
    rules      text[];
begin
    select j.id, j.pool, j.priority, j.definition ? 'gate' or j.held is not null as gated, j.is_checked, j.expires,
           j.max_queued, j.max_in_all, j.rule_when, j.rule_level, j.rule_shift, j.rule_force, j.rule_option, j.rule_fields
      into definition from mainspring.job j
     where j.namespace = enqueue_many.namespace and j.name = enqueue_many.job;
    if not found then
        perform mainspring.no_such_job(job);
    end if;
    level := definition.priority;
    if priority is not null then
        level := mainspring.check_priority(priority);
    end if;
    if run_at is not null or delay is not null then
        due := mainspring.due_at(run_at, delay, made);
    end if;
    perform mainspring.check_args(given) from unnest(args) given where mainspring.is_suspect(given);
    if concurrency_key is not null then
        definition.pool := mainspring.keyed_gate(namespace, job, definition.pool, definition.gated, concurrency_key);
        definition.gated := true;
        stored_key := mainspring.key_within(namespace, concurrency_key);
        is_named := true;
    end if;
    if submitter is not null and not mainspring.reads_all(mainspring.caller()) then
        submitter := null;                       -- a producer is known by its role
    end if;
    if tags is not null or timeout is not null or retries is not null or stalls_after is not null
       or submitter is not null then
        options := mainspring.as_options(tags, timeout, retries, stalls_after, null, submitter);
    end if;
    if expires is not null or definition.expires is not null then
        deadline := mainspring.deadline(due, coalesce(expires, definition.expires));
    end if;
    if definition.max_queued is not null or definition.max_in_all is not null then
        perform mainspring.admit(job, definition.id, definition.max_queued, definition.max_in_all, cardinality(args));
    end if;
    if batch is not null then
        perform mainspring.join_batch(batch, cardinality(args));
    end if;
    if definition.rule_when is not null then
        select array_agg(ruled.ranked order by place), array_agg(ruled.rule order by place) into ranks, rules
          from unnest(args) with ordinality as given(args, place)
         cross join lateral mainspring.by_rules(
                 definition.id, definition.rule_when, definition.rule_level, definition.rule_shift,
                 definition.rule_force, definition.rule_option, definition.rule_fields, given.args, to_jsonb(tags),
                 case when batch is null then 'submitted' else 'batch' end, coalesce(submitter, mainspring.caller()),
                 priority is not null, level) ruled;
    end if;
    with inserted as (
        insert into mainspring.task as t
            (run_at, created_at, job_id, pool, state, priority, args, concurrency_key, key_given, submitted_by, batch_id,
             expires_at, is_bounded, options)
        select due, made, definition.id, definition.pool, 1 /* pending */,
               coalesce(given.ranked, level), given.args, stored_key, is_named, caller, enqueue_many.batch, deadline,
               case when definition.max_queued is not null then true end,
               case when given.rule is null then options
                    else coalesce(options, '{}') || jsonb_build_object('rule', given.rule) end
          from unnest(enqueue_many.args, ranks, rules) as given(args, ranked, rule)
        returning t.id
    )
    select coalesce(array_agg(inserted.id order by inserted.id), '{}') into ids from inserted;
    if due <= made + interval '5 seconds' then               -- the default lead
        perform pg_notify('mainspring', case
            when definition.gated then 'gate ' || definition.pool
            when due <> made then format('due %s %s %s %s', definition.pool, level, extract(epoch from due), ids[1])
            else 'due' end);
    end if;
    return ids;
end
$$;

-- The options of a submission as one object; null if none is given.
create function mainspring.as_options(
    tags text[], timeout interval, retries integer, stalls_after interval, on_parent_failure text, submitter text
) returns jsonb
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
declare
    options jsonb := jsonb_strip_nulls(jsonb_build_object(
        'tags', case when tags <> '{}' then tags end, 'timeout', extract(epoch from timeout)::float8, 'retries', retries,
        'stalls_after', extract(epoch from stalls_after)::float8, 'on_parent_failure', on_parent_failure,
        'submitter', left(submitter, 200)));
begin
    if array_ndims(tags) > 1 then
        raise exception 'tags: give one list of words' using errcode = 'MSV01';
    end if;
    if array_position(tags, null) is not null then
        raise exception 'tags: null is not a word' using errcode = 'MSV01';
    end if;
    perform mainspring.check_options(options);
    return nullif(options, '{}');
end
$$;

-- One task; returns its id.
-- key: a second submission with the same key returns the first task until the key expires; with if_exists => 'reject' it
--     is refused.
-- after: the task waits until those tasks have ended; if one of them does not succeed, on_parent_failure says what
--     becomes of it: skip (the default), run or fail.
-- expires: if it has not started so long after its time, it is skipped.
create function mainspring.enqueue(
    job       text,
    args      jsonb       default '{}',
    priority  text        default null,
    run_at    timestamptz default null,
    delay     interval    default null,
    key       text        default null,
    key_ttl   interval    default '1 day',
    after     bigint[]    default null,
    namespace text        default 'default',
    concurrency_key text  default null,
    tags      text[]      default null,
    expires   interval    default null,
    batch     bigint      default null,
    on_parent_failure text default null,
    if_exists text        default null,
    timeout   interval    default null,
    retries   integer     default null,
    stalls_after interval default null,
    submitter text        default null
) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    definition record;
    level      smallint;
    made       timestamptz := mainspring.now();
    due        timestamptz := made;
    task       bigint      := nextval('mainspring.task_id');
    holder     bigint;
    waiting    integer     := 0;
    facts      jsonb;                            -- what the rules of the job look at
    options    jsonb;
    deadline   timestamptz;
begin
    -- Most submissions have only a job and arguments: they cost one look-up and one insert.
    select j.id, j.pool, j.priority, j.definition ? 'gate' or j.held is not null as gated, j.is_checked, j.expires,
           j.max_queued, j.max_in_all, j.rule_when, j.rule_level, j.rule_shift, j.rule_force, j.rule_option, j.rule_fields
      into definition from mainspring.job j
     where j.namespace = enqueue.namespace and j.name = enqueue.job;
    if not found then
        perform mainspring.no_such_job(job);
    end if;
    level := definition.priority;
    if priority is not null then
        level := mainspring.check_priority(priority);
    end if;
    if run_at is not null or delay is not null then
        due := mainspring.due_at(run_at, delay, made);
    end if;
    if mainspring.is_suspect(args) then
        perform mainspring.check_args(args);
    end if;
    -- One question for several of them: PostgreSQL prepares each expression anew in each transaction.
    if definition.is_checked
       or num_nonnulls(concurrency_key, key, after, tags, expires, batch, on_parent_failure, timeout, retries,
                       stalls_after, submitter, if_exists) > 0 then
        if num_nonnulls(concurrency_key, key, tags, on_parent_failure, timeout, retries, stalls_after, submitter,
                        if_exists) > 0 then
            if if_exists not in ('return', 'reject') then
                perform mainspring.check_exists(if_exists, job, key, null);
            end if;
            if concurrency_key is not null then
                definition.pool := mainspring.keyed_gate(namespace, job, definition.pool, definition.gated, concurrency_key);
                definition.gated := true;
            end if;
            if submitter is not null and not mainspring.reads_all(mainspring.caller()) then
                submitter := null;                   -- a producer is known by its role
            end if;
            if tags is not null or timeout is not null or retries is not null or stalls_after is not null
               or on_parent_failure is not null or submitter is not null then
                options := mainspring.as_options(tags, timeout, retries, stalls_after, on_parent_failure, submitter);
            end if;
            if key is not null then
                holder := mainspring.take_key(definition.id, key, key_ttl, task);
                if holder <> task then
                    perform mainspring.check_exists(if_exists, job, key, holder);
                    return holder;
                end if;
            end if;
        end if;
        if definition.max_queued is not null or definition.max_in_all is not null then
            perform mainspring.admit(job, definition.id, definition.max_queued, definition.max_in_all, 1);
        end if;
        if definition.rule_when is not null then                 -- as by_rules()
            facts := jsonb_build_object('args', args, 'tag', coalesce(tags, '{}'));
            if definition.rule_fields is not null then
                facts := facts || mainspring.rule_facts(
                    definition.id, args, case when batch is null then 'submitted' else 'batch' end,
                    coalesce(submitter, mainspring.caller()), definition.rule_fields);
            end if;
            for number in 1..cardinality(definition.rule_when) loop
                if (priority is null or definition.rule_force[number]) and facts @@ definition.rule_when[number] then
                    level := coalesce(
                        definition.rule_level[number], least(9, greatest(0, level + definition.rule_shift[number])));
                    options := coalesce(options, '{}') || definition.rule_option[number];
                    exit;
                end if;
            end loop;
        end if;
        if num_nonnulls(expires, definition.expires, batch, after) > 0 then
            if expires is not null or definition.expires is not null then
                deadline := mainspring.deadline(due, coalesce(expires, definition.expires));
            end if;
            if batch is not null then
                perform mainspring.join_batch(batch, 1);
            end if;
            if after <> '{}' then
                waiting := mainspring.depend(task, after, on_parent_failure);
                options := coalesce(options, '{}')
                    || jsonb_build_object(
                           'parents', (select jsonb_agg(distinct parent) from unnest(after) as given(parent)));
            end if;
        end if;
    end if;
    insert into mainspring.task
        (id, run_at, created_at, job_id, pool, state, waiting_for, priority, args, key, concurrency_key, key_given,
         submitted_by, batch_id, expires_at, is_bounded, options)
    values (task, due, made, definition.id, case when waiting > 0 then -definition.pool else definition.pool end,
            case when waiting > 0 then 0 /* blocked */ else 1 /* pending */ end, waiting, level, enqueue.args,
            enqueue.key, mainspring.key_within(enqueue.namespace, enqueue.concurrency_key),
            case when enqueue.concurrency_key is not null then true end, nullif(mainspring.caller(), current_user),
            enqueue.batch, deadline, case when definition.max_queued is not null then true end, options);
    if waiting = 0 and due <= made + interval '5 seconds' then           -- the default lead
        perform pg_notify('mainspring', case
            when definition.gated then 'gate ' || definition.pool
            when due <> made then format('due %s %s %s %s', definition.pool, level, extract(epoch from due), task)
            else 'due' end);
    end if;
    return task;
end
$$;

-- Tasks that run after each other, in one statement: an object for each, with the parameters of enqueue() by name,
-- durations as seconds, and `steps`: the places, from 0, of those before it in the list that it runs after. Returns their
-- ids in the order given. It runs with the rights of its caller, as enqueue() checks them.
create function mainspring.enqueue_flow(steps jsonb) returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    step    jsonb;
    wrong   text;
    ids     bigint[] := '{}';
    parents bigint[];
    number  integer  := 0;
    edges   integer  := 0;
begin
    if jsonb_typeof(steps) is distinct from 'array' or jsonb_array_length(steps) not between 1 and 10000 then
        raise exception 'steps: give a list of 1 to 10000 tasks' using errcode = 'MSV01';
    end if;
    for step in select value from jsonb_array_elements(steps) loop
        select given.name into wrong from jsonb_object_keys(step) as given(name)
         where given.name <> all (array['job', 'args', 'priority', 'run_at', 'delay', 'key', 'key_ttl', 'after',
                                        'concurrency_key', 'on_parent_failure', 'if_exists', 'batch', 'expires', 'tags',
                                        'timeout', 'retries', 'stalls_after', 'submitter', 'steps'])
         limit 1;
        if wrong is not null then
            raise exception 'steps[%]: no such member: %', number, quote_literal(left(wrong, 40))
                using errcode = 'MSV01';
        end if;
        if exists (select from jsonb_array_elements(step->'steps') as given(place)
                    where jsonb_typeof(given.place) <> 'number' or given.place not between '0' and to_jsonb(number - 1)) then
            raise exception 'steps[%]: steps: give places of tasks before it, from 0', number using errcode = 'MSV01';
        end if;
        parents := array(select id::bigint from jsonb_array_elements_text(step->'after') as given(id)) || array(
            select ids[place::integer + 1] from jsonb_array_elements_text(step->'steps') as given(place));
        edges := edges + cardinality(parents);
        if edges > 100000 then
            raise exception 'steps: more than 100000 edges between tasks; let a task without work collect them'
                using errcode = 'MSV01';
        end if;
        ids[number + 1] := mainspring.enqueue(
            job => step->>'job',
            args => coalesce(step->'args', '{}'),
            priority => step->>'priority',
            run_at => (step->>'run_at')::timestamptz,
            delay => make_interval(secs => (step->>'delay')::float8),
            key => step->>'key',
            key_ttl => coalesce(make_interval(secs => (step->>'key_ttl')::float8), '1 day'),
            after => parents,
            concurrency_key => step->>'concurrency_key',
            tags => case when step ? 'tags' then array(select jsonb_array_elements_text(step->'tags')) end,
            expires => make_interval(secs => (step->>'expires')::float8),
            batch => (step->>'batch')::bigint,
            on_parent_failure => step->>'on_parent_failure',
            if_exists => step->>'if_exists',
            timeout => make_interval(secs => (step->>'timeout')::float8),
            retries => (step->>'retries')::integer,
            stalls_after => make_interval(secs => (step->>'stalls_after')::float8),
            submitter => step->>'submitter');
        number := number + 1;
    end loop;
    return ids;
exception when data_exception then              -- a member that is not what its name says; nothing was written
    raise exception 'steps[%]: %', number, sqlerrm using errcode = 'MSV01';
end
$$;

-- What a submission does whose key another task has.
create function mainspring.check_exists(if_exists text, job text, key text, holder bigint) returns void
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
begin
    if if_exists not in ('return', 'reject') then
        raise exception 'if_exists: %; use return or reject', quote_literal(left(if_exists, 40)) using errcode = 'MSV01';
    end if;
    if if_exists = 'reject' then
        raise exception 'key: task % of % has the key % already', holder, quote_literal(job), quote_literal(key)
            using errcode = 'MSE01', detail = jsonb_build_object('id', holder);
    end if;
end
$$;

-- Whether this session has created the task by its last call of enqueue(), which draws an id even where the key is taken.
create function mainspring.is_new(task bigint) returns boolean
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
    return task = currval('mainspring.task_id');

-- Tasks that were submitted at once, each for itself, in one statement. Returns their ids in the order given, and null
-- for each that was left out: its job does not exist, or its key is taken or given at this moment. enqueue() submits such
-- a one, or says what is wrong with it. Other errors are raised, and then nothing is written. lock_timeout: a key that
-- another transaction holds must not delay the others; keys are inserted in their order, so that two statements with
-- the same keys do not block each other.
create function mainspring.enqueue_each(
    jobs       text[],
    args       jsonb[],
    priorities text[]        default null,
    run_ats    timestamptz[] default null,
    delays     interval[]    default null,
    keys       text[]        default null,
    key_ttls   interval[]    default null,
    marks_existing boolean   default false,      -- the id of a task that was there before is negative
    expires    interval[]    default null,
    options    jsonb[]       default null,       -- as model/flows/options.py makes them
    batches    bigint[]      default null
) returns bigint[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan     -- with arrays PostgreSQL would plan each call anew, which takes longer
    set lock_timeout = '5ms'
as $$
declare
    made  timestamptz := mainspring.now();
    ids   bigint[];
    hints bigint;
    bounded integer[];
    joined  bigint[];                            -- the batch of each task that was inserted into one
    caller  text        := nullif(mainspring.caller(), current_user);
begin
    perform mainspring.check_args(given) from unnest(args) given where mainspring.is_suspect(given);
    if options is not null then
        perform mainspring.check_options(given) from unnest(options) given;
        if not mainspring.reads_all(mainspring.caller()) then                     -- a producer is known by its role
            options := array(select given.options - 'submitter'
                               from unnest(options) with ordinality as given(options, number) order by given.number);
        end if;
    end if;
    if keys is not null then
        perform mainspring.check_key(given.key, given.ttl) from unnest(keys, key_ttls) as given(key, ttl)
          where given.key is not null;
    end if;
    -- Most have neither a time nor a key, and jobs without a gate or checks: half the price. All of them, or none.
    if num_nonnulls(run_ats, delays, keys, expires, batches) = 0 then
        with given as materialized (
            select g.number, g.args, g.options, j.id as job_id, j.pool,
                   case when g.priority is null then j.priority else mainspring.check_priority(g.priority) end as priority
              from unnest(jobs, enqueue_each.args, priorities, enqueue_each.options) with ordinality
                as g(job, args, priority, options, number)
             cross join lateral (                -- `limit` keeps the order given, which the ids follow
                 select j.id, j.pool, j.priority from mainspring.job j
                  where j.namespace = 'default' and j.name = g.job and j.held is null and not j.is_checked
                    and not j.definition ? 'gate' limit 1
             ) j
        ), plain as materialized (
            select given.*, nextval('mainspring.task_id') as id from given
             where (select count(*) from given) = cardinality(jobs)
        ), inserted as (
            insert into mainspring.task
                (id, run_at, created_at, job_id, pool, state, priority, args, submitted_by, options)
            select plain.id, made, made, plain.job_id, plain.pool, 1 /* pending */, plain.priority, plain.args, caller,
                   plain.options
              from plain
        )
        select array_agg(plain.id order by plain.number) into ids from plain;
        if ids is not null then
            perform pg_notify('mainspring', 'due');
            return ids;
        end if;
    end if;
    with given as materialized (
        select g.number, g.args, g.key, g.ttl, j.id as job_id, j.pool, j.gated, nextval('mainspring.task_id') as id,
               level.priority, due.run_at, g.options, g.batch, j.max_queued is not null as is_bounded,
               j.max_queued is not null or j.max_in_all is not null as has_bounds,
               case when g.expires is not null or j.expires is not null then
                   mainspring.deadline(due.run_at, coalesce(g.expires, j.expires)) end as expires_at,
               case when j.rule_when is not null then (
                   select to_jsonb(ruled) from mainspring.by_rules(
                       j.id, j.rule_when, j.rule_level, j.rule_shift, j.rule_force, j.rule_option, j.rule_fields,
                       g.args, g.options->'tags', case when g.batch is null then 'submitted' else 'batch' end,
                       coalesce(g.options->>'submitter', mainspring.caller()), g.priority is not null, level.priority
                   ) ruled) end as ruled,
               case when g.key is not null then
                   (select k.task_id from mainspring.task_key k
                     where k.job_id = j.id and k.key = g.key and k.expires_at > made) end as holder
          from unnest(jobs, enqueue_each.args, priorities, run_ats, delays, keys, key_ttls, enqueue_each.expires,
                      enqueue_each.options, batches) with ordinality
            as g(job, args, priority, run_at, delay, key, ttl, expires, options, batch, number)
         cross join lateral (                    -- `limit` keeps the order given, which the ids follow
             select j.id, j.pool, j.priority, j.definition ? 'gate' or j.held is not null as gated, j.expires,
                    j.max_queued, j.max_in_all, j.rule_when, j.rule_level, j.rule_shift, j.rule_force, j.rule_option,
                    j.rule_fields
               from mainspring.job j
              where j.namespace = 'default' and j.name = g.job limit 1
         ) j
         cross join lateral (
             select case when g.priority is null then j.priority else mainspring.check_priority(g.priority) end
         ) level(priority)
         cross join lateral (
             select case when g.run_at is null and g.delay is null then made
                         else mainspring.due_at(g.run_at, g.delay, made) end
         ) due(run_at)
    ), keyed as (
        insert into mainspring.task_key as k (job_id, key, task_id, expires_at)
        select distinct on (given.job_id, given.key) given.job_id, given.key, given.id, made + given.ttl
          from given where given.key is not null and given.holder is null
         order by given.job_id, given.key, given.number
        on conflict on constraint task_key_pkey do nothing
        returning k.task_id
    ), inserted as (
        insert into mainspring.task as t
            (id, run_at, created_at, job_id, pool, state, priority, args, key, submitted_by, batch_id, expires_at,
             is_bounded, options)
        select given.id, given.run_at, made, given.job_id, given.pool, 1 /* pending */,
               coalesce((given.ruled->>'ranked')::smallint, given.priority), given.args, given.key,
               caller, given.batch, given.expires_at, nullif(given.is_bounded, false),
               case when given.ruled->>'rule' is null then given.options
                    else coalesce(given.options, '{}') || jsonb_build_object('rule', given.ruled->'rule') end
          from given where given.key is null or given.id in (select keyed.task_id from keyed)
        returning t.id
    ), hint as (
        select case
                   when given.gated then 'gate ' || given.pool
                   when (given.run_at = made) then 'due'
                   else format('due %s %s %s %s', given.pool, given.priority, extract(epoch from min(given.run_at)),
                               min(given.id)) end as payload
          from given join inserted using (id) where given.run_at <= made + interval '5 seconds'
         group by given.gated, given.pool, given.priority, (given.run_at = made)
    )
    select array_agg(coalesce(case when marks_existing then -given.holder else given.holder end, inserted.id)
                     order by place.number),
           (select count(pg_notify('mainspring', hint.payload)) from hint),
           array_agg(given.job_id) filter (where given.has_bounds),
           array_agg(given.batch) filter (where given.batch is not null and inserted.id is not null)
      into ids, hints, bounded, joined
      from generate_series(1, cardinality(jobs)) as place(number)
      left join given using (number)
      left join inserted on inserted.id = given.id;
    if bounded is not null then                  -- what was inserted counts
        perform mainspring.admit(j.name, j.id, j.max_queued, j.max_in_all, 0) from mainspring.job j
          where j.id = any (bounded);
    end if;
    if joined is not null then
        perform mainspring.join_batch(given.batch, count(*)) from unnest(joined) as given(batch)
          group by given.batch order by given.batch;
    end if;
    return ids;
end
$$;

-- For servers: one plain task that `session` claims in the same transaction, which saves a commit. Returns its id and the
-- batch of the claim. No batch: the task is pending like any other, because the job is no longer the one that the server
-- knows, with the pool whose requirements the session was checked against, or because `server` owns no segment. The id
-- is drawn until it falls into a segment of that server.
create function mainspring.enqueue_claimed(
    job text, args jsonb, priority text, known_job integer, known_pool integer, session bigint, server uuid,
    out task bigint, out batch bigint
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    definition record;
    level      smallint;
    made       timestamptz := mainspring.now();
    owned      smallint[];
    can_claim  boolean;
begin
    task := nextval('mainspring.task_id');
    select j.id, j.pool, j.priority, j.is_checked, j.definition ? 'gate' or j.held is not null as gated,
           exists (select from mainspring.hold h where h.job_id is null and h.released_at is null) as all_held,
           coalesce(s.owner = server, false) as is_own
      into definition from mainspring.job j left join mainspring.segment s on s.id = (task % 100)::smallint
     where j.namespace = 'default' and j.name = enqueue_claimed.job;
    if not found then
        perform mainspring.no_such_job(job);
    end if;
    level := definition.priority;
    if priority is not null then
        level := mainspring.check_priority(priority);
    end if;
    if mainspring.is_suspect(args) then
        perform mainspring.check_args(args);
    end if;
    can_claim := definition.id = known_job and definition.pool = known_pool
                 and not (definition.gated or definition.is_checked or definition.all_held);
    if can_claim and not definition.is_own then
        owned := array(select s.id from mainspring.segment s where s.owner = server);
        for draw in 1..200 loop                  -- ids mostly follow each other: 100 of them meet every segment
            can_claim := (task % 100)::smallint = any (owned);
            exit when can_claim or cardinality(owned) = 0;
            task := nextval('mainspring.task_id');
        end loop;
    elsif definition.is_checked then
        task := mainspring.enqueue(job, args, priority);
        return;
    end if;
    if can_claim then
        batch := nextval('mainspring.claim_batch');
        insert into mainspring.claim (session, batch, tasks)
        values (enqueue_claimed.session, enqueue_claimed.batch, array[task]);
    end if;
    insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args, token, session, attempt)
    values (task, made, made, definition.id, definition.pool,
            case when batch is null then 1 /* pending */ else 2 /* assigned */ end, level, enqueue_claimed.args,
            enqueue_claimed.batch * 2048 /* token */,
            case when enqueue_claimed.batch is not null then enqueue_claimed.session end,
            case when enqueue_claimed.batch is null then 0 else 1 end);
    if batch is null then
        perform pg_notify('mainspring', case when definition.gated then 'gate ' || definition.pool else 'due' end);
    end if;
end
$$;

-- The same for tasks that were submitted at once, in one statement and one claim. Returns the ids and the tokens. No id:
-- its job does not exist or has checks, and it was left out. No token: it is pending, also because no session was given
-- for it. For a single one enqueue_claimed() takes less time.
create function mainspring.enqueue_each_claimed(
    jobs text[], args jsonb[], priorities text[], known_jobs integer[], known_pools integer[], sessions bigint[],
    server uuid, out tasks bigint[], out tokens bigint[]
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan     -- see enqueue_each
as $$
declare
    made  timestamptz := mainspring.now();
    owned smallint[]  := array(select s.id from mainspring.segment s
                                where s.owner = enqueue_each_claimed.server and not exists (
                                    select from mainspring.hold h where h.job_id is null and h.released_at is null));
    ids   bigint[]    := '{}';
    hints bigint;
begin
    perform mainspring.check_args(given) from unnest(args) given where mainspring.is_suspect(given);
    for draw in 1..200 loop                      -- ids mostly follow each other: 100 of them meet every segment
        exit when cardinality(owned) = 0 or cardinality(ids) = cardinality(jobs);
        ids := ids || array(
            select drawn.id from (select nextval('mainspring.task_id') as id
                                    from generate_series(1, cardinality(jobs) - cardinality(ids))) drawn
             where (drawn.id % 100)::smallint = any (owned));
    end loop;
    with given as materialized (
        select g.number, g.args, j.id as job_id, j.pool, j.gated, fit.session,
               coalesce(ids[g.number], nextval('mainspring.task_id')) as id,
               case when g.priority is null then j.priority else mainspring.check_priority(g.priority) end as priority,
               count(fit.session) over (order by g.number) - 1 as turn
          from unnest(jobs, enqueue_each_claimed.args, priorities, known_jobs, known_pools, sessions) with ordinality
            as g(job, args, priority, known_job, known_pool, session, number)
         cross join lateral (                    -- `limit` keeps the order given, which the ids follow
             select j.id, j.pool, j.priority, j.definition ? 'gate' or j.held is not null as gated from mainspring.job j
              where j.namespace = 'default' and j.name = g.job and not j.is_checked limit 1
         ) j
         cross join lateral (
             select case when j.id = g.known_job and j.pool = g.known_pool and not j.gated
                          and ids[g.number] is not null then g.session end as session
         ) fit
    ), claimed as materialized (
        select nextval('mainspring.claim_batch') as batch from given where given.session is not null limit 1
    ), noted as (
        insert into mainspring.claim (session, batch, tasks)
        select given.session, (select claimed.batch from claimed), array_agg(given.id order by given.number)
          from given where given.session is not null group by given.session
    ), inserted as (
        insert into mainspring.task as t
            (id, run_at, created_at, job_id, pool, state, priority, args, token, session, attempt)
        select given.id, made, made, given.job_id, given.pool,
               case when given.session is null then 1 /* pending */ else 2 /* assigned */ end, given.priority, given.args,
               case when given.session is not null then (select claimed.batch from claimed) * 2048 + given.turn end,
               given.session, case when given.session is null then 0 else 1 end
          from given
        returning t.id, t.token
    ), hint as (
        select distinct case when given.gated then 'gate ' || given.pool else 'due' end as payload
          from given where given.session is null
    )
    select array_agg(inserted.id order by place.number), array_agg(inserted.token order by place.number),
           (select count(pg_notify('mainspring', hint.payload)) from hint)
      into tasks, tokens, hints
      from generate_series(1, cardinality(jobs)) as place(number)
      left join given using (number)
      left join inserted on inserted.id = given.id;
end
$$;

-- Submissions that agents made through a server. An agent that lost the answer repeats the submission with the same id
-- and gets the first answer.
create table mainspring.submission (
    id    uuid        not null primary key,
    tasks bigint[],                              -- null only inside the transaction that submits them
    at    timestamptz not null default mainspring.now()
);
create index on mainspring.submission (at);


-- 8 Schedules -------------------------------------------------------------------------------------------------------

-- fillfactor: the planner moves the cursors of many rows.
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
    version      integer     not null default 1,
    since        timestamptz not null default mainspring.now(),   -- from when this version is in force
    generation   integer     not null default 1,        -- of a daemon; replicas of an earlier generation are outdated

    -- The planner's state.
    next_plan_at timestamptz,                           -- the cursor; null: nothing more to plan
    look_at      timestamptz,                           -- when the planner looks at it next; null: nothing to plan
    runs         bigint      not null default 0,        -- plan times that got a task
    problem      text,                                  -- why it cannot be planned at present
    skips        integer     not null default 0,        -- counts the changes of its skips: planners compare it
    skips_until  timestamptz,                           -- the last instant of its skips; null: it has none

    -- Defined by the code of an application.
    app          text,                                  -- the application; null: made by hand
    app_version  integer     not null default 0,
    code         jsonb,                                 -- what the code defined last; differs if edited by hand since
    synced_at    timestamptz,                           -- when the application last named it
    provider_app text,                                  -- the application that provides its scopes
    manifest     text,                                  -- the set of manifests that owns it; null: none does

    created_at   timestamptz not null default mainspring.now(),
    updated_at   timestamptz not null default mainspring.now(),
    unique (namespace, name)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
create index schedule_look on mainspring.schedule (look_at) where look_at is not null;
create index schedule_job on mainspring.schedule (job_id);
create index schedule_daemon on mainspring.schedule (id) where kind = 'daemon';
create index schedule_updated on mainspring.schedule (updated_at);   -- planning does not write this column
create index schedule_problem on mainspring.schedule (name) where problem is not null;
create index schedule_manifest on mainspring.schedule (manifest, name) where manifest is not null;
comment on column mainspring.schedule.next_plan_at is 'all plan times from here on are undecided';

-- When each application last named its schedules: one of its schedules with an earlier synced_at is gone from its code.
create table mainspring.app (
    name      text        primary key,
    synced_at timestamptz not null
);

-- Earlier versions, so that `explain` can say for a past plan time what was in force then.
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
    set search_path = pg_catalog, pg_temp
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

-- Plan times that a person has skipped: those from `start` through `stop` get no task. A planner reads them only for
-- schedules whose cursor has not passed `skips_until`. Those in the past are kept as long as the ledger, which they explain.
create table mainspring.schedule_skip (
    id          integer     generated always as identity primary key,
    schedule_id integer     not null references mainspring.schedule on delete cascade,
    start       timestamptz not null,
    stop        timestamptz not null check (stop >= start),    -- the same: a single plan time
    actor       text        not null,                   -- whose skip it is
    note        text        not null default '',        -- and why
    made_at     timestamptz not null
);
create index on mainspring.schedule_skip (schedule_id, stop);

-- Excluded days.
create table mainspring.calendar (
    namespace  text        not null default 'default',
    name       text        not null,
    days       text[]      not null,                    -- 2026-12-25, 12-25 of every year, sun
    version    integer     not null default 1,
    is_spread  boolean     not null default false,      -- whether all schedules that use it have been given these days
    app        text,                                    -- the application whose code defines it; null: none does
    manifest   text,                                    -- the set of manifests that owns it; null: none does
    updated_at timestamptz not null default mainspring.now(),
    primary key (namespace, name)
);

-- The ledger of decided plan times: a task, or the reason why there is none. The primary key makes double planning
-- impossible. Partitioned by day of the plan time; plan times outside the existing days, such as a backfill of long
-- ago, go to the default partition.
create table mainspring.fire (
    schedule_id integer     not null,
    plan_time   timestamptz not null,
    scope       text        not null default '',
    task_id     bigint,
    reason      text        check (reason in ('overlap', 'paused', 'misfire', 'coalesced', 'no_scopes', 'queue_full',
                                              'skipped')),
    origin      text        not null default 'plan' check (origin in ('plan', 'backfill', 'manual')),
    decided_at  timestamptz not null default mainspring.now(),
    primary key (schedule_id, plan_time, scope),
    check ((task_id is null) <> (reason is null))
) partition by range (plan_time);
create table mainspring.fire_default partition of mainspring.fire default;
-- Plan times that were decided too late to run. They are few, so the others do not pay for it.
create index fire_missed on mainspring.fire (plan_time) where reason in ('misfire', 'coalesced');

-- Of schedules with an SLO: up to which plan time their events are counted. The leader advances it in the statement that
-- adds the counts (store/followed/slo.py), so each plan time counts once.
create table mainspring.slo (
    schedule_id integer     primary key references mainspring.schedule on delete cascade,
    counted_to  timestamptz not null,                   -- plan times up to this one are counted
    look_at     timestamptz not null                    -- when the next can be
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index slo_look on mainspring.slo (look_at);

-- Events by the minute and the hour in which they were due. The minutes are kept for the burn rates, the hours for the
-- window of the objective.
create table mainspring.slo_minute (
    minute      timestamptz not null,
    schedule_id integer     not null references mainspring.schedule on delete cascade,
    good        integer     not null,
    bad         integer     not null,
    missed      integer     not null,                   -- of the bad ones, those that had not started
    primary key (schedule_id, minute)
) with (fillfactor = 70);
create index slo_minute_minute on mainspring.slo_minute (minute);

create table mainspring.slo_hour (
    hour        timestamptz not null,
    schedule_id integer     not null references mainspring.schedule on delete cascade,
    good        bigint      not null,
    bad         bigint      not null,
    missed      bigint      not null,
    primary key (schedule_id, hour)
) with (fillfactor = 70);
create index slo_hour_hour on mainspring.slo_hour (hour);

-- Of schedules with a ping_url: up to which plan time the ledger was read for tasks to tell of.
create table mainspring.ping_cursor (
    schedule_id integer     primary key references mainspring.schedule on delete cascade,
    read_to     timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Their tasks, until their ends are sent (store/followed/pings.py).
create table mainspring.ping (
    task_id     bigint      primary key,
    schedule_id integer     not null references mainspring.schedule on delete cascade,
    plan_time   timestamptz not null,
    start_told  boolean     not null default false,
    look_at     timestamptz not null                    -- when to look what became of it
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index on mainspring.ping (schedule_id, plan_time);
create index on mainspring.ping (look_at);

-- How far the leader has compared the ledger with the expressions, schedule by schedule (server/watch/ledger_audit.py).
create table mainspring.ledger_audit (
    last_id       integer     not null default 0,        -- schedules up to this one were compared in the current pass
    since         timestamptz not null default mainspring.now(),   -- plan times from here on are compared in it
    began_at      timestamptz not null default mainspring.now(),   -- the current pass
    longest_shift interval    not null default '0',      -- delay and jitter together that a schedule had, or more
    the_one       boolean     not null default true primary key check (the_one)
) with (fillfactor = 50);
insert into mainspring.ledger_audit default values;

-- Plan times that were passed over: later ones of their schedule are decided, these are not in the ledger.
create table mainspring.ledger_hole (
    schedule_id integer     not null references mainspring.schedule on delete cascade,
    plan_time   timestamptz not null,
    scope       text        not null,
    found_at    timestamptz not null default mainspring.now(),
    primary key (schedule_id, plan_time, scope)
);
create index on mainspring.ledger_hole (found_at);


-- 9 Daemons ---------------------------------------------------------------------------------------------------------
-- A daemon is a schedule of kind 'daemon': its replicas are kept running. A replica is one live task (origin 'daemon',
-- scope: its number); each life of the replica is an attempt of that task. It is in pool 0, from which the dispatcher
-- does not claim: server/dispatch/daemons.py places it.
--
-- These triggers start a new generation whenever the replicas must be restarted. Triggers, because a server of an older
-- version changes jobs and schedules too.

create function mainspring.renew_daemon() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    new.generation := old.generation + 1;
    return new;
end
$$;
create trigger renew_daemon before update on mainspring.schedule
    for each row when (
        new.kind = 'daemon'
        and (new.job_id, new.policies->'args') is distinct from (old.job_id, old.policies->'args'))
    execute function mainspring.renew_daemon();

create function mainspring.renew_daemons_of_job() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    update mainspring.schedule set generation = generation + 1 where job_id = new.id and kind = 'daemon';
    if found then
        perform pg_notify('mainspring', 'schedule');
    end if;
    return null;
end
$$;
create trigger renew_daemons after update on mainspring.job
    for each row when (new.version <> old.version) execute function mainspring.renew_daemons_of_job();


-- 10 Agents and claims ----------------------------------------------------------------------------------------------

create sequence mainspring.session;

-- One row per agent session. Its lease covers all tasks that the session holds, so a heartbeat costs one row however
-- many tasks run. fillfactor: every renewal writes the row again, into the same page.
create table mainspring.agent (
    session      bigint      not null default nextval('mainspring.session') primary key,
    name         text        not null,
    instance     text,                           -- hash of the agent process's secret
    connection   integer     not null default 1, -- the agent process's own count of its connections
    successor    bigint,                         -- the session that took over the tasks of this one
    server       uuid,                           -- the server that it is connected to
    token_id     integer,                        -- the token it authenticated with; null: inside a server's process
    host         text,
    version      text,
    process      text,                           -- its process: others on the same machine see that it died
    slots        integer     not null,
    labels       jsonb       not null default '{}',
    offers       jsonb       not null default '{}',     -- amounts, for the "@needs" of a pool
    connected_at timestamptz not null default mainspring.now(),
    lease_until  timestamptz not null,
    ended_at     timestamptz,
    disconnected_at timestamptz,                 -- its connection has closed, and its lease still covers what it holds

    -- From its last heartbeat, as of the last renewal.
    heard_at     timestamptz,
    running      integer,
    cpu          real,
    memory       real,
    skew         real,                           -- seconds by which its wall clock is ahead of the database's
    skewed_since timestamptz,                    -- first renewal of those in a row with more skew than its server allows
    round_trip   real,                           -- seconds, of a heartbeat
    ack_time     real,                           -- seconds until it acknowledges a dispatch
    reliability  real,                           -- share of dispatches that arrived at the first try
    lead         real,                           -- seconds before its time that a task is armed on it
    blocked      integer     not null default 0, -- how often its event loop was blocked for more than a second
    blocked_seconds real     not null default 0
) with (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
create index on mainspring.agent (instance);
create index on mainspring.agent (name, session);       -- `agents list` and `agents show`: the last session of a name
-- Not on lease_until: with that column indexed, every renewal had to write all indexes. Living sessions are few enough
-- to scan. Decision 20 has the figures.
create index agent_living on mainspring.agent (session) where ended_at is null;

-- Agents that take no new tasks. By name, so that an agent that reconnects or restarts stays drained until undrained.
create table mainspring.draining (
    name  text        primary key,
    since timestamptz not null default mainspring.now()
);

-- The tasks that a session has claimed, one row per claim. Finds an agent's tasks without an index that every task
-- would pay for. May name tasks that have ended since; the task's row is authoritative. No fillfactor: all its updates
-- stay in their page anyway, and more room only made it larger.
create table mainspring.claim (
    session bigint   not null,
    batch   bigint   not null,
    tasks   bigint[] not null,
    undispatched  boolean  not null default false,     -- made by another server: the session's own has yet to send it
    primary key (session, batch)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
alter table mainspring.claim alter column tasks set storage external;   -- inline only since PostgreSQL 16
create index claim_undispatched on mainspring.claim (session) where undispatched;

-- The newest hello of each agent process: its row orders the hellos of one process. No hello comes a day late, so it is
-- kept that long.
create table mainspring.agent_process (
    instance   text        primary key,
    connection integer     not null,             -- the process's own count of its connections
    at         timestamptz not null default mainspring.now()
);
create index on mainspring.agent_process (at);

-- Before a session `opened` of an agent process begins: whether it may, and what it takes over. `connection` is the
-- process's own count. A hello may be carried out late, when its agent has connected elsewhere and was given more tasks
-- there: then a newer hello was seen, nothing changes, and null is returned. Else, if the agent `resumes`, its earlier
-- sessions end whose lease has not expired, and the attempts that it still holds move to the new one. What it no longer
-- holds is left to the rescuer. Returns the batch that notes the attempts, or 0. The earlier sessions are found by
-- `instance`: if a welcome was lost, the agent does not know their number.
-- plpgsql: each statement sees what was committed before the row of the process was locked, so two hellos of one process
-- at the same moment act one after the other, in either order.
create function mainspring.supersede(
    instance text, connection integer, opened bigint, resumes boolean, tasks bigint[], tokens bigint[]
) returns bigint
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    noted bigint := 0;
    moved bigint[];
begin
    if instance is null then
        return 0;
    end if;
    insert into mainspring.agent_process as p (instance, connection)
    values (supersede.instance, supersede.connection)
    on conflict on constraint agent_process_pkey do update
       set connection = excluded.connection, at = excluded.at where p.connection < excluded.connection;
    if not found then
        return null;
    end if;
    if resumes then
        with old as (
            update mainspring.agent a set ended_at = mainspring.now(), successor = opened
             where a.instance = supersede.instance and a.ended_at is null and a.lease_until > mainspring.now()
            returning a.session
        ), taken as (
            update mainspring.task t set session = opened
              from unnest(supersede.tasks, supersede.tokens) as given(id, token)
             where t.id = any (array[given.id]) and t.token = given.token
               and t.state in (2 /* assigned */, 3 /* running */)
               and t.session in (select old.session from old)
            returning t.id
        )
        select array_agg(taken.id) into moved from taken;
    end if;
    if moved is not null then
        noted := nextval('mainspring.claim_batch');
        insert into mainspring.claim (session, batch, tasks) values (opened, noted, moved);
    end if;
    return noted;
end
$$;

-- Attempts that an agent is to stop, because their task was taken from it while its session lives. The session's server
-- sends the order; an agent that returns in another session learns it from what it may keep.
create table mainspring.stop_order (
    session bigint      not null,
    task_id bigint      not null,
    token   bigint      not null,
    at      timestamptz not null default mainspring.now(),
    primary key (session, token)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);


-- 11 Servers, segments, leader --------------------------------------------------------------------------------------

-- fillfactor: every heartbeat writes the row again, into the same page.
create table mainspring.server (
    id           uuid        primary key,
    name         text        not null,
    incarnation  bigint      not null default 1,   -- grows with each start; fences off earlier ones
    version      text        not null,
    host         text        not null default '',
    url          text,                             -- where agents connect; null: nowhere
    api_url      text,                             -- where its HTTP API is; null: it has none
    app          text,                             -- the application whose code it has
    process      text,                             -- its process: others on the same machine see that it died
    status       text        not null check (status in ('active', 'draining', 'stopped', 'dead')),
    started_at   timestamptz not null default mainspring.now(),
    heartbeat_at timestamptz not null default mainspring.now(),
    lease_until  timestamptz not null default mainspring.now(),
    ended_at     timestamptz,                      -- since when it is stopped or dead
    agents       integer     not null default 0,   -- connected to it

    -- Since its start.
    scanned      bigint      not null default 0,   -- schedules that its planner looked at
    planned      bigint      not null default 0,   -- plan times that it decided
    dispatched   bigint      not null default 0,   -- tasks that it claimed for agents
    recorded     bigint      not null default 0,   -- ends of tasks that it wrote
    scanned_at   timestamptz,                      -- last scan of its planner
    scan_seconds real,                             -- duration of that scan
    claim_seconds real,                            -- of its last claim that found tasks
    blocked      integer     not null default 0,   -- how often its event loop was blocked for more than a second
    blocked_seconds real     not null default 0
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Slices of the schedules and tasks, each owned by one server at a time, under an epoch.
create table mainspring.segment (
    id    smallint    primary key check (id between 0 and 99),
    owner uuid        references mainspring.server,
    epoch bigint      not null default 0,
    since timestamptz not null default mainspring.now()
);
insert into mainspring.segment (id) select generate_series(0, 99);
create index segment_owner on mainspring.segment (owner);

-- How segments changed hands, for people to read.
create table mainspring.segment_move (
    id        bigint      generated always as identity primary key,
    at        timestamptz not null default mainspring.now(),
    term      bigint      not null,                -- of the leader that moved them; 0: the owner released them
    old_owner uuid,
    new_owner uuid,
    reason    text        not null check (reason in ('free', 'dead', 'stopped', 'balance', 'released')),
    segments  smallint[]  not null
);
create index on mainspring.segment_move (at);

create table mainspring.leader (
    id          boolean     primary key default true check (id),   -- allows one row
    owner       uuid,
    term        bigint      not null default 0,
    lease_until timestamptz not null default mainspring.now(),
    backend     integer,                           -- of the connection that holds the advisory lock
    elected_at  timestamptz
);
insert into mainspring.leader default values;

-- Pools that have tasks in the segments of `server` but no agent with room there: other servers may claim them.
create table mainspring.shared_pool (
    server uuid    not null references mainspring.server on delete cascade,
    pool   integer not null,
    primary key (pool, server)
);


-- 12 Access ---------------------------------------------------------------------------------------------------------

create table mainspring.token (
    id           integer     generated always as identity primary key,
    name         text        not null,
    role         text        not null
                 check (role in ('viewer', 'submitter', 'operator', 'admin', 'metrics', 'agent')),
    hash         bytea       not null unique,
    jobs         text[]      not null default '{}',      -- patterns of names that narrow the role; empty: all jobs
    namespaces   text[]      not null default '{*}',
    rate         real        check (rate > 0),           -- requests per second; null: no limit of its own
    parent       integer     references mainspring.token,   -- the one-time token that this credential came from
    once         boolean     not null default false,   -- admits one agent, which gets a credential in exchange
    agents       text[],                               -- patterns of the names that its agents may have; null: any
    labels       text[],                               -- patterns of their labels and offers; null: any
    used_by      text,                                 -- hash of the instance that it admitted
    used_at      timestamptz,                          -- first
    last_used_at timestamptz,                          -- written at most once a minute
    created_by   text,                                 -- actor
    created_at   timestamptz not null default mainspring.now(),
    expires_at   timestamptz,
    revoked_at   timestamptz
);
create index on mainspring.token (parent);

-- One-time codes of login links. Using one deletes its row.
create table mainspring.login_code (
    hash       bytea       primary key,
    actor      text        not null,                   -- who made it; its session acts in that name
    role       text        not null check (role in ('viewer', 'submitter', 'operator', 'admin')),
    jobs       text[]      not null default '{}',
    token_id   integer     references mainspring.token on delete cascade,   -- which it ends with
    created_at timestamptz not null default mainspring.now(),
    expires_at timestamptz not null
);
create index on mainspring.login_code (expires_at);

-- Sessions of the console. To revoke one is to delete its row.
create table mainspring.console_session (
    id           integer     generated always as identity primary key,
    hash         bytea       not null unique,          -- of the cookie's secret
    actor        text        not null,                 -- whose login it came from: a token or `os:user@host`
    role         text        not null check (role in ('viewer', 'submitter', 'operator', 'admin')),
    jobs         text[]      not null default '{}',
    token_id     integer     references mainspring.token on delete cascade,   -- which it ends with
    address      text,                                 -- where the login came from
    created_at   timestamptz not null default mainspring.now(),
    last_seen_at timestamptz not null default mainspring.now(),   -- written at most once a minute
    expires_at   timestamptz not null
);
create index on mainspring.console_session (expires_at);
create index on mainspring.console_session (token_id);

-- Encrypted with a key that the database does not have, for its name and version: model/secrets/encryption.py.
create table mainspring.secret (
    name       text        primary key,
    version    integer     not null,
    key_id     text        not null,                   -- of the key that it is encrypted with
    nonce      bytea       not null,
    ciphertext bytea       not null,
    labels     jsonb       not null default '{}'       -- that an agent must have to get it
               check (jsonb_typeof(labels) = 'object'
                      and not jsonb_path_exists(labels, '$.* ? (@.type() != "string")')),
    created_at timestamptz not null default mainspring.now(),
    created_by text        not null,
    updated_at timestamptz not null default mainspring.now(),
    updated_by text        not null
);

-- Answers to requests with an idempotency key, for a client that sends the same one again.
create table mainspring.request (
    caller     text        not null,                   -- token/7, session/3: keys of others do not matter
    key        text        not null,
    digest     bytea       not null,                   -- of the request
    status     smallint    not null,
    body       bytea       not null,
    headers    jsonb       not null,
    expires_at timestamptz not null,
    primary key (caller, key)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
create index on mainspring.request (expires_at);

-- Append-only: the roles of servers may neither update nor delete (store/postgres/roles.py).
create table mainspring.audit (
    id         bigint      generated always as identity primary key,
    at         timestamptz not null default mainspring.now(),
    actor      text        not null,                   -- `os:alice@host`, `token:ci`, `session:3`, `agent:web-1`
    role       text        not null,
    token_id   integer,                                -- that the actor came with; names are not unique
    action     text        not null,                   -- such as task.cancel
    subject    text,                                   -- such as task:17
    changes    jsonb,                                  -- member → old, new; secrets are masked
    detail     jsonb,
    refused    text,                                   -- why; null: it was done
    address    text,
    request_id text
);
create index on mainspring.audit (at);

-- What retention drops. Never anything of the last day.
create function mainspring.forget_audit(keep interval, most integer) returns bigint
    language sql volatile strict security definer
    set search_path = pg_catalog, pg_temp
as $$
    with old as (
        delete from mainspring.audit where ctid = any (array(
            select a.ctid from mainspring.audit a
             where a.at < (select mainspring.now()) - greatest(keep, interval '1 day')
             order by a.at limit most for update skip locked))
        returning 1
    )
    select count(*) from old
$$;


-- 13 Settings and maintenance ---------------------------------------------------------------------------------------

-- Settings of the whole cluster that can be changed at run time.
create table mainspring.setting (
    name       text        primary key,
    value      jsonb       not null,
    version    integer     not null default 1,           -- counts the changes
    updated_at timestamptz not null default mainspring.now(),
    updated_by text
);

-- What each chore of the janitor has done, since the schema was made and in its last run.
create table mainspring.chore (
    name         text        primary key,
    runs         bigint      not null default 0,
    rows         bigint      not null default 0,
    failures     bigint      not null default 0,
    last_at      timestamptz not null,
    last_seconds real        not null,
    last_rows    bigint      not null,
    last_error   text,                             -- of the last run; null: it succeeded
    failing_since timestamptz                      -- since when every run has failed; null: the last one succeeded
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Up to when the tasks of jobs that keep them equally long have been deleted: store/maintenance/job_retention.py.
create table mainspring.retention_mark (
    kind   text        not null check (kind in ('succeeded', 'failed')),
    keep   interval    not null,
    others boolean     not null,                       -- the jobs are all but these
    jobs   integer[]   not null,
    upto   timestamptz not null,
    primary key (kind, keep, others)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Statistics of a table, unless it is locked.
create function mainspring.analyze_table(name text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('analyze (skip_locked) mainspring.%I', name);
end
$$;

-- Locks that a transaction takes by `for update`. Rows, because any role that can connect may take an advisory lock, and
-- keep it.
create table mainspring.work_lock (name text primary key);
insert into mainspring.work_lock values ('partitions'), ('replicas'), ('admin token'), ('after'), ('manifest');


-- 14 Figures --------------------------------------------------------------------------------------------------------
-- What answers "how many, how late, how long" without reading a task or the history. Lists of counts are histograms with
-- the buckets of model/figures/buckets.py; null: no value. Decision 39 says who counts what, and when.

-- Attempts by the minute of their recording. A writer is one run of a server's recorder: only it writes its rows, and
-- always whole, so what was written before the answer was lost is written again without harm.
create table mainspring.figure (
    minute       timestamptz      not null,
    writer       uuid             not null,
    duration_sum double precision not null default 0,   -- seconds
    planned_sum  double precision not null default 0,
    due_sum      double precision not null default 0,
    job_id       integer          not null,             -- 0: of all jobs together; -1: of jobs that are not known
    count        integer          not null,
    duration_max real             not null default 0,
    planned_max  real             not null default 0,
    due_max      real             not null default 0,
    outcome      smallint         not null,             -- a final state
    again        boolean          not null,             -- the attempt did not end its task, which ran again
    durations    integer[],
    planned      integer[],                             -- lateness of first attempts that a schedule planned
    due          integer[],                             -- lateness of other first attempts
    primary key (job_id, minute, writer, outcome, again)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);
create index figure_minute on mainspring.figure (minute);

-- The same by the hour, of all writers together. The janitor makes it of the minutes of each hour that is over.
create table mainspring.figure_hour (
    hour         timestamptz      not null,
    duration_sum double precision not null,
    planned_sum  double precision not null,
    due_sum      double precision not null,
    job_id       integer          not null,
    count        bigint           not null,
    duration_max real             not null,
    planned_max  real             not null,
    due_max      real             not null,
    outcome      smallint         not null,
    again        boolean          not null,
    durations    bigint[],
    planned      bigint[],
    due          bigint[],
    primary key (job_id, hour, outcome, again)
);
create index figure_hour_hour on mainspring.figure_hour (hour);

-- Tasks that ended without an attempt, such as those that were cancelled while they waited. Whatever ends them notes it
-- here in the same statement; the leader moves the notes into mainspring.figure. No key: writers never meet.
create table mainspring.figure_note (
    at      timestamptz not null default mainspring.now(),
    job_id  integer     not null,
    count   integer     not null,
    outcome smallint    not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The live tasks by job and state, as the leader has last counted them. Jobs without live tasks have no row.
create table mainspring.queue_figure (
    oldest timestamptz not null,                         -- the first run_at among them
    tasks  bigint      not null,
    due    bigint      not null,                         -- those whose run_at had come
    limited bigint     not null default 0,               -- those of them that wait for a limit, not for an agent
    job_id integer     not null,
    state  smallint    not null,
    primary key (job_id, state)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- When they were counted, and how.
create table mainspring.queue_count (
    counted_at   timestamptz not null,
    created      bigint      not null,                   -- the last value of the sequence task_id
    seconds      real        not null,                   -- what counting took
    is_estimated boolean     not null,                   -- from a sample
    the_one      boolean     not null default true primary key check (the_one)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The first count of each minute, for those jobs that have most tasks.
create table mainspring.queue_minute (
    minute       timestamptz not null,
    counted_at   timestamptz not null,
    oldest       timestamptz,                            -- run_at of the pending task that was due longest
    created      bigint      not null,
    waiting      bigint      not null,                   -- blocked or pending
    due          bigint      not null,                   -- pending, and their time had come
    limited      bigint      not null default 0,         -- those of them that wait for a limit, not for an agent
    active       bigint      not null,                   -- assigned or running
    job_id       integer     not null,                   -- 0: of all jobs together
    is_estimated boolean     not null,
    primary key (job_id, minute)
);
create index queue_minute_minute on mainspring.queue_minute (minute);


-- 15 Alerts ---------------------------------------------------------------------------------------------------------
-- The leader evaluates the rules: what it finds becomes rows of mainspring.alert, and what is to be told of them rows of
-- mainspring.alert_delivery, in the same transaction; then it sends those. Decision 45.

-- Where messages go. The URL and the secret are not for eyes: store/postgres/roles.py keeps them from viewers.
create table mainspring.channel (
    name          text        primary key,
    kind          text        not null check (kind in ('webhook', 'slack')),
    url           text,
    url_from      text,                               -- the secret that holds the URL, in place of `url`
    secret        text,                               -- signs what is sent; null, as is the next: nothing is signed
    secret_from   text,                               -- the secret that holds it, in place of `secret`
    shown_url     text        not null,               -- without what is secret in it
    is_signed     boolean     not null generated always as (secret is not null or secret_from is not null) stored,
    enabled       boolean     not null default true,
    version       integer     not null default 1,
    delivered_at  timestamptz,                        -- the last time that the receiver took a message
    failing_since timestamptz,                        -- since when it has refused all; null: it took the last one
    last_error    text,                               -- why
    created_at    timestamptz not null default mainspring.now(),
    updated_at    timestamptz not null default mainspring.now(),
    check (num_nonnulls(url, url_from) = 1 and num_nonnulls(secret, secret_from) <= 1)
);

create table mainspring.alert_rule (
    name         text        primary key,
    kind         text        not null,                -- model/alerts/kinds.py
    names        text[]      not null default '{}',   -- patterns of what it looks at; empty: everything
    parameters   jsonb       not null default '{}',   -- of its kind
    hold         interval    not null default '0',    -- for how long a condition must last before it fires
    severity     text        not null default 'warning' check (severity in ('info', 'warning', 'critical')),
    channels     text[]      not null default '{}',   -- empty: all
    repeat       interval,                            -- told again so long after the last time, while it fires
    calendar     text,                                -- quiet on the days of this calendar,
    timezone     text        not null default 'UTC',  -- which are days of this zone
    enabled      boolean     not null default true,
    is_builtin   boolean     not null default false,
    version      integer     not null default 1,
    created_at   timestamptz not null default mainspring.now(),
    updated_at   timestamptz not null default mainspring.now(),

    -- The leader's state.
    looked_to    timestamptz,                         -- events up to this instant have been found
    evaluated_at timestamptz,
    told_at      timestamptz,                         -- the last message
    problem      text                                 -- why it could not be evaluated the last time
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- What works without configuration, as soon as there is a channel. They are rows like others: to be changed or deleted.
insert into mainspring.alert_rule (name, kind, hold, severity, repeat, is_builtin) values
    ('failed',           'failed',           '0',          'warning',  null,       true),
    ('missed',           'missed',           '0',          'critical', null,       true),
    ('expired',          'expired',          '0',          'warning',  null,       true),
    ('queue-age',        'queue_age',        '1 minute',   'warning',  '4 hours',  true),
    ('queue-full',       'queue_full',       '1 minute',   'warning',  '4 hours',  true),
    ('unrunnable',       'unrunnable',       '1 minute',   'warning',  '4 hours',  true),
    ('no-agents',        'no_agents',        '1 minute',   'critical', '1 hour',   true),
    ('agent-lost',       'agent_lost',       '1 minute',   'warning',  null,       true),
    ('clock-skew',       'clock_skew',       '5 minutes',  'warning',  '24 hours', true),
    ('server-dead',      'server_dead',      '1 minute',   'warning',  null,       true),
    ('daemon-down',      'daemon_down',      '2 minutes',  'critical', '4 hours',  true),
    ('schedule-problem', 'schedule_problem', '1 minute',   'warning',  '24 hours', true),
    ('slo-burn',         'slo_burn',         '0',          'critical', '4 hours',  true);

-- What a rule has found of one subject. Each move leaves the state that its statement names: store/alerts/alerts.py.
create table mainspring.alert (
    id           bigint      generated always as identity primary key,
    rule         text        not null,
    kind         text        not null,
    severity     text        not null,
    subject      text        not null,                -- such as job:report
    job          text,                                -- that it is about; only who reaches that job sees it
    state        text        not null check (state in ('pending', 'firing', 'resolved')),
    is_event     boolean     not null,                -- it happened, and is sent once; else it lasts until it is resolved
    message      text        not null,
    details      jsonb       not null,
    since        timestamptz not null,
    pending_at   timestamptz not null,                -- first found
    seen_at      timestamptz not null,                -- last found
    fired_at     timestamptz,
    resolved_at  timestamptz,
    count        bigint      not null,                -- events
    told         text        check (told in ('firing', 'resolved')),   -- the state that the last message about it told
    told_at      timestamptz,
    untold       bigint      not null default 0,      -- events that no message has told
    events       jsonb       not null default '[]',   -- the first of those
    untold_since timestamptz,                         -- when it first had something to tell; null: it has not
    changed_at   timestamptz not null                 -- for those who watch; not by being found again
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
create unique index alert_open on mainspring.alert (rule, subject) where state <> 'resolved';
create index alert_untold on mainspring.alert (rule) where untold_since is not null;
create index on mainspring.alert (changed_at);

-- Messages to channels. Its id is the same however often it is sent.
create table mainspring.alert_delivery (
    id          uuid        primary key default gen_random_uuid(),
    channel     text        not null,
    rule        text,                                 -- null: a test of the channel
    message     json        not null,                 -- not jsonb: each try sends, and signs, the same bytes
    state       text        not null default 'pending' check (state in ('pending', 'delivered', 'given_up')),
    attempts    integer     not null default 0,
    created_at  timestamptz not null,
    next_try_at timestamptz not null,
    ended_at    timestamptz,                          -- delivered, or given up
    last_error  text
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
create index alert_delivery_pending on mainspring.alert_delivery (next_try_at) where state = 'pending';
create index on mainspring.alert_delivery (created_at);

-- Rules and subjects that are not told of for a while.
create table mainspring.mute (
    id         integer     generated always as identity primary key,
    rules      text[]      not null default '{}',     -- patterns; empty: all
    subjects   text[]      not null default '{}',     -- the same
    until      timestamptz not null,
    note       text        not null,
    created_by text        not null,
    created_at timestamptz not null default mainspring.now()
);
create index on mainspring.mute (until);


-- 16 Batches --------------------------------------------------------------------------------------------------------
-- Tasks that are counted together, and the callbacks that come when they end. Decision 51 says why it is built so.
--
--   open → closed → ended, and by the retry of a task back to closed
--
-- A batch ends when it is closed and none of its tasks and batches is live. To join one is to lock its row against the
-- statement that ends it (for key share) until the joining transaction is over; those that join do not wait for each
-- other, nor for the counting. What changes a count inserts a row into batch_change, in the statement that changes the
-- task. settle_batch() adds these up and ends the batch, and whatever should make it look inserts a change of nothing.

create table mainspring.batch (
    id           bigint      generated always as identity (maxvalue 9007199254740991) primary key,
    namespace    text        not null default 'default',
    name         text        not null,
    state        smallint    not null default 0 check (state between 0 and 2),    -- open, closed, ended
    outcome      smallint,                             -- of one that has ended: succeeded, failed, cancelled or skipped
    parent       bigint,                               -- the batch that this one is a member of
    callbacks    jsonb       not null default '{}',    -- success, complete, failure → job, args, priority
    created_by   text        not null,                 -- actor, or role
    submitted_by text,                                 -- as in mainspring.task
    created_at   timestamptz not null default mainspring.now(),
    closed_at    timestamptz,
    ended_at     timestamptz,
    cancelled_at timestamptz,                          -- set: it takes no more, and servers cancel what is live in it
    kills        boolean     not null default false,   -- without grace
    retry_before timestamptz                           -- set: servers retry what failed before; until then it cannot end
);
create index batch_parent on mainspring.batch (parent) where parent is not null;
create index batch_closed on mainspring.batch (id) where state = 1;
create index batch_ended on mainspring.batch (ended_at) where state = 2;
create index batch_commanded on mainspring.batch (id)
    where state < 2 and (cancelled_at is not null or retry_before is not null);

-- Apart from the batch, whose row those that join lock: it changes seldom.
create table mainspring.batch_count (
    batch_id      bigint not null primary key references mainspring.batch on delete cascade,
    total         bigint not null default 0,
    succeeded     bigint not null default 0,
    failed        bigint not null default 0,
    timed_out     bigint not null default 0,
    cancelled     bigint not null default 0,
    skipped       bigint not null default 0,
    lost          bigint not null default 0,
    sampled_at    timestamptz,                         -- two looks at how many had ended, half a minute apart: the rate
    sampled       bigint,
    sampled_before_at timestamptz,
    sampled_before    bigint
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Insert only, so that nothing that submits or ends tasks waits for another. No foreign key for the same reason.
create table mainspring.batch_change (
    batch_id bigint   not null,
    outcome  smallint,                                 -- a final state; null: tasks that joined; from 100 on: what a
                                                       -- client's close() did itself, for the metrics of a server
    count    integer  not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index batch_change_batch on mainspring.batch_change (batch_id);

-- The primary key lets each callback be enqueued once.
create table mainspring.batch_callback (
    batch_id bigint      not null references mainspring.batch on delete cascade,
    event    text        not null check (event in ('success', 'complete', 'failure')),
    at       timestamptz not null default mainspring.now(),
    task_id  bigint,
    error    text,                                     -- why there is no task
    primary key (batch_id, event)
);

create function mainspring.no_such_batch(batch bigint) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'batch: no batch %; it never existed, or retention dropped it', batch using errcode = 'MSB01';
end
$$;

-- Whether the caller may use a batch: a role that reads only its own tasks has only its own batches.
create function mainspring.uses_batch(submitted_by text) returns boolean
    language sql stable
    return mainspring.reads_all(mainspring.caller()) or submitted_by is not distinct from mainspring.caller();

-- `more` tasks, or a batch, join in this transaction. It cannot end before the transaction does.
create function mainspring.join_batch(batch bigint, more bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    was record;
begin
    select b.state, b.cancelled_at, b.submitted_by into was from mainspring.batch b
     where b.id = join_batch.batch for key share;
    if not found or not mainspring.uses_batch(was.submitted_by) then
        perform mainspring.no_such_batch(batch);
    end if;
    if was.state = 2 /* ended */ or was.cancelled_at is not null then
        raise exception 'batch: % has %; it takes no more tasks', batch,
            case when was.cancelled_at is null then 'ended' else 'been cancelled' end
            using errcode = 'MSB02', detail = jsonb_build_object('id', batch);
    end if;
    insert into mainspring.batch_change (batch_id, count) values (join_batch.batch, more);
end
$$;

-- A new batch, open; returns its id. A callback is {"job": …, "args": {…}, "priority": …}, or null.
create function mainspring.open_batch(
    name       text,
    on_success jsonb  default null,                    -- all have succeeded
    on_complete jsonb default null,                    -- all have ended
    on_failure jsonb  default null,                    -- the first has failed for good
    parent     bigint default null,
    created_by text   default null,
    namespace  text   default 'default'
) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    made  bigint;
    given record;
    calls jsonb := (
        select coalesce(jsonb_object_agg(each.event, each.callback), '{}')
          from (values ('success', on_success), ('complete', on_complete), ('failure', on_failure)) as each(event, callback)
         where each.callback is not null);
begin
    if not mainspring.reads_all(mainspring.caller()) then
        created_by := null;                      -- a producer is known by its role
    end if;
    if name is null or length(name) not between 1 and 200 or name ~ '[[:cntrl:]]' then
        raise exception 'name: 1 to 200 characters, none of them a control character' using errcode = 'MSV01';
    end if;
    for given in select key as event, value as callback from jsonb_each(calls) loop
        if jsonb_typeof(given.callback) <> 'object' or exists (
            select from jsonb_object_keys(given.callback) as has(name)
             where has.name not in ('job', 'args', 'priority')) then
            raise exception 'on_%: give an object with job, and args and priority where they are wanted', given.event
                using errcode = 'MSV01';
        end if;
        perform from mainspring.job j
          where j.namespace = open_batch.namespace and j.name = given.callback->>'job';
        if not found then
            perform mainspring.no_such_job(given.callback->>'job');
        end if;
        perform mainspring.check_args(coalesce(given.callback->'args', '{}'));
        if given.callback ? 'priority' then
            perform mainspring.check_priority(given.callback->>'priority');
        end if;
    end loop;
    if parent is not null then
        perform mainspring.join_batch(parent, 1);
    end if;
    insert into mainspring.batch (namespace, name, parent, callbacks, created_by, submitted_by)
    values (open_batch.namespace, open_batch.name, open_batch.parent, calls,
            left(coalesce(open_batch.created_by, mainspring.caller()), 200), nullif(mainspring.caller(), current_user))
    returning id into made;
    insert into mainspring.batch_count (batch_id) values (made);
    return made;
end
$$;

-- From now on the batch ends with its last task; at once, if none is live. Returns whether it was open.
create function mainspring.close_batch(batch bigint) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    was_open boolean;
begin
    perform from mainspring.batch b where b.id = close_batch.batch and mainspring.uses_batch(b.submitted_by);
    if not found then
        perform mainspring.no_such_batch(batch);
    end if;
    update mainspring.batch b set state = 1 /* closed */, closed_at = mainspring.now()
     where b.id = close_batch.batch and b.state = 0 /* open */;
    was_open := found;
    if was_open then
        perform mainspring.look_at_batch(batch);
    end if;
    return was_open;
end
$$;

-- A server will settle the batch after this transaction.
create function mainspring.look_at_batch(batch bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into mainspring.batch_change (batch_id, count) values (look_at_batch.batch, 0);
    perform pg_notify('mainspring', 'batch');
end
$$;

-- Takes the changes of a batch, whose count the caller has locked, into the count. Returns how many of its members are
-- live, and how many have failed for good among the changes.
create function mainspring.add_up_batch(batch bigint, out live bigint, out failures bigint)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    with taken as (
        delete from mainspring.batch_change c
         where c.batch_id = add_up_batch.batch and (c.outcome is null or c.outcome < 100) returning c.outcome, c.count
    ), change as (
        select coalesce(sum(count) filter (where outcome is null), 0) as total,
               coalesce(sum(count) filter (where outcome = 10), 0) as succeeded,
               coalesce(sum(count) filter (where outcome = 11), 0) as failed,
               coalesce(sum(count) filter (where outcome = 12), 0) as timed_out,
               coalesce(sum(count) filter (where outcome = 13), 0) as cancelled,
               coalesce(sum(count) filter (where outcome = 14), 0) as skipped,
               coalesce(sum(count) filter (where outcome = 15), 0) as lost,
               coalesce(sum(count) filter (where outcome in (11, 12, 15) and count > 0), 0) as failures
          from taken
    ), was as (
        select c.sampled_at is null or c.sampled_at < mainspring.now() - interval '30 seconds' as is_old,
               c.succeeded + c.failed + c.timed_out + c.cancelled + c.skipped + c.lost as ended
          from mainspring.batch_count c where c.batch_id = add_up_batch.batch
    )
    update mainspring.batch_count c
       set total = c.total + change.total, succeeded = c.succeeded + change.succeeded,
           failed = c.failed + change.failed, timed_out = c.timed_out + change.timed_out,
           cancelled = c.cancelled + change.cancelled, skipped = c.skipped + change.skipped,
           lost = c.lost + change.lost,
           sampled_at = case when was.is_old then mainspring.now() else c.sampled_at end,
           sampled = case when was.is_old then was.ended else c.sampled end,
           sampled_before_at = case when was.is_old then c.sampled_at else c.sampled_before_at end,
           sampled_before = case when was.is_old then c.sampled else c.sampled_before end
      from change, was
     where c.batch_id = add_up_batch.batch
    returning c.total - c.succeeded - c.failed - c.timed_out - c.cancelled - c.skipped - c.lost, change.failures
      into live, failures;
end
$$;

-- Enqueues the callback of an event, if the batch has one and it was not enqueued before. Like a retry it is not refused
-- where a queue is full. Its task knows the counts, and up to 100 of the tasks that failed.
create function mainspring.call_back(batch bigint, event text) returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    its        record;
    definition record;
    made       timestamptz := mainspring.now();
    task       bigint;
    level      smallint;
    rule       text;
    options    jsonb;
begin
    select b.namespace, b.name, b.submitted_by, b.callbacks->event as callback,
           coalesce(b.callbacks->event->'args', '{}') as args
      into its from mainspring.batch b where b.id = call_back.batch;
    if its.callback is null then
        return false;
    end if;
    insert into mainspring.batch_callback (batch_id, event) values (call_back.batch, call_back.event)
    on conflict do nothing;                      -- the guard
    if not found then
        return false;
    end if;
    select j.id, j.pool, j.priority, j.definition ? 'gate' or j.held is not null as gated, j.expires, j.max_queued,
           j.rule_when, j.rule_level, j.rule_shift, j.rule_force, j.rule_option, j.rule_fields
      into definition from mainspring.job j
     where j.namespace = its.namespace and j.name = its.callback->>'job';
    if not found then
        update mainspring.batch_callback c set error = format('no job named %L', its.callback->>'job')
         where c.batch_id = call_back.batch and c.event = call_back.event;
        return false;
    end if;
    level := mainspring.check_priority(coalesce(its.callback->>'priority', definition.priority::text));
    select jsonb_build_object('callback', jsonb_build_object(
               'batch', c.batch_id, 'name', its.name, 'event', event, 'total', c.total, 'succeeded', c.succeeded,
               'failed', c.failed, 'timed_out', c.timed_out, 'cancelled', c.cancelled, 'skipped', c.skipped,
               'lost', c.lost, 'failed_ids', array(
                   select h.id from mainspring.task_history_failed h
                    where h.batch_id = c.batch_id order by h.id limit 100)))
      into options from mainspring.batch_count c where c.batch_id = call_back.batch;
    if definition.rule_when is not null then
        select ruled.ranked, ruled.rule into level, rule from mainspring.by_rules(
            definition.id, definition.rule_when, definition.rule_level, definition.rule_shift, definition.rule_force,
            definition.rule_option, definition.rule_fields, its.args, null, 'batch',
            coalesce(its.submitted_by, mainspring.caller()), its.callback ? 'priority', level) ruled;
        if rule is not null then
            options := options || jsonb_build_object('rule', rule);
        end if;
    end if;
    insert into mainspring.task
        (run_at, created_at, job_id, pool, state, priority, args, submitted_by, expires_at, is_bounded, options)
    values (made, made, definition.id, definition.pool, 1 /* pending */, level, its.args, its.submitted_by,
            mainspring.deadline(made, definition.expires), case when definition.max_queued is not null then true end,
            options)
    returning id into task;
    update mainspring.batch_callback c set task_id = task
     where c.batch_id = call_back.batch and c.event = call_back.event;
    perform pg_notify('mainspring', case when definition.gated then 'gate ' || definition.pool else 'due' end);
    return true;
end
$$;

-- Adds up what has changed, and ends the batch if it is closed and nothing of it lives. Null: another does so now.
-- A statement that comes after the row was locked sees all that has joined: what had not been committed by then kept the
-- row from being locked.
create function mainspring.settle_batch(batch bigint, out ended boolean, out fired integer)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    live     bigint;
    failures bigint;
    more     bigint;
    was      record;
    final    smallint;
begin
    perform from mainspring.batch_count c where c.batch_id = settle_batch.batch for no key update skip locked;
    if not found then
        return;
    end if;
    ended := false;
    fired := 0;
    select a.live, a.failures into live, failures from mainspring.add_up_batch(batch) a;
    if live <= 0 then
        select b.cancelled_at, b.parent into was from mainspring.batch b
         where b.id = settle_batch.batch and b.state = 1 /* closed */ and b.retry_before is null
           for update skip locked;
        if found then
            select a.live, a.failures into live, more from mainspring.add_up_batch(batch) a;
            failures := failures + more;
            ended := live <= 0
                and not exists (select from mainspring.task t where t.batch_id = settle_batch.batch)
                and not exists (select from mainspring.batch b where b.parent = settle_batch.batch and b.state < 2);
        end if;
    end if;
    if failures > 0 then
        fired := fired + mainspring.call_back(batch, 'failure')::integer;
    end if;
    if ended then
        select case when was.cancelled_at is not null then 13 /* cancelled */
                    when c.failed + c.timed_out + c.lost > 0 then 11 /* failed */
                    when c.cancelled > 0 then 13 /* cancelled */
                    when c.skipped > 0 then 14 /* skipped */
                    else 10 /* succeeded */ end
          into final from mainspring.batch_count c where c.batch_id = settle_batch.batch;
        update mainspring.batch b set state = 2 /* ended */, outcome = final, ended_at = mainspring.now()
         where b.id = settle_batch.batch;
        if final = 10 /* succeeded */ then
            fired := fired + mainspring.call_back(batch, 'success')::integer;
        end if;
        fired := fired + mainspring.call_back(batch, 'complete')::integer;
        if was.parent is not null then
            insert into mainspring.batch_change (batch_id, outcome, count) values (was.parent, final, 1);
            perform pg_notify('mainspring', 'batch');
        end if;
    elsif live <= 0 then
        -- Its row was locked, so a transaction under way joins, closes or reopens it: look again.
        insert into mainspring.batch_change (batch_id, count)
        select b.id, 0 from mainspring.batch b
         where b.id = settle_batch.batch and b.state = 1 /* closed */ and b.retry_before is null;
    end if;
end
$$;

-- Tasks of these batches run again: those that have ended are closed again, and so are the batches that they are in.
-- Nothing of it ends before this transaction does. Parents have lower ids than their children, so two that reopen do not
-- block each other.
create function mainspring.reopen_batches(batches bigint[]) returns bigint
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    above    bigint[];
    reopened bigint;
begin
    with recursive up(id, parent) as (
        select b.id, b.parent from mainspring.batch b where b.id = any (batches)
        union
        select b.id, b.parent from mainspring.batch b join up on b.id = up.parent
    )
    select array_agg(up.id) into above from up;
    perform from mainspring.batch b where b.id = any (above) order by b.id desc for no key update;
    with was as (
        select b.id, b.parent, b.outcome from mainspring.batch b where b.id = any (above) and b.state = 2 /* ended */
    ), live as (
        update mainspring.batch b
           set state = 1 /* closed */, outcome = null, ended_at = null, cancelled_at = null, kills = false
          from was where b.id = was.id
        returning b.id
    ), taken_back as (
        insert into mainspring.batch_change (batch_id, outcome, count)
        select was.parent, was.outcome, -1 from was where was.parent is not null
    )
    select count(*) into reopened from live;
    return reopened;
end
$$;


-- 17 What a producer sees -------------------------------------------------------------------------------------------
-- The roles producer, viewer and server are sets of privileges that `mainspring grant` gives: store/postgres/roles.py
-- has them. A producer reads the tasks that it submitted and what belongs to them, through these views, which have
-- the columns of their tables that `task show` needs. They run with the rights of their owner; security_barrier: no
-- function in a producer's query sees a row before it is known to be its own.

create view mainspring.own_task with (security_barrier) as
    select * from mainspring.task where submitted_by = current_user;
create view mainspring.own_task_history with (security_barrier) as
    select * from mainspring.task_history where submitted_by = current_user;
create view mainspring.own_attempt with (security_barrier) as
    select a.* from mainspring.attempt a
     where exists (select from mainspring.own_task t where t.id = a.task_id)
        or exists (select from mainspring.own_task_history t where t.id = a.task_id);
create view mainspring.own_output with (security_barrier) as
    select o.* from mainspring.output o
     where exists (select from mainspring.own_task t where t.id = o.task_id)
        or exists (select from mainspring.own_task_history t where t.id = o.task_id);
create view mainspring.own_dependency with (security_barrier) as
    select d.* from mainspring.dependency d where exists (select from mainspring.own_task t where t.id = d.child);
create view mainspring.own_dependent with (security_barrier) as
    select d.* from mainspring.dependent d
     where exists (select from mainspring.own_task t where t.id = d.child)
        or exists (select from mainspring.own_task_history t where t.id = d.child);
create view mainspring.own_batch with (security_barrier) as
    select * from mainspring.batch where submitted_by = current_user;
create view mainspring.own_batch_count with (security_barrier) as
    select c.* from mainspring.batch_count c where exists (select from mainspring.own_batch b where b.id = c.batch_id);
create view mainspring.own_batch_change with (security_barrier) as
    select c.* from mainspring.batch_change c where exists (select from mainspring.own_batch b where b.id = c.batch_id);
create view mainspring.own_batch_callback with (security_barrier) as
    select c.* from mainspring.batch_callback c where exists (select from mainspring.own_batch b where b.id = c.batch_id);
create view mainspring.own_job with (security_barrier) as
    select id, namespace, name from mainspring.job;
create view mainspring.own_schedule with (security_barrier) as
    select id, namespace, name, timezone from mainspring.schedule;
create view mainspring.own_agent with (security_barrier) as
    select session, name, md5(instance) as instance, server, ended_at, lease_until from mainspring.agent;
create view mainspring.own_server with (security_barrier) as
    select id, name from mainspring.server;

-- Functions are open to PUBLIC unless that is taken back, and a schema's default privileges cannot do it.
revoke all on all functions in schema mainspring from public;
