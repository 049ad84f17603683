"""Daemons: when a replica runs again, on which agent, and how its health is checked. Uses the rooms beside it."""
