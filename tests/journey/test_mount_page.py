"""docs/how-to/mount-the-api.md: its code, with the real frameworks, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journey.pages import Page

PAGE = Page("docs/how-to/mount-the-api.md")
SETTINGS = """
SECRET_KEY = "test"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
ROOT_URLCONF = "site_settings"
urlpatterns = []
"""
LOGIN = """
from asgiref.sync import sync_to_async

def cookie():
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.core.management import call_command
    call_command("migrate", verbosity=0)
    user = User.objects.create_user("ada", is_staff=True)
    session = module.sessions.SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return {"sessionid": session.session_key}

async def cookies():
    return await sync_to_async(cookie)()
"""
COOKIE = """
async def cookies():
    return {"login": "secret of ada"}
"""
VISIT = """
import asyncio, json, httpx2, {module} as module, jobs
{login}
async def main():
    told = {{}}
    transport = httpx2.ASGITransport(app=module.{name})
    async with jobs.app, httpx2.AsyncClient(transport=transport, base_url="https://shop.example") as client:
        told["stranger"] = (await client.get("/ops/api/v1/session")).status_code
        client.cookies.update(await cookies())
        session = (await client.get("/ops/api/v1/session")).json()
        told["who"] = [session["name"], session["role"]]
        task = await jobs.app["sales"].enqueue("2026-11-15")
        cancel = f"/ops/api/v1/tasks/{{task.id}}/cancel"
        told["foreign"] = (await client.post(cancel, headers={{"Origin": "https://evil.example"}})).status_code
        told["without"] = (await client.post(cancel, headers={{"Origin": "https://shop.example"}})).status_code
        own = {{"Origin": "https://shop.example", "Mainspring-CSRF": session["csrf"]}}
        told["own"] = (await client.post(cancel, headers=own)).status_code
        told["defines"] = (await client.delete("/ops/api/v1/jobs/sales", headers=own)).status_code
    print(json.dumps(told))
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("module", "name", "login"),
    [("web", "web", COOKIE), ("plain", "web", COOKIE), ("site_asgi", "application", LOGIN)],
    ids=["fastapi", "starlette", "django"],
)
def test_who_is_logged_in_there_may_act_here(module: str, name: str, login: str, dsn: str, tmp_path: Path) -> None:
    PAGE.save(tmp_path)
    (tmp_path / "site_settings.py").write_text(SETTINGS)
    told = subprocess.run(
        [sys.executable, "-c", VISIT.format(module=module, name=name, login=login)],
        cwd=tmp_path,
        env={"MAINSPRING_DSN": dsn, "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout.splitlines()[-1]) == {
        "stranger": 401,
        "who": ["ada", "operator"],
        "foreign": 403,
        "without": 403,
        "own": 202,
        "defines": 403,
    }


def test_there_is_no_code_that_is_not_run() -> None:
    assert [block.file for block in PAGE.blocks] == ["jobs.py", "web.py", "plain.py", "site_asgi.py"]
