"""Condition: how the whole is: servers, agents, figures, health, what fails, how many agents are wanted."""
