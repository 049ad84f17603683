"""Submission: new tasks, through the SQL functions for it, on any connection of the caller's."""
