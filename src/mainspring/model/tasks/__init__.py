"""What a job is and what may happen to its tasks: states, moves, retries, payloads. Uses words/ and limits/."""
