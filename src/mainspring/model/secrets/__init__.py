"""Secrets: references to them in definitions, the keys that encrypt them, and their values kept out of output. Pure."""
