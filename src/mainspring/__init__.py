"""Mainspring: a distributed job scheduler on PostgreSQL."""
