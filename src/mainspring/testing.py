"""The public names for tests. See sdk/testing/run.py."""

from mainspring.sdk.testing.run import Run, database, running

__all__ = ["Run", "database", "running"]
