"""Who asks for something, and what they may do."""
