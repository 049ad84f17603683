"""Definitions: what people define, and holding it: jobs, schedules, calendars, daemons, priority rules."""
