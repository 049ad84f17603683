"""Backup, restore, retention, vacuum, and the log of what maintenance did. Imports any room but figures/."""
