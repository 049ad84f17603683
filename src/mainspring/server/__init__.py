"""The loops that plan, dispatch, record and rescue. All state is in store/; agents are reached through wire/.

Each room may import those below it, and import-linter checks it; server.py wires them together:

    alerting/   evaluate the rules of alerts and send what they found
    dispatch/   claim due tasks and arm agents with them
    agents/     the agents connected to this server · planning/  plan times, overlap, limits, dependencies
                · watch/  objectives, holes in the ledger, heartbeats, pings
    recovery/   tasks of agents that are gone
    recording/  what agents report, written in batches
    cluster/    membership, the leader and its duties, the clock, the catalogue of jobs
"""
