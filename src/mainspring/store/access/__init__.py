"""Access: tokens, console sessions with their login codes, and the audit. Imports postgres/ only."""
