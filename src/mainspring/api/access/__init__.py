"""Who may come in: hosts and origins, tokens and sessions, rates."""
