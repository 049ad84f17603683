"""The site: the console's page at each of its addresses, and the files that the page loads.

`make console` builds them into api/static/. All are served from memory: the page without caching, each file immutable,
because its name has the hash of what is in it. No request to another origin, no inline script or style.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from mainspring.api.answers import Answer
from mainspring.api.call import Call, path_within
from mainspring.errors import NotFound, shown
from mainspring.model.access.actors import Actor
from mainspring.store.postgres.connection import Connection

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
# The console's addresses: console/src/routes.ts.
PATHS = (
    *("/", "/timeline", "/calendar", "/daemons", "/cluster", "/alerts", "/activity", "/access", "/settings"),
    *("/schedules", "/schedules/{name}", "/schedules/{name}/edit", "/schedules/{name}/at/{time}", "/new/schedule"),
    *("/tasks", "/tasks/{id}", "/jobs", "/jobs/{name}", "/batches", "/batches/{id}", "/agents", "/agents/{name}"),
    "/api-reference",
)
NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Mainspring</title>
<h1>Mainspring</h1>
<p>The console is not built here: <code>make console</code> builds it, with Node.js 20 or newer.</p>
<p>The API is complete without it: <a href="{base}/openapi.json">openapi.json</a> describes it, and
<code>mainspring --help</code> lists what the command line does with it.</p>
</html>
"""


class File(NamedTuple):
    data: bytes
    packed: dict[str, bytes]  # by the name of the encoding


async def page(conn: Connection, actor: Actor) -> str:
    """A page of the console."""
    raise NotImplementedError  # its handler reads a file


async def file(conn: Connection, actor: Actor, name: str) -> str:
    """A file that the console loads."""
    raise NotImplementedError


async def handle_page(call: Call) -> Answer:
    return _page(call, 200)


def is_for_a_browser(call: Call) -> bool:
    """Whether a person asked for a page: below /api/ and /static/ there are none."""
    path = path_within(call.scope, call.base)
    return (
        call.method in ("GET", "HEAD")
        and "text/html" in call.headers.get("accept", "")
        and not path.startswith((b"/api/", b"/static/"))
    )


def no_such_page(call: Call) -> Answer:
    """The console, which says that there is no such page and shows the way to one."""
    return _page(call, 404)


def _page(call: Call, status: int) -> Answer:
    return Answer(status, _index(call.base), [*_headers("html"), ("Cache-Control", "no-cache")])


async def handle_file(call: Call) -> Answer:
    name = call.names["name"]
    found = _files(_built_at()).get(name)
    if found is None:
        raise NotFound(f"there is no file {shown(name)}; reload the page, the console may have been upgraded")
    headers = [*_headers(name.rpartition(".")[2]), ("Vary", "Accept-Encoding")]
    is_hashed = "-" in name
    headers.append(("Cache-Control", "public, max-age=31536000, immutable" if is_hashed else "public, max-age=3600"))
    accepted = call.headers.get("accept-encoding", "")
    for encoding in ("br", "gzip"):
        if encoding in accepted and encoding in found.packed:
            return Answer(200, found.packed[encoding], [*headers, ("Content-Encoding", encoding)])
    return Answer(200, found.data, headers)


def _headers(kind: str) -> list[tuple[str, str]]:
    return [
        ("Content-Type", TYPES[kind]),
        ("Content-Security-Policy", POLICY),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
    ]


def _index(base: str) -> bytes:
    """The page, with the path that we are served below."""
    found = _files(_built_at()).get("index.html")
    text = NOT_BUILT.format(base=escape(base)) if found is None else found.data.decode()
    return text.replace('<base href="/">', f'<base href="{escape(base)}/">').encode()


def _built_at() -> int:
    """Grows when the console is built again, as `node build.mjs --watch` does; 0: it is not there."""
    try:
        return (_folder() / "manifest.json").stat().st_mtime_ns
    except OSError:
        return 0


@cache
def _folder() -> Path:
    return Path(str(files("mainspring.api").joinpath("static")))


_kept: tuple[int, dict[str, File]] = (0, {})


def _files(built_at: int) -> dict[str, File]:
    """What was built, read once."""
    global _kept
    if built_at != _kept[0]:
        _kept = (built_at, _read(_folder()) if built_at else {})
    return _kept[1]


def _read(folder: Path) -> dict[str, File]:
    found = {}
    for path in folder.iterdir():
        if path.suffix.removeprefix(".") in TYPES:
            packed = {"br": Path(f"{path}.br"), "gzip": Path(f"{path}.gz")}
            found[path.name] = File(
                path.read_bytes(), {name: one.read_bytes() for name, one in packed.items() if one.exists()}
            )
    return found
