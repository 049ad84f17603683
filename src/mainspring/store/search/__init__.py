"""Search: tasks by what is known of them, in bounded time, and as people see them. Imports postgres/ and tasks/."""
