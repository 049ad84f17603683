-- Daemons: replicas of a job that are kept running. A replica is one live task (origin 'daemon', scope = its number);
-- its attempts are its incarnations. It lies in pool 0, where no ordinary claim looks: the keeper places it.

alter table mainspring.task
    drop constraint task_origin_check,
    add constraint task_origin_check check (origin in ('plan', 'backfill', 'manual', 'daemon')),
    drop constraint task_cancel_mode_check,
    add constraint task_cancel_mode_check check (cancel_mode in (1, 2, 3)),  -- 3: stop it, and run it again
    -- Null for all that is no replica: the hot table pays nothing for them.
    add column generation integer,                  -- of its schedule, that it runs or is about to run
    add column failures   smallint,                 -- short lives in a row; null: none
    add column restarts   integer,
    add column healthy    boolean;                  -- what its health check says; null: not known
create unique index task_replica on mainspring.task (schedule_id, scope) where origin = 'daemon';

-- Grows with whatever replicas must be restarted for: one behind the generation of its schedule is outdated.
alter table mainspring.schedule add column generation integer not null default 1;
create index schedule_daemon on mainspring.schedule (id) where kind = 'daemon';

-- A server of an older version changes jobs and schedules too: hence here, where nobody forgets it.
create function mainspring.renew_daemon() returns trigger
    language plpgsql
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
