"""When a schedule runs its job, and what becomes of each plan time. Uses words/ and the segments of placement/."""
