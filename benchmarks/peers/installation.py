"""Installation: the packages of a peer, by name and version, in a directory of its own below .peers/.

A virtual environment for peers in Python, node_modules for those in JavaScript. What is there in the wanted versions is
not installed again.
Next: benchmarks/peers/places.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.catalogue import OURS, Peer

ROOT = Path(__file__).parents[2]
PEERS_DIRECTORY = ROOT / ".peers"
DRIVERS = Path(__file__).parent / "drivers"
INSTALL_SECONDS = 600


class NotInstalled(Exception):
    """The peer cannot take part; the text says why."""


def command(peer: Peer) -> list[str]:
    """The command line of the peer's driver, up to its role. Installs the peer if need be."""
    if peer.name == OURS:
        return [sys.executable, "-m", f"benchmarks.peers.drivers.{peer.driver}"]
    directory = PEERS_DIRECTORY / peer.name
    _install(peer, directory)
    if not peer.runs_on_node:
        return [str(directory / "bin" / "python"), "-m", f"benchmarks.peers.drivers.{peer.driver}"]
    for file in DRIVERS.glob("*.mjs"):  # a module finds packages only beside itself
        shutil.copy(file, directory)
    return [str(_node(directory)), str(directory / peer.driver)]


def environment(peer: Peer) -> dict[str, str]:
    """Ours finds its code as this process does; the others must not find ours, but benchmarks/ is theirs to import."""
    if peer.name == OURS:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _install(peer: Peer, directory: Path) -> None:
    wanted = "\n".join(peer.packages)
    ready = directory / "installed"
    if ready.exists() and ready.read_text() == wanted:
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if peer.runs_on_node:
        _install_with_npm(peer, directory)
    else:
        _run([sys.executable, "-m", "venv", str(directory)], directory)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *peer.packages], directory)
    ready.write_text(wanted)


def package_json(packages: tuple[str, ...]) -> str:
    dependencies = dict(package.split("==") for package in packages)
    return json.dumps({"private": True, "type": "module", "dependencies": dependencies}, indent=2)


def _install_with_npm(peer: Peer, directory: Path) -> None:
    if shutil.which("npm") is None:
        raise NotInstalled("needs Node and npm, which are not here; leave it out with --only")
    (directory / "package.json").write_text(package_json(peer.packages))
    _run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"], directory)


def _node(directory: Path) -> Path:
    """The one that was installed as a package, else that of the system."""
    own = directory / "node_modules" / "node" / "bin" / "node"
    found = own if own.exists() else shutil.which("node")
    if found is None:
        raise NotInstalled("needs Node, which is not here; leave it out with --only")
    return Path(found)


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{command[0]} took more than {INSTALL_SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise NotInstalled(f"{Path(command[0]).name} failed: {lines[-1].strip()}")
