"""How an attempt runs: a command, an HTTP call or a Python handler. Uses run/attempt and guardian/."""
