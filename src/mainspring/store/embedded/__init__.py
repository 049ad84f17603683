"""The embedded PostgreSQL: its account, its data directory, its server process. Imports no other room."""
