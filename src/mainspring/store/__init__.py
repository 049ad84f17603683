"""All SQL. Functions take a connection; the caller owns the transaction. Imports model/, never a loop.

Each room may import those below it:

    testing/      databases and a clock for `mainspring.testing`
    alerts/       rules, what they found, channels and messages
    figures/      counts for people
    maintenance/  backup, restore, retention, vacuum
    daemons/      replicas of daemons
    batches/      batches as people see them, and how servers settle them
    limits/       concurrency and rate limits
    watch/        what schedules should have done against what they did
    schedules/    schedules, their plans and the ledger of fires
    submission/   new tasks, on any connection of the caller's
    followed/     beside schedules: runs, `after`, objectives, pings
    flows/        bounds, rules, deadlines, parents of tasks
    tasks/        jobs and the life of a task: enqueue, claim, transitions, rescue
    search/       tasks by what is known of them, and as people see them
    cluster/      servers, agents, segments, the leader
    manifests/    which set of manifests, or which application, owns what
    access/       tokens, console sessions, the audit
    postgres/     connections, the schema and its migrations · embedded/  the embedded PostgreSQL
"""
