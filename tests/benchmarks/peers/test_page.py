"""docs/explanation/peers.md says what benchmarks/peers/catalogue.py does."""

from __future__ import annotations

import pytest
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.installation import ROOT

PAGE = (ROOT / "docs" / "explanation" / "peers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_page_names_the_versions_the_settings_and_the_promises_of_a_peer(peer: Peer) -> None:
    packages = ", ".join(f"`{package}`" for package in peer.packages) or "this tree"
    assert f"| {peer.title} | {packages} | {peer.settings} |" in PAGE
    assert f"| {peer.title} | {peer.promises} |" in PAGE
