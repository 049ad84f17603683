"""Manifests: what a set of jobs, schedules and calendars would change, and writing all of it in one transaction."""
