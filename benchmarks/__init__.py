"""Benchmarks: `python -m benchmarks.NAME --json`. All run on a fresh embedded PostgreSQL with its default durability."""
