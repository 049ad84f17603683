"""Bounds: how much one caller, and all of them together, may ask of a server. Settings of the process change them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    rate: float = 200.0  # requests a second of a session or a viewer, twice that at once; other tokens have their own
    failures: float = 10.0  # failed authentications of one address in a minute
    streams: int = 500  # that are open at once
    streams_per_caller: int = 20
