"""Connecting: which host answers, what may be used of it, and what happens while none does."""
