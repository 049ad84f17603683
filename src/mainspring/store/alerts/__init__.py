"""Alerts: rules, what they found, the channels and the messages to them. `kinds/` has what rules look for."""
