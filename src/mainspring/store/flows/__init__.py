"""Bounds, rules, deadlines, and what tasks know of those that they ran after, in the database."""
