"""The process that runs attempts. Knows its server by messages only: imports neither store/ nor server/.

    agent.py     what outlives a connection: attempts, clock, reports, lease
    run/         attempts: armed, fired, stopped, ended. Uses all rooms below
    connection/  the connection to a server: hello, lease, reports kept until acknowledged
    executors/   how a command, an HTTP call or a Python handler runs
    context.py   what a handler sees of its task: current_task() and the control exceptions
    attempt.py   an attempt while the agent holds it, and the contract of an executor
    timing/      the timing wheel and the timer that turns it
    guardian/    the process beside the agent that owns every command

Imports point downwards in this list, except that executors/ and connection/ do not import each other.
"""
