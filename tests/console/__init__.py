"""The console in a real browser, against a real server, a real agent and a real PostgreSQL."""
