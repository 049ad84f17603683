"""Plan times of schedules, and the decision about each. Uses words/ and the segments of placement/."""
