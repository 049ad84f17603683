-- Who runs what: agents that take nothing new, and what is set for the whole at run time.

-- By name, so that an agent which connects again, or is started again, still takes nothing until it is undrained.
create table mainspring.draining (
    name  text        primary key,
    since timestamptz not null default mainspring.now()
);

create table mainspring.setting (
    name       text        primary key,
    value      jsonb       not null,
    updated_at timestamptz not null default mainspring.now()
);

-- Requirements of a pool are labels by name. A name that begins with "@" is no label: "@needs", "@prefer",
-- "@strategy", "@sticky" and "@broadcast" say what model/placement.py knows of the placement.
comment on column mainspring.pool.requirements is 'labels, and under names that begin with @ the placement';

-- `agents list` and `agents show` look for the last session of a name.
create index on mainspring.agent (name, session);
