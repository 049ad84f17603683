"""Every page of the console, in both themes, wide and on a phone: axe finds nothing, nothing scrolls sideways.

One tab loads them one after the other: a new window for each takes longer than the page. With MAINSPRING_TEST_SHOTS
it writes PAGE-THEME-WIDTH.png of each, to be looked at by a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.console.conftest import ROOT, Up, opener, picture

ROUTES = re.findall(r'^  \["([^"]*)",', (ROOT / "console" / "src" / "routes.ts").read_text(), re.MULTILINE)
WIDTHS = (1440, 360)
THEMES = ("light", "dark")
# In the second theme only colours differ.
FULL = "{ resultTypes: ['violations'] }"
COLOURS = "{ resultTypes: ['violations'], runOnly: ['color-contrast'] }"


@pytest.fixture(scope="module")
def samples(up: Up) -> dict[str, str]:
    """By the first word of a path and the name in it: what there is to look at."""
    command = {"type": "command", "argv": ["sh", "-c", "echo about to fail; exit 3"]}
    up.call("PUT /jobs/{name}", {"run": command, "description": "Fails, for every page."}, name="r-every")
    up.call("PUT /schedules/{name}", {"job": "r-every", "every": "1h", "enabled": True}, name="r-every-hour")
    batch = up.call("POST /batches", {"name": "r-every", "on_complete": {"job": "hello"}})["id"]
    task = up.submit("r-every", wait=20, batch=batch)
    up.call(
        "POST /tasks/flow",
        {"steps": [{"job": "hello", "batch": batch}, {"job": "hello", "batch": batch, "steps": [0]}]},
    )
    [agent, *_] = up.call("GET /agents")["items"]
    [at, *_] = up.call("GET /schedules/{name}", name="r-every-hour")["next"]
    return {
        "schedules/:name": "r-every-hour",
        "schedules/:time": at,
        "tasks/:id": str(task),
        "jobs/:name": "r-every",
        "batches/:id": str(batch),
        "agents/:name": agent["name"],
    }


def address(route: str, samples: dict[str, str]) -> str:
    first = route.partition("/")[0]
    return "/".join(
        quote(samples[f"{first}/{word}"], safe="") if word.startswith(":") else word for word in route.split("/")
    )


def violations(page: Any, how: str) -> list[str]:
    found = page.evaluate(f"axe.run({how}).then((result) => result.violations)")
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found]


@pytest.fixture(scope="module")
def tab(browser: Any, up: Up) -> Iterator[Any]:
    with opener(browser, up) as open:
        yield open("about:blank")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route or "overview")
def test_a_page_is_accessible_and_fits(route: str, samples: dict[str, str], tab: Any, axe_source: str) -> None:
    tab.set_viewport_size({"width": WIDTHS[0], "height": 900})
    tab.goto(address(route, samples))
    tab.get_by_role("heading", level=1).wait_for()
    tab.get_by_text("Loading …").first.wait_for(state="detached")
    tab.evaluate(axe_source)
    name = re.sub(r"\W+", "_", route) or "overview"
    told = []
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        for theme in THEMES:
            tab.emulate_media(color_scheme=theme)
            found = violations(tab, FULL if theme == "light" else COLOURS)
            told += [f"{theme} {width}: {one}" for one in found]
            picture(tab, f"{name}-{theme}-{width}")
        reaches = tab.evaluate("document.documentElement.scrollWidth")
        if reaches > width:
            told.append(f"{width}: the page is {reaches} px wide")
    told += tab.strict.take()
    assert not told, "\n".join(told)
