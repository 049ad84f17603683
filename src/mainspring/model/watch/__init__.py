"""Whether schedules do what they should: objectives, and what plan times came to. Pure."""
