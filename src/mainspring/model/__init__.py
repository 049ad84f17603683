"""The rules, pure: no I/O, no asyncio, no clock. Imports nothing of ours but `errors`.

    tasks/      what a job is, the states of a task, what follows an attempt
    schedules/  plan times: cron, intervals, phrases, calendars; what becomes of each
    placement/  which agent runs a task, how far ahead it is armed, which server owns what
    limits/     how many run at once and how often, and what one process may use
    figures/    how lateness and durations are counted
    manifests/  a set of jobs, schedules and calendars as a file says them
    daemons/    when a replica runs again, and how its health is checked
    words/      names, durations, sizes, instants and timezones as people write them
    messages.py the agent protocol

Next: model/tasks/states.py
"""
