"""What /metrics tells: the text, and what this process and the whole cluster have counted."""
