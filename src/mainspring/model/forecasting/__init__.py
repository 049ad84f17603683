"""Forecasting: plan times to come: a preview of one schedule, a forecast of all. Uses the rooms beside it."""
