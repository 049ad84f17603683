"""The embedded PostgreSQL: its account, data directory and server process. Imports no other room."""
