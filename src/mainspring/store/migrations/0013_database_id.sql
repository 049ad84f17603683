-- The id of this database: made once, part of every idempotency key, so that task 1 here and task 1 of another database
-- are two things to whoever gets the keys of both. A dump carries it along.
create table mainspring.installation (
    id      uuid    not null default gen_random_uuid(),
    the_one boolean not null default true primary key check (the_one)
);
insert into mainspring.installation default values;
