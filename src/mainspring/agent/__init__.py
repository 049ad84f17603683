"""The process that runs attempts. Knows its server by messages only: imports neither store/ nor server/.

agent.py     what outlives a connection
connection/  the link to a server: hello, lease, reports waiting for acknowledgement
timing/      the timing wheel and the timer that turns it
run/         attempts: armed, fired, stopped, ended
executors/   how a command, an HTTP call or a Python handler runs
guardian/    the process beside the agent that owns every command
"""
