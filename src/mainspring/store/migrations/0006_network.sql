-- Agents on other machines: what is known of each, who goes on with whose session, and the tokens they come with.

alter table mainspring.agent
    add column instance    text,                       -- hash of the agent process's secret
    add column successor   bigint,                     -- the session that took over what this one held
    add column token_id    integer,                    -- what it showed to be let in; null: inside a server's own process
    add column host        text,
    add column version     text,
    add column offers      jsonb       not null default '{}',
    add column heard_at    timestamptz,                -- of its last heartbeat that a renewal told of
    add column running     integer,
    add column cpu         real,
    add column memory      real,
    add column skew        real,                       -- seconds by which its wall clock is ahead of ours
    add column round_trip  real,                       -- of a heartbeat
    add column ack_time    real,                       -- until a dispatch has come to it
    add column reliability real,                       -- of dispatches, those that came at the first time
    add column lead        real;                       -- how long before its time a task is armed on it
create index on mainspring.agent (instance);

alter table mainspring.token
    add column once    boolean not null default false,   -- serves one agent, which then gets a credential of its own
    add column used_by text,                             -- hash of the instance that it served
    add column used_at timestamptz,
    add column parent  integer references mainspring.token;  -- the token that this credential came from
create index on mainspring.token (parent);
create index on mainspring.audit (at);
