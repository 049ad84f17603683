"""Rows of the table that answer by themselves: health, metrics, the login, the site."""
