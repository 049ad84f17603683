"""Benchmarks: `python -m benchmarks.NAME --json`, each on a fresh embedded PostgreSQL with default durability."""
