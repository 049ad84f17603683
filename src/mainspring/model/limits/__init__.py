"""How many tasks run at once and how often they start; what one process may use. Uses words/."""
