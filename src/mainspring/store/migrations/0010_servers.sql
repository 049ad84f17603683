-- The cluster: what is known of each server, who leads it and until when, and who owns which segment since when.
-- A schedule has its segment in its row; that of a task is its number modulo 100.

alter table mainspring.server
    add column incarnation  bigint      not null default 1,   -- grows with each start: fences off the life before
    add column host         text        not null default '',
    add column url          text,                             -- where agents connect to; null: nowhere
    add column app          text,                             -- the application that it has the code of
    add column process      text,                             -- who runs it, where a neighbour can see that it died
    add column lease_until  timestamptz not null default mainspring.now(),
    add column ended_at     timestamptz,                      -- since when it is stopped or dead
    add column agents       integer     not null default 0,   -- that are connected to it
    -- Since its start:
    add column scanned      bigint      not null default 0,   -- schedules that its planner looked at
    add column planned      bigint      not null default 0,   -- plan times that it decided
    add column dispatched   bigint      not null default 0,   -- tasks that it claimed for agents
    add column recorded     bigint      not null default 0,   -- endings that it wrote
    add column scanned_at   timestamptz,                      -- the last look of its planner
    add column scan_seconds real;
alter table mainspring.server set (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

alter table mainspring.segment add column since timestamptz not null default mainspring.now();
create index segment_owner on mainspring.segment (owner);

-- How segments changed hands, for people to read.
create table mainspring.segment_move (
    id        bigint      generated always as identity primary key,
    at        timestamptz not null default mainspring.now(),
    term      bigint      not null,                           -- of the leader that moved them; 0: the owner let go
    old_owner uuid,
    new_owner uuid,
    reason    text        not null check (reason in ('free', 'dead', 'stopped', 'balance', 'released')),
    segments  smallint[]  not null
);
create index on mainspring.segment_move (at);

alter table mainspring.leader
    add column lease_until timestamptz not null default mainspring.now(),
    add column backend     integer,                           -- of the connection that holds the lock
    add column elected_at  timestamptz;

-- Tasks of these pools wait in the segments of `server`, which has nobody with room for them: others may claim them.
create table mainspring.open_pool (
    server uuid    not null references mainspring.server on delete cascade,
    pool   integer not null,
    primary key (pool, server)
);

-- The server that an agent's session is connected to.
alter table mainspring.agent add column server uuid;
