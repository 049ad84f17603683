"""How an attempt runs: a command, an HTTP call or a Python handler. Uses attempt.py, context.py and guardian/."""
