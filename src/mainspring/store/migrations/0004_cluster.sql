-- Servers, the segments they own, the leader; access and who did what.

create table mainspring.server (
    id           uuid        primary key,
    name         text        not null,
    version      text        not null,
    status       text        not null check (status in ('active', 'draining', 'stopped', 'dead')),
    started_at   timestamptz not null default mainspring.now(),
    heartbeat_at timestamptz not null default mainspring.now()
);

create table mainspring.segment (
    id    smallint primary key check (id between 0 and 99),
    owner uuid references mainspring.server,
    epoch bigint   not null default 0
);
insert into mainspring.segment (id) select generate_series(0, 99);

create table mainspring.leader (
    id    boolean primary key default true check (id),   -- one row
    owner uuid,
    term  bigint  not null default 0
);
insert into mainspring.leader default values;

create table mainspring.token (
    id         integer     generated always as identity primary key,
    name       text        not null,
    role       text        not null check (role in ('viewer', 'operator', 'admin', 'agent')),
    hash       bytea       not null unique,
    created_at timestamptz not null default mainspring.now(),
    expires_at timestamptz,
    revoked_at timestamptz
);

create table mainspring.audit (
    id      bigint      generated always as identity primary key,
    at      timestamptz not null default mainspring.now(),
    actor   text        not null,
    action  text        not null,
    subject text,
    detail  jsonb
);
