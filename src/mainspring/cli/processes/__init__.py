"""Commands that run for long, or prepare for it: up, worker, server, agent, demo, backup, migrate, stats."""
