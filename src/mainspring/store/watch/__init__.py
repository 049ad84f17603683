"""Compare what schedules should have done with what they did."""
