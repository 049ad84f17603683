"""Work: tasks, what they print, waiting for them, batches and flows."""
