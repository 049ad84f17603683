"""Mainspring beside other schedulers and queues, in turns: `make bench-peers`.

Installs each peer by name into .peers/NAME, runs each part of all of them on one PostgreSQL (and one Redis), in another
order each round, and prints the medians. What cannot be installed or run is named in the table and stops nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import environment, fresh_database, say, stop_probe
from benchmarks.peers.catalogue import OURS, PARTS, PEERS, Peer
from benchmarks.peers.installation import NotInstalled, command
from benchmarks.peers.parts import MEASURES, Entrant, Sizes
from benchmarks.peers.places import Places, redis_server
from benchmarks.peers.rounds import Results, orders
from benchmarks.peers.table import part_table
from benchmarks.probe import Probe

TITLES = {peer.name: peer.title for peer in PEERS}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--json", action="store_true", help="no tables, only the JSON object (always the last line)")
    parser.add_argument("--only", type=partial(_known, names), default=names, metavar="NAME,…", help=", ".join(names))
    parser.add_argument("--parts", type=partial(_known, PARTS), default=PARTS, metavar="NAME,…", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument(
        "--tasks", type=int, default=Sizes.throughput, metavar="N", help="of throughput and bulk submission"
    )
    return parser.parse_args()


def _known(known: Sequence[str], text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"{unknown.pop()!r} is none of {', '.join(known)}")
    return names


async def enter(peer: Peer, places: Places) -> Entrant:
    """Install the peer, and prepare its database."""
    say(f"{peer.title}: {' '.join(peer.packages) or 'this tree'}")
    if peer.place == "redis" and places.redis is None:
        raise NotInstalled("needs redis-server, which is not here (scripts/debian-redis); leave it out with --only")
    entrant = Entrant(peer, await asyncio.to_thread(command, peer), places)
    await entrant.prepare()
    return entrant


async def enter_all(names: Sequence[str], places: Places) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Those that can take part, and why others cannot. Ours always does: the ratios are to it."""
    entrants, failures = {}, {}
    for peer in PEERS:
        if peer.name not in names and peer.name != OURS:
            continue
        try:
            entrants[peer.name] = await enter(peer, places)
        except Exception as error:  # whatever it is, it is the result of this peer only
            failures[peer.name] = _reason(error)
            say(f"{peer.title} is left out: {failures[peer.name]}")
    return entrants, failures


async def measure(entrants: dict[str, Entrant], part: str, rounds: int, sizes: Sizes) -> Results:
    """All turns of a part."""
    results = Results()
    names = [name for name, entrant in entrants.items() if part in entrant.peer.parts]
    for number, order in enumerate(orders(names, rounds), start=1):
        for name in order:
            try:
                figures, probe = await turn(entrants[name], part, sizes)
            except Exception as error:  # the same
                results.failures[name] = _reason(error)
                say(f"{part} {number} of {rounds}, {name}: failed: {results.failures[name]}")
                continue
            results.figures.setdefault(name, []).append(figures)
            results.probes.append(probe)
            say(f"{part} {number} of {rounds}, {name}: {json.dumps(figures)}")
    return results


async def turn(entrant: Entrant, part: str, sizes: Sizes) -> tuple[dict[str, float], dict[str, Any]]:
    """One part of one peer, and what the machine did meanwhile."""
    with tempfile.TemporaryDirectory(prefix="mainspring-probe-", dir="/var/tmp") as directory:
        probe = Probe(Path(directory))
        try:
            figures = await MEASURES[part](entrant, sizes)
        finally:
            found = await asyncio.to_thread(probe.figures)
    return figures, found


def _reason(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


async def run(args: argparse.Namespace, places: Places) -> dict[str, Any]:
    entrants, absent = await enter_all(args.only, places)
    whole: dict[str, Any] = {"benchmark": "peers", "rounds": args.rounds, "tasks": args.tasks, "absent": absent}
    for part in args.parts:
        results = await measure(entrants, part, args.rounds, Sizes(throughput=args.tasks))
        whole[part] = {
            "medians": results.medians(),
            "rounds": results.figures,
            "failures": results.failures,
            "probes": results.probes,
        }
        if not args.json:
            results.failures.update(absent)
            print(part_table(part, results, TITLES, OURS), end="\n\n", flush=True)
    return whole


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending PostgreSQL, Redis and the drivers
    with fresh_database() as dsn, redis_server() as redis:
        stop_probe()  # each turn has one of its own
        whole = asyncio.run(run(args, Places(dsn, redis)))
    settings = {peer.name: peer.settings for peer in PEERS if peer.name in args.only}
    print(json.dumps({**whole, "settings": settings, "environment": environment()}))


if __name__ == "__main__":
    main()
