"""The cluster in the browser: servers and their leases, the map of segments and how it moved, PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from tests.console.conftest import Open, Up, both_themes, picture

# As if ours had taken all segments when it started, an hour ago, lost ten, and got these back half an hour ago from a
# server that is gone by now.
MOVED = """
    with earlier as (update mainspring.segment_move set at = at - interval '2 hours')
    insert into mainspring.segment_move (at, segments, old_owner, new_owner, reason, term)
    select mainspring.now() - interval '30 min', array[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]::smallint[],
           '00000000-0000-0000-0000-00000000f001', id, 'balance', 1
      from mainspring.server where status = 'active' limit 1
    returning id
"""


def test_the_map_shows_who_owns_what_and_who_did(up: Up, open_page: Open, check_axe: Callable[[Any], None]) -> None:
    [server] = [one for one in up.call("GET /servers")["items"] if one["status"] == "active"]
    with psycopg.connect(up.dsn, autocommit=True) as conn:
        [move] = conn.execute(MOVED).fetchone() or [0]
        try:
            page = open_page("cluster", reduced_motion="reduce")
            page.get_by_text(f"{server['name']} leads, term").wait_for()
            card = page.get_by_role("article", name=server["name"])
            card.get_by_text("s left").wait_for()
            cells = page.get_by_role("list", name="Owners of the segments").locator("li")
            cells.nth(99).wait_for()
            assert cells.count() == 100
            of_ours = [f"segment {n}: {server['name']}" for n in range(100)]
            assert cells.locator(".hidden").all_text_contents() == of_ours
            slider = page.get_by_role("slider")
            assert slider.get_attribute("aria-valuetext") == "now"
            slider.focus()
            for _ in range(6):
                page.keyboard.press("PageDown")  # a tenth of the hour each
            page.get_by_role("list", name="Servers and how many segments they own").get_by_text(
                "10 segments"
            ).wait_for()
            assert "at=" in page.url
            before = cells.locator(".hidden").all_text_contents()
            assert [text.rsplit(" ", 1)[1] for text in before[:11]] == ["00000000"] * 10 + [server["name"]]
            for _ in both_themes(page):
                check_axe(page)
            picture(page, "cluster")
            page.reload()
            page.get_by_role("button", name="Play").click()
            page.get_by_role("button", name="Play").wait_for()  # it has ended, move by move
            assert "at=" not in page.url
            assert cells.locator(".hidden").all_text_contents() == of_ours
        finally:
            conn.execute("delete from mainspring.segment_move where id = %s", (move,))


def test_postgresql_names_its_oldest_transaction(up: Up, open_page: Open, check_axe: Callable[[Any], None]) -> None:
    with psycopg.connect(up.dsn, application_name="f-forgotten") as conn:
        conn.execute("select pg_current_xact_id()")
        page = open_page("cluster?segments=table&chores=all", role="viewer", width=360, theme="dark")
        oldest = page.get_by_role("table", name="Oldest transactions")
        oldest.get_by_text("f-forgotten").wait_for()
        oldest.get_by_text("idle in transaction").wait_for()
        page.get_by_role("table", name="Segments").locator("tr[data-id]").nth(99).wait_for()
        page.get_by_role("table", name="Chores").get_by_text("watch vacuum").wait_for()
        page.get_by_role("table", name="Dead rows of the busy tables").get_by_text("task", exact=True).wait_for()
        for _ in both_themes(page):
            check_axe(page)
        picture(page, "cluster-phone")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
