"""Attempts on this agent: armed, fired at their instant, stopped, ended, reported. Uses every room below it."""
