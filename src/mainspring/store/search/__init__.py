"""Search: tasks and schedules by what is known of them, in bounded time. Imports schedules/ and below."""
