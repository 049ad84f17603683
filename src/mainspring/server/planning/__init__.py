"""Decide what may run: plan times, overlap, limits, dependencies. Imports cluster/."""
