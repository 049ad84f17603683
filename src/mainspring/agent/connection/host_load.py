"""Vitals: how busy this machine is, for the servers that place tasks.

Next: agent/connection/connection.py
"""

from __future__ import annotations

import psutil


def vitals() -> tuple[float, float]:
    """CPU since the last call and memory in use, both of the whole machine, 0 to 1."""
    return psutil.cpu_percent() / 100, psutil.virtual_memory().percent / 100
