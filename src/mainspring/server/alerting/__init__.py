"""Alerts: the leader evaluates the rules, and sends what they found to channels."""
