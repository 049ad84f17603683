"""The public names for tests. See sdk/testing.py."""

from mainspring.sdk.testing import Run, database, running

__all__ = ["Run", "database", "running"]
