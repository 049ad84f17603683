"""The pages of the documentation refer to things that exist: pages, headings, modules."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PACKAGE = ROOT / "src" / "mainspring"

_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:\w+/)+\w*(?:\.\w+)?)`")


def prose(page: Path) -> str:
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """What a page links to, apart from other sites."""
    return [link for link in _LINK.findall(prose(page)) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    plain = (re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", heading) for heading in _HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


def target(page: Path, link: str) -> Path:
    path = unquote(link.partition("#")[0])
    return (page.parent / path).resolve() if path else page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_to_one_of_its_headings(page: Path) -> None:
    for link in links(page):
        found = target(page, link)
        assert found.exists(), link
        if anchor := link.partition("#")[2]:
            assert anchor in anchors(found), link


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, left = {INDEX}, [INDEX]
    while left:
        page = left.pop()
        found = {path for link in links(page) if (path := target(page, link)).suffix == ".md"}
        left += found - reached
        reached |= found
    assert set(DOCS.rglob("*.md")) <= reached


def test_the_index_itself_names_every_page_but_the_decisions() -> None:
    named = {target(INDEX, link) for link in links(INDEX)}
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"}
    assert pages - {INDEX} <= named


def test_the_list_of_decisions_has_all_of_them() -> None:
    overview = DOCS / "decisions" / "README.md"
    assert {target(overview, link) for link in links(overview)} >= set((DOCS / "decisions").glob("0*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()} | {"tests", "benchmarks", "scripts"}
    for name in _PATH.findall(prose(page)):
        if name.partition("/")[0] in rooms:
            assert (PACKAGE / name).exists() or (ROOT / name).exists(), name
