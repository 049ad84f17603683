"""The process beside the agent, parent of every command. Starts in milliseconds: imports only the standard library."""
