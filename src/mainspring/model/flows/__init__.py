"""What a single task may have of its own, and the rules that set priorities. Uses words/."""
