-- Broadcasts: one task that becomes a run on every agent that matches. And running tasks that somebody holds still.

alter table mainspring.task
    add column paused_at timestamptz,            -- since when its processes are to stand still
    add column parent_id bigint,                 -- the broadcast that this run is part of
    add column target    text;                   -- the name of the one agent that may run it
alter table mainspring.task_history
    add column parent_id bigint,
    add column target    text;

-- 3: stop it and run it again, which costs no attempt.
alter table mainspring.task drop constraint task_cancel_mode_check;
alter table mainspring.task add constraint task_cancel_mode_check check (cancel_mode in (1, 2, 3));

create index task_paused on mainspring.task (id) where paused_at is not null;
create index task_parent on mainspring.task (parent_id) where parent_id is not null;
create index task_history_parent on mainspring.task_history (parent_id) where parent_id is not null;

-- A claim that was made by somebody who does not serve the session: its own server has not taken it up yet.
alter table mainspring.claim add column untold boolean not null default false;
create index claim_untold on mainspring.claim (session) where untold;

-- The labels among the requirements of a pool; what begins with @ says other things.
create function mainspring.labels(requirements jsonb) returns jsonb
    language sql immutable parallel safe
    as $$
    select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(requirements) where key not like '@%'
$$;
