"""Counts for people. Imports any other room."""
