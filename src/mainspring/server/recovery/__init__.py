"""Rescue tasks whose agent is gone or whose attempt is overdue. Imports recording/ and cluster/."""
