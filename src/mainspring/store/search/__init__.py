"""Search: tasks and schedules by what is known of them, in bounded time, and as people see them."""
