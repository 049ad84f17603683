"""What callers send, checked: new tasks, one or a stream of them, and filters of tasks.

May import store/ and model/, no operation.
"""
