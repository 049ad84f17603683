"""Alerts: what rules look for, when a finding is sent, and how a message reads."""
