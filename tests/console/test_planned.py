"""Planned versus fired in the browser: what is drawn, the table with the same, by wheel, mouse and keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.console.conftest import Open, Up, picture
from tests.console.past import Fire, give_past

MINUTE = timedelta(minutes=1)
SCENE = "document.querySelector('.p-rows canvas').scene"
# of the first row: [kind, look, letter, minutes from its first mark]
DRAWN = f"""() => {{
    const items = {SCENE}.rows[0].items;
    return items.map(({{ is, look, letter, at, means }}) => ({{ is, look, letter, at, means }}));
}}"""


def iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


@pytest.fixture(scope="module")
def story(up: Up) -> datetime:
    """A schedule with an overlap, a run that failed and an outage; its last whole ten minutes before now."""
    spec = {"job": "hello", "enabled": True, "cron": "*/10 * * * *", "tz": "Europe/Paris", "overlap": "skip"}
    up.call("PUT /schedules/{name}", {**spec, "slo": {"lateness": "2s"}}, name="p-report")
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    last = now - (now.minute % 10) * MINUTE - 10 * MINUTE
    ago = {number: last - 10 * number * MINUTE for number in range(16)}
    fires = [
        Fire(ago[0]),
        Fire(ago[1], "overlap"),
        Fire(ago[2], took=900.0),
        Fire(ago[3], state="failed"),
        # 4, 5, 6: nothing was running
        Fire(ago[7], late=120.0),
        Fire(ago[8], "paused"),
        Fire(ago[9], "misfire"),
        Fire(ago[10], "coalesced"),
        Fire(ago[11], "queue_full"),
        Fire(ago[12], "no_scopes"),
        Fire(ago[13]),
    ]
    give_past(up, "p-report", ago[13] - MINUTE, fires)
    return last


def test_each_sign_is_drawn_and_told_in_the_table(
    up: Up, story: datetime, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    where = f"range=3h&at={iso(story - 70 * MINUTE)}"
    page = open_page(f"timeline?name=p-report&{where}")
    page.locator(".p-legend").wait_for()
    drawn = page.evaluate(DRAWN)
    ticks = {
        round((story.timestamp() * 1000 - one["at"]) / 600_000): (one["look"], one.get("letter"))
        for one in drawn
        if one["is"] == "tick"
    }
    expected = {0: "fired", 2: "fired", 3: "fired", 7: "fired", 13: "fired", 4: "missed", 5: "missed", 6: "missed"}
    letters = {1: "o", 8: "p", 9: "m", 10: "c", 11: "q", 12: "n"}
    assert {number: ticks[number] for number in (*expected, *letters)} == {
        **{number: (look, None) for number, look in expected.items()},
        **{number: ("skipped", letter) for number, letter in letters.items()},
    }
    assert sum(one["is"] == "bar" and one["look"] == "bad" for one in drawn) == 1
    assert [one["means"] for one in drawn if one["is"] == "line"] == ["120000 ms"], "one was two minutes late"
    assert [one["look"] for one in drawn if one["is"] == "dot"].count("bad") == 1, "and beyond its objective"
    check_axe(page)
    picture(page, "planned")
    page.get_by_role("button", name="Table").click()
    rows = page.locator("tbody tr[data-id]")
    rows.first.wait_for()
    assert "view=table" in page.url
    told: dict[str, str] = {row.get_attribute("data-id"): row.inner_text() for row in rows.all()}

    def row(number: int) -> str:
        return told[f"p-report {round((story - 10 * number * MINUTE).timestamp() * 1000)} "]

    assert "fired 0.40 ms late; succeeded after 20 s" in row(0)
    assert "skipped: overlap: the run before it had not ended" in row(1)
    assert "failed after 20 s" in row(3)
    assert "missed: nothing decided about it" in row(5)
    assert "skipped: queue full" in row(11)
    check_axe(page)


def test_zoom_and_pan_by_keyboard_wheel_and_drag_are_in_the_address(up: Up, story: datetime, open_page: Open) -> None:
    page = open_page("timeline?name=p-report&range=6h")
    page.locator(".p-legend").wait_for()
    box = page.locator(".p-picture")

    def until(**query: str) -> None:
        """The address gets these parameters."""
        page.wait_for_url(lambda url: all(f"{name}={value}" in url for name, value in query.items()))

    box.focus()
    page.keyboard.press("-")
    until(range="12h")
    assert "at=" not in page.url, "now still moves"
    page.keyboard.press("+")
    page.keyboard.press("+")
    until(range="3h")
    page.keyboard.press("ArrowLeft")
    until(at="20")
    page.keyboard.press("Home")
    page.wait_for_url(lambda url: "at=" not in url)
    canvas = page.locator(".p-plot")
    canvas.hover(position={"x": 300, "y": 20})
    page.mouse.wheel(0, 120)
    until(range="6h", at="20")
    page.keyboard.press("Home")
    page.wait_for_url(lambda url: "at=" not in url)
    edge = canvas.bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + 300, edge["y"] + 30)
    page.mouse.down()
    page.mouse.move(edge["x"] + 500, edge["y"] + 30, steps=4)
    page.mouse.up()
    until(range="6h", at="20")
    page.reload()
    page.locator(".p-legend").wait_for()
    assert "range=6h" in page.url
    shown = page.evaluate(f"() => {SCENE}.to")
    assert shown / 1000 < datetime.now(UTC).timestamp(), "a reload shows the same stretch of the past"


def test_a_mark_is_chosen_by_key_told_in_words_and_explained(up: Up, story: datetime, open_page: Open) -> None:
    at = story - 10 * MINUTE
    page = open_page(f"timeline?name=p-report&range=1h&at={iso(at - 5 * MINUTE)}")
    page.locator(".p-legend").wait_for()
    page.locator(".p-picture").focus()
    page.keyboard.press("]")
    card = page.locator(".p-card")
    card.get_by_text("skipped: overlap").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("Skipped, overlap: the run of").first.wait_for()
    assert f"/schedules/p-report/at/{iso(at)}".replace(":", "%3A") in page.url
    page.go_back()
    canvas = page.locator(".p-plot")
    canvas.wait_for()
    page.locator(".p-legend").wait_for()
    spot = page.evaluate(
        f"""() => {{
            const [plot, canvas] = ['.p-plot', '.p-plot canvas'].map((one) => document.querySelector(one));
            const item = {SCENE}.rows[0].items.find((one) => one.letter === 'o');
            const shift = canvas.getBoundingClientRect().left - plot.getBoundingClientRect().left;
            return {{ x: item.x + shift, y: item.y + 7 }};
        }}"""
    )
    canvas.hover(position=spot)
    card.get_by_text("the run before it had not ended").wait_for()
    canvas.click(position=spot)
    page.locator('.p-step[data-code="overlap"]').wait_for()


# of each row, whether its first tick has been drawn
PAINTED = f"""() => {{
    const canvas = document.querySelector('.p-rows canvas');
    const {{ rows, plot }} = {SCENE};
    const on = canvas.getContext('2d');
    return rows.map((row) => {{
        const item = row.items.find((one) => one.is === 'tick' && one.x > 5 && one.x < 1.5 * plot - 5);
        const x = Math.round(item.x * devicePixelRatio) - 1;
        const dots = on.getImageData(x, Math.round((item.y + 7) * devicePixelRatio), 3, 1).data;
        return dots.some((value, place) => place % 4 === 3 && value > 100);
    }});
}}"""


def test_rows_are_drawn_where_one_looks_a_few_in_each_frame_and_all_of_them_for_a_printer(
    up: Up, open_page: Open
) -> None:
    spec = {"job": "hello", "enabled": True, "cron": "7 * * * *"}
    names = [f"p-row-{number:02}" for number in range(40)]
    for name in names:
        up.call("PUT /schedules/{name}", spec, name=name)
    page = open_page("settings", height=600)
    # however long a frame takes, it draws a row: here each look at the clock takes a second
    page.add_init_script("let past = 0; performance.now = () => (past += 1000);")
    page.goto("timeline?name=p-row&range=12h")
    page.locator(".p-names li").nth(39).wait_for(state="attached")
    page.wait_for_function("() => document.querySelector('.p-rows canvas').isWhole")
    painted = page.evaluate(PAINTED)
    assert painted[:3] == [True] * 3, "those on screen"
    assert not any(painted[-8:]), "none of those far below"
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function(f"() => ({PAINTED})().at(-1)")
    assert all(page.evaluate(f"() => {{ dispatchEvent(new Event('beforeprint')); return ({PAINTED})(); }}"))
    for name in names:
        up.call("DELETE /schedules/{name}", name=name)


def test_a_night_in_which_clocks_change_is_read_from_the_table(up: Up, open_page: Open) -> None:
    spec = {"job": "hello", "enabled": True, "cron": "30 2 * * *", "tz": "Europe/Paris", "fold": "both"}
    up.call("PUT /schedules/{name}", spec, name="p-nightly")
    page = open_page("timeline?name=p-nightly&range=12h&view=table&at=2027-03-28T01:00:00Z")
    page.get_by_text("clocks go forward: 02:00 becomes 03:00, in Europe/Paris").wait_for()
    page.get_by_text("02:30 does not exist that day: moved to 03:00").wait_for()
    page.goto("timeline?name=p-nightly&range=12h&view=table&at=2027-10-31T01:00:00Z")
    page.get_by_text("clocks go back: 03:00 becomes 02:00, in Europe/Paris").wait_for()
    page.get_by_text("02:30 comes twice that day: this is the first").wait_for()
    page.get_by_text("02:30 comes twice that day: this is the second").wait_for()
    page.get_by_role("button", name="Schedule's zone").click()
    page.get_by_text("2027-10-31 02:30:00 +02:00").wait_for()
    page.get_by_text("2027-10-31 02:30:00 +01:00").wait_for()
    page.get_by_role("button", name="Picture").click()
    page.locator(".p-legend").wait_for()
    looks = [(one["is"], one["look"]) for one in page.evaluate(DRAWN)]
    assert looks.count(("change", "fold")) == 1
    assert looks.count(("tick", "coming")) == 2


def test_runs_stand_beside_each_other_by_agent(up: Up, open_page: Open) -> None:
    id = up.submit("hello", wait=20)
    page = open_page("timeline?by=agents&range=5m")
    page.locator(".p-names li").first.wait_for()
    page.get_by_role("button", name="Table").click()
    page.locator(f'tr[data-id="{id}"]').get_by_text("succeeded").wait_for()
    page.get_by_role("button", name="Picture").click()
    page.locator(".p-plot").wait_for()
    runs = page.evaluate(f"() => {SCENE}.rows.flatMap((row) => row.items.map((item) => item.of[0].id))")
    assert id in runs


@pytest.mark.parametrize("width", [1440, 360])
def test_it_can_be_read_in_the_dark_and_on_a_phone(
    up: Up, story: datetime, open_page: Open, check_axe: Callable[[Any], None], width: int
) -> None:
    page = open_page("timeline?name=p-report&range=3h", width=width, theme="dark")
    page.locator(".p-legend").wait_for()
    check_axe(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    picture(page, f"planned-dark-{width}")
    dark = page.evaluate(COLOUR)
    page.get_by_role("button", name="Theme").click()  # system → light
    page.locator('html[data-theme="light"]').wait_for()
    page.locator(".p-picture").focus()
    page.keyboard.press("Home")
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert page.evaluate(COLOUR) != dark, "drawn again in the colours of the theme"


# the first pixel of a tick that has fired
COLOUR = f"""() => {{
    const canvas = document.querySelector('.p-rows canvas');
    const item = {SCENE}.rows[0].items.find((one) => one.look === 'fired' && one.x > 5);
    const ratio = devicePixelRatio;
    const x = Math.round(item.x * ratio);
    return [...canvas.getContext('2d').getImageData(x, Math.round((item.y + 7) * ratio), 1, 1).data];
}}"""
