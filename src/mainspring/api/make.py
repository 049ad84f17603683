"""Make the application: the table, and a guard around the connections that it gets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from mainspring.api.access.bounds import Bounds
from mainspring.api.access.discreet import DiscreetConnections
from mainspring.api.access.guard import Authorize, Guard
from mainspring.api.access.origins import Origins
from mainspring.api.app import Api
from mainspring.api.handlers.scrape import Scrape
from mainspring.api.rows import LOGIN, ROWS
from mainspring.model.secrets.keys import KeySource
from mainspring.model.words.skew import DEFAULT_LIMIT
from mainspring.operations import Connections
from mainspring.operations.condition.health import DEGRADED_AFTER
from mainspring.operations.parts.giving_way import GivingWay


def make_api(
    connections: Connections,
    *,
    origins: Origins | None = None,
    authorize: Authorize | None = None,
    why_not_ready: Callable[[], str | None] = lambda: None,
    scrape: Scrape | None = None,
    degraded_after: float = DEGRADED_AFTER,
    skew_limit: float = DEFAULT_LIMIT,
    keep: timedelta | None = None,
    bounds: Bounds | None = None,
    server_name: str | None = None,
    environment: str | None = None,
    giving_way: GivingWay | None = None,
    keys: KeySource | None = None,
) -> Api:
    """`scrape` counts for the metrics of the process; without one, the API counts for itself alone.

    `keep` is how long the ledger of plan times is kept: before that, a dropped one looks like a missing one.
    `giving_way` knows the fires of an agent on this event loop. `keys` encrypt secrets.
    """
    connections = DiscreetConnections(connections)
    origins, scrape = origins or Origins(any_host=authorize is not None), scrape or Scrape(connections)
    return Api(
        connections,
        ROWS if authorize is None else [row for row in ROWS if row not in LOGIN],
        guard=Guard(connections, origins, authorize=authorize, bounds=bounds, count=scrape.http.refuse),
        origins=origins,
        scrape=scrape,
        why_not_ready=why_not_ready,
        bindings={"keep": keep, "degraded_after": degraded_after, "skew_limit": skew_limit, "keys": keys},
        bounds=bounds,
        server_name=server_name,
        environment=environment,
        giving_way=giving_way,
    )
