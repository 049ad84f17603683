"""Schedules, the tasks planned for them, and the ledger of every decided plan time. Imports tasks/ and below."""
