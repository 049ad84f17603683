"""A worker process with a name of its own that also has the job of the broadcasts: `DSN NAME`."""

from __future__ import annotations

import sys
from typing import Any

import mainspring
from benchmarks.common import make_app
from benchmarks.worker import main
from mainspring.cli.runtime import run


def make_broadcaster(dsn: str, **settings: Any) -> mainspring.App:
    app = make_app(dsn, **settings)

    @app.job(retries=0, broadcast=True)
    async def everywhere() -> None:
        return None

    return app


if __name__ == "__main__":
    run(main(make_broadcaster(sys.argv[1], agent_name=sys.argv[2])))
