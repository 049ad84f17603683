"""Manifests: jobs, schedules and calendars as a file says them, and the difference to what there is."""
