"""The site: the login page and a first page behind it, as files; no request to another origin, no inline script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from mainspring.api.answers import Answer
from mainspring.api.call import Call
from mainspring.model.access.actors import Actor
from mainspring.store.postgres.connection import Connection

TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
FILES = {
    "/": "index.html",
    "/index.js": "index.js",
    "/login": "login.html",
    "/login.js": "login.js",
    "/site.css": "site.css",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def page(conn: Connection, actor: Actor) -> str:
    """A page of the console."""
    raise NotImplementedError  # its handler reads a file


async def handle_page(call: Call) -> Answer:
    name = FILES[call.row.path]
    headers = [
        ("Content-Type", TYPES[name.rpartition(".")[2]]),
        ("Content-Security-Policy", POLICY),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cache-Control", "no-cache"),
    ]
    if call.origin.is_secure:
        headers.append(("Strict-Transport-Security", "max-age=31536000"))
    return Answer(200, _read(name), headers)


@cache
def _read(name: str) -> bytes:
    return files("mainspring.api").joinpath("site", name).read_bytes()
