"""Headline: what an error says in one line, for lists, alerts and other narrow places."""

from __future__ import annotations


def headline(error: str) -> str:
    """The first line, which agents write there; of a bare traceback the last one, which says what happened."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
