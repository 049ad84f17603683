"""Alerts: what rules look for, when what they found is told, and how a message reads."""
