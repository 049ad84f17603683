-- What servers know of agents on other machines.
alter table mainspring.agent
    add column instance text,
    add column successor bigint,
    add column host text,
    add column version text,
    add column offers jsonb not null default '{}',
    add column heard_at timestamptz,
    add column running integer,
    add column cpu real,
    add column memory real,
    add column skew real,
    add column round_trip real,
    add column ack_time real,
    add column reliability real,
    add column lead real;
