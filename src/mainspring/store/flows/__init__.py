"""Bounds, priority rules and deadlines, in the database. Imports tasks/ and below."""
