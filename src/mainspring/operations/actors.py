"""The actor of a process that works on the database itself: the user of the operating system who runs it."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cache

from mainspring.model.access.actors import Actor


@cache
def this_user() -> Actor:
    """`os:alice@host`, an admin: who can read and write the database needs no permission of ours."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user number without a name, and no variable that tells one
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return Actor(f"os:{user}@{socket.gethostname()}")
