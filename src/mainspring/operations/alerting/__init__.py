"""Alerts: what people and programs ask for about them, and the function of each kind of rule."""
