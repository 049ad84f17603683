"""Where work runs: the agent for a task, how early it is armed, the server for a segment. Uses words/."""
