-- Limits: tasks of a job that has some wait at a gate, and go on with a slot, which is in their own row.
-- A gate is a pool that no claim serves: `target` is the pool that its tasks go on to. A task whose key is busy stands
-- aside in the lane of its key (pool 2147483647), so that it hides nobody.

alter table mainspring.pool add column target integer references mainspring.pool;
create index pool_gate on mainspring.pool (id) where target is not null;

-- Null for all that has no limit: the hot table pays nothing for them.
alter table mainspring.task
    add column concurrency_key text,             -- as written; of another namespace than default with that before it
    add column key_given       boolean,          -- whether its submission named the key; else the job's template gave it
    add column gate            integer,          -- the gate that it passed, or whose lane it is in: there it goes back
    add column job_slot        integer,
    add column key_slot        smallint;
alter table mainspring.task_history
    add column concurrency_key text,
    add column key_given       boolean;

-- These hold the limits, whatever servers believe: no two live tasks have the same slot.
create unique index task_job_slot on mainspring.task (job_id, job_slot) where job_slot is not null;
create unique index task_key_slot on mainspring.task (concurrency_key, key_slot) where key_slot is not null;
create index task_lane on mainspring.task (concurrency_key, priority desc, run_at, id) where pool = 2147483647;

-- Rates (GCRA): until when the starts so far have used up the rate. The key is empty where the rate is the job's.
create table mainspring.throttle (
    job_id  integer     not null,
    key     text        not null,
    until   timestamptz not null,
    wake_at timestamptz,                         -- when the lane of this key is looked at again
    primary key (job_id, key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index throttle_wake on mainspring.throttle (wake_at) where wake_at is not null;
create index throttle_until on mainspring.throttle (until) where wake_at is null;

-- The gate of a job before the pool `target`, made if there is none. A server of an older version does not know gates:
-- for it, "@gate" is an amount that no agent offers.
create function mainspring.gate(namespace text, job text, target integer) returns integer
    language plpgsql volatile
as $$
declare
    wanted jsonb;
    found  integer;
begin
    select requirements || jsonb_build_object(
               '@gate', jsonb_build_array(namespace, job),
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

-- Keys are shared by the jobs of a namespace.
create function mainspring.key_within(namespace text, key text) returns text
    language sql immutable parallel safe
    as $$ select case when namespace = 'default' then key else namespace || e'\x1f' || key end $$;

-- A key from its template: {name} stands for that argument, or its default, or for nothing. What is too long ends in a hash.
create function mainspring.fill_key(template text, args jsonb, defaults jsonb) returns text
    language sql immutable parallel safe
    as $$
    select case when length(whole) <= 200 then whole else left(whole, 160) || '#' || md5(whole) end
      from (select regexp_replace(string_agg(part.text || coalesce(
                       case when args ? name.match[1] then coalesce(args->>name.match[1], 'null')
                            else defaults->>name.match[1] end, ''), '' order by part.n), '[[:cntrl:]]', '?', 'g') as whole
              from regexp_split_to_table(template, '\{\w+\}') with ordinality as part(text, n)
              left join regexp_matches(template, '\{(\w+)\}', 'g') with ordinality as name(match, n) on name.n = part.n
           ) filled
$$;

-- A slot of this key is free: the first of its lane go back to their gate, and are looked at there in their order.
create function mainspring.wake_lane(key text, most integer, job integer default null) returns integer
    language plpgsql volatile
    set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    moved integer;
begin
    update mainspring.task t set pool = t.gate
     where t.ctid = any (array(
               select l.ctid from mainspring.task l
                where l.pool = 2147483647 and l.concurrency_key = wake_lane.key and (job is null or l.job_id = job)
                order by l.priority desc, l.run_at, l.id
                limit most
                  for update skip locked))
       and t.pool + 0 = 2147483647;              -- not for an index: it is locked, and so where it is
    get diagnostics moved = row_count;
    return moved;
end
$$;

-- Whoever ends a task frees its slots with its row: the end itself says so, whichever way it came.
create function mainspring.free_slots() returns trigger
    language plpgsql
as $$
begin
    if old.key_slot is not null then
        perform mainspring.wake_lane(old.concurrency_key, 1);
    end if;
    perform pg_notify('mainspring', 'gate');
    return null;
end
$$;
create trigger free_slots after delete on mainspring.task
    for each row when (old.job_slot is not null or old.key_slot is not null)
    execute function mainspring.free_slots();

create function mainspring.check_concurrency_key(key text) returns void
    language plpgsql immutable parallel safe
as $$
begin
    if length(key) not between 1 and 200 or key ~ '[[:cntrl:]]' then
        raise exception 'concurrency_key: 1 to 200 characters, none of them a control character'
            using errcode = 'MSV01';
    end if;
end
$$;

-- What a submission with a key of its own does first: returns the gate that it waits at.
create function mainspring.keyed_gate(namespace text, job text, pool integer, gated boolean, key text) returns integer
    language plpgsql volatile
as $$
begin
    perform mainspring.check_concurrency_key(key);
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

-- As before (0002), with a concurrency key.
drop function mainspring.enqueue_many(text, jsonb[], text, timestamptz, interval, text, boolean);
create function mainspring.enqueue_many(
    job       text,
    args      jsonb[],
    priority  text        default null,
    run_at    timestamptz default null,
    delay     interval    default null,
    namespace text        default 'default',
    hint      boolean     default true,          -- false where the caller wakes the dispatcher itself
    concurrency_key text  default null
) returns bigint[]
    language plpgsql volatile
as $$
declare
    definition record;
    level      smallint;
    made       timestamptz := mainspring.now();
    due        timestamptz := made;
    ids        bigint[];
begin
    select j.id, j.pool, j.priority, j.definition ? 'gate' as gated into definition from mainspring.job j
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
    if concurrency_key is null then
        with inserted as (
            insert into mainspring.task as t (run_at, created_at, job_id, pool, state, priority, args)
            select due, made, definition.id, definition.pool, 1, level, given from unnest(enqueue_many.args) given
            returning t.id
        )
        select coalesce(array_agg(inserted.id order by inserted.id), '{}') into ids from inserted;
    else
        definition.pool := mainspring.keyed_gate(namespace, job, definition.pool, definition.gated, concurrency_key);
        definition.gated := true;
        with inserted as (
            insert into mainspring.task as t
                (run_at, created_at, job_id, pool, state, priority, args, concurrency_key, key_given)
            select due, made, definition.id, definition.pool, 1, level, given,
                   mainspring.key_within(enqueue_many.namespace, enqueue_many.concurrency_key), true
              from unnest(enqueue_many.args) given
            returning t.id
        )
        select coalesce(array_agg(inserted.id order by inserted.id), '{}') into ids from inserted;
    end if;
    if hint and due <= made + interval '5 seconds' then
        perform pg_notify('mainspring', case when definition.gated then 'gate' else 'due' end);
    end if;
    return ids;
end
$$;

-- As before (0002), with a concurrency key, and with claims that respect segments: a claimer whose server is given gets
-- the task only under a number of that server's segments, and else it is pending as any other. `mainspring.batch` tells
-- the caller under which number it was claimed, if it was.
drop function mainspring.enqueue(text, jsonb, text, timestamptz, interval, text, interval, bigint[], text, boolean, bigint);
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
    hint      boolean     default true,
    claimer   bigint      default null,
    concurrency_key text  default null,
    claimer_server  uuid  default null
) returns bigint
    language plpgsql volatile
as $$
declare
    definition record;
    level      smallint;
    made       timestamptz := mainspring.now();
    due        timestamptz := made;
    task       bigint      := nextval('mainspring.task_id');
    holder     bigint;
    waiting    integer     := 0;
    batch      bigint;
    owned      smallint[];
    can_claim  boolean     := claimer is not null;
begin
    -- Most submissions have nothing but a job and arguments: they pay for one look-up and one insert.
    select j.id, j.pool, j.priority, j.definition ? 'gate' as gated into definition from mainspring.job j
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
    if concurrency_key is not null then
        definition.pool := mainspring.keyed_gate(namespace, job, definition.pool, definition.gated, concurrency_key);
        definition.gated := true;
    end if;
    can_claim := can_claim and not definition.gated;
    if can_claim and claimer_server is not null then
        owned := array(select s.id from mainspring.segment s where s.owner = claimer_server);
        for draw in 1..200 loop
            can_claim := (task % 100)::smallint = any (owned);
            exit when can_claim or cardinality(owned) = 0;
            task := nextval('mainspring.task_id');
        end loop;
    end if;
    if key is not null then
        holder := mainspring.take_key(definition.id, key, key_ttl, task);
        if holder <> task then
            return holder;
        end if;
    end if;
    if after is not null then
        waiting := mainspring.depend(task, after);
    end if;
    if can_claim and waiting = 0 and due <= made then
        batch := nextval('mainspring.claim_batch');
        insert into mainspring.claim (session, batch, tasks) values (claimer, batch, array[task]);
    end if;
    if claimer is not null then
        perform set_config('mainspring.batch', coalesce(batch::text, ''), true);
    end if;
    insert into mainspring.task
        (id, run_at, created_at, job_id, pool, state, waiting_for, priority, args, key, token, session, attempt,
         concurrency_key, key_given)
    values (task, due, made, definition.id, case when waiting > 0 then -definition.pool else definition.pool end,
            case when waiting > 0 then 0 when batch is null then 1 else 2 end, waiting, level, enqueue.args,
            enqueue.key, batch * 1024, case when batch is not null then claimer end,
            case when batch is null then 0 else 1 end,
            mainspring.key_within(enqueue.namespace, enqueue.concurrency_key),
            case when enqueue.concurrency_key is not null then true end);
    if (hint or claimer is not null) and batch is null and waiting = 0 and due <= made + interval '5 seconds' then
        perform pg_notify('mainspring', case when definition.gated then 'gate' else 'due' end);
    end if;
    return task;
end
$$;
