"""Peers: Mainspring and other schedulers and queues on one machine, in turns: `make bench-peers`.

    catalogue      who takes part: packages, settings, promises
    installation   the packages, into a directory of their own
    places         one PostgreSQL with a database for each, one Redis
    drivers/       a small program for each: prepare, work, submit
    process        a driver as this side sees it: start, read, stop
    parts          what is measured, and how
    rounds         the order of turns, medians, ratios
    table          the same for people

A driver runs in the directory of its peer and imports nothing of ours but drivers/protocol.py.
Next: benchmarks/peers/__main__.py
"""
