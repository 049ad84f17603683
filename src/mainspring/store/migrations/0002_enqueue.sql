-- Submission from any language: select mainspring.enqueue('report', '{"day": "2026-11-15"}', priority => 'high').
-- Errors carry a state of ours: MSV01 bad input, MSJ01 no such job. Nothing is written then.

create function mainspring.no_such_job(job text) returns void
    language plpgsql immutable
as $$
begin
    raise exception 'no job named %; jobs are registered when their application starts, or by `mainspring job create`',
        coalesce(quote_literal(left(job, 200)), 'null') using errcode = 'MSJ01';
end
$$;

-- What JSON arguments may hold: an object, at most 1 MB, 64 levels deep, integers that every language reads.
create function mainspring.check_args(args jsonb) returns void
    language plpgsql immutable parallel safe
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
    -- Only text that could break the rules is walked.
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
                   abs((leaf.value)::numeric) > 9007199254740992 and (leaf.value)::numeric % 1 = 0
               end
    ) then
        raise exception 'args: an integer beyond ±2^53 loses digits in other languages; pass it as a string'
            using errcode = 'MSV01';
    end if;
end
$$;

-- The instant from run_at or delay, checked. With neither: now.
create function mainspring.due_at(run_at timestamptz, delay interval, made timestamptz) returns timestamptz
    language plpgsql immutable parallel safe
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

-- Cheap test for arguments that need the full check: almost none do. In 24 bytes no rule can be broken.
create function mainspring.is_suspect(args jsonb) returns boolean
    language sql stable parallel safe           -- not more: pg_column_size is stable, and this must be inlined
    as $$
    select args is null or jsonb_typeof(args) <> 'object'
        or (pg_column_size(args) > 24 and (octet_length(args::text) >= 128 or args::text ~ '[0-9]{16}'))
$$;

create function mainspring.check_priority(priority text) returns smallint
    language plpgsql immutable parallel safe
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

-- Give `key` to `task`, or tell which task has it. An expired key changes hands.
create function mainspring.take_key(job_id integer, key text, ttl interval, task bigint) returns bigint
    language plpgsql volatile
as $$
declare
    made   timestamptz := mainspring.now();
    holder bigint;
begin
    if length(key) not between 1 and 200 or key ~ '[[:cntrl:]]' then
        raise exception 'key: 1 to 200 characters, none of them a control character' using errcode = 'MSV01';
    end if;
    if ttl is null or ttl <= '0' or ttl > interval '10 years' then
        raise exception 'key_ttl: % is not between 0 and 10 years', ttl using errcode = 'MSV01';
    end if;
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
        if holder is not null then     -- null: the key went between the two statements
            return holder;
        end if;
    end loop;
end
$$;

-- Make `child` wait for those of `parents` that have not ended; returns how many. A parent that ends at
-- this very moment leaves an edge behind, which the settler finds.
create function mainspring.depend(child bigint, parents bigint[]) returns integer
    language plpgsql volatile
as $$
declare
    waiting integer;
    unmet   bigint;
begin
    if cardinality(parents) > 1000 then
        raise exception 'after: % tasks; at most 1000', cardinality(parents) using errcode = 'MSV01';
    end if;
    if array_position(parents, null) is not null then
        raise exception 'after: null is not a task' using errcode = 'MSV01';
    end if;
    with edge as (
        insert into mainspring.dependency (parent, child)
        select distinct t.id, depend.child from mainspring.task t where t.id = any (parents)
        returning parent
    )
    select count(*) into waiting from edge;
    select given.parent into unmet from unnest(parents) as given(parent)
     where not exists (select from mainspring.dependency d where d.parent = given.parent and d.child = depend.child)
       and not exists (select from mainspring.task_history h where h.id = given.parent and h.state = 10)
     limit 1;
    if unmet is not null then
        raise exception 'after: task % does not exist or did not succeed', unmet using errcode = 'MSV01';
    end if;
    if waiting > 0 then
        perform pg_notify('mainspring', 'dependency');
    end if;
    return waiting;
end
$$;

-- Many tasks of one job in one statement; the ids come in the order of the arguments.
create function mainspring.enqueue_many(
    job       text,
    args      jsonb[],
    priority  text        default null,
    run_at    timestamptz default null,
    delay     interval    default null,
    namespace text        default 'default',
    hint      boolean     default true           -- false where the caller wakes the dispatcher itself
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
    select j.id, j.pool, j.priority into definition from mainspring.job j
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
    with inserted as (
        insert into mainspring.task as t (run_at, created_at, job_id, pool, state, priority, args)
        select due, made, definition.id, definition.pool, 1, level, given from unnest(enqueue_many.args) given
        returning t.id
    )
    select coalesce(array_agg(inserted.id order by inserted.id), '{}') into ids from inserted;
    if hint and due <= made + interval '5 seconds' then
        perform pg_notify('mainspring', 'due');
    end if;
    return ids;
end
$$;

-- One task. With a key, a second submission of the same key returns the first task while the key lives.
-- With `after`, the task waits until those tasks have succeeded, and is skipped if one of them does not.
-- `claimer` is for servers: a session of their own that takes the task at once, which saves the claim a commit.
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
    claimer   bigint      default null
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
begin
    -- Most submissions have nothing but a job and arguments: they pay for one look-up and one insert.
    select j.id, j.pool, j.priority into definition from mainspring.job j
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
    if key is not null then
        holder := mainspring.take_key(definition.id, key, key_ttl, task);
        if holder <> task then
            return holder;
        end if;
    end if;
    if after is not null then
        waiting := mainspring.depend(task, after);
    end if;
    if claimer is not null and waiting = 0 and due <= made then
        batch := nextval('mainspring.claim_batch');
        insert into mainspring.claim (session, batch, tasks) values (claimer, batch, array[task]);
    end if;
    insert into mainspring.task
        (id, run_at, created_at, job_id, pool, state, waiting_for, priority, args, key, token, session, attempt)
    values (task, due, made, definition.id, case when waiting > 0 then -definition.pool else definition.pool end,
            case when waiting > 0 then 0 when batch is null then 1 else 2 end, waiting, level, enqueue.args,
            enqueue.key, batch * 1024, case when batch is not null then claimer end,
            case when batch is null then 0 else 1 end);
    if hint and waiting = 0 and due <= made + interval '5 seconds' then
        perform pg_notify('mainspring', 'due');
    end if;
    return task;
end
$$;
