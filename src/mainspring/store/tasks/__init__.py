"""Jobs, and the life of a task from enqueue to its history row. Imports views/ and below."""
