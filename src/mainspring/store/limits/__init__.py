"""Concurrency and rate limits: which waiting task gets a slot, and which is parked. Imports schedules/ and below."""
