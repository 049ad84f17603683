"""A server that owns all segments, for tests of single parts. To a real one it is stopped: it takes over at once."""

from __future__ import annotations

from uuid import UUID

from mainspring.server.standing import Standing

OWNER = UUID(int=1)

OWN_ALL = f"""
    insert into mainspring.server (id, name, version, status) values ('{OWNER}', 'tests', '0', 'stopped')
    on conflict do nothing;
    update mainspring.segment set owner = '{OWNER}';
"""


def standing() -> Standing:
    """Of that server: it may always act."""
    return Standing(OWNER, trusted_until=float("inf"))
