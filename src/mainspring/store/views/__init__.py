"""Tasks, attempts and the graph around a task, as people see them. Imports postgres/ only."""
