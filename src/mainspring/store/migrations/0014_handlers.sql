-- What handlers do besides ending: completing in a transaction of their own, and submitting from an agent that has no
-- database.

-- transaction() completes a task before its handler has returned. True: its result is due; null: it will never come,
-- for the handler failed after the commit.
alter table mainspring.task_history add column result_due boolean default false;

-- Submissions that agents made through a server. An agent that lost the answer asks again under the same id, and gets the
-- answer of the first time.
create table mainspring.submission (
    id    uuid        not null primary key,
    tasks bigint[],                                   -- null only within the transaction that submits them
    at    timestamptz not null default mainspring.now()
);
create index on mainspring.submission (at);
