"""What callers send, checked: new tasks, and filters of tasks. May import store/ and model/, no operation."""
