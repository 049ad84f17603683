"""Drivers: one program for each peer, all with the command line and the output of protocol.py (or protocol.mjs)."""
