"""Batches: their rows as people see them, what is asked of them, and how servers carry it out."""
