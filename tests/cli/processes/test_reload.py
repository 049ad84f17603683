"""What `worker --reload` watches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainspring.cli.processes.reload import Watch


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path in ("shop/__init__.py", "shop/jobs.py", "shop/notes.txt", ".venv/lib/site.py", "env/lib/other.py",
                 "env/pyvenv.cfg", "shop/__pycache__/jobs.py", ".git/hook.py"):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    return tmp_path


def test_the_files_of_the_application_are_watched_and_no_others(project: Path) -> None:
    found = Watch("shop.jobs:app", project).snapshot()
    assert {str(Path(path).relative_to(project)) for path in found} == {"shop/__init__.py", "shop/jobs.py"}


def test_a_package_that_lies_elsewhere_is_watched_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.syspath_prepend(str(project))
    assert Watch("shop.jobs:app", elsewhere).snapshot().keys() == {
        str(project / "shop/__init__.py"),
        str(project / "shop/jobs.py"),
    }
    (project / "single.py").write_text("")
    assert Watch("single:app", elsewhere).snapshot().keys() == {str(project / "single.py")}
    assert Watch("missing:app", elsewhere).snapshot() == {}


def test_edits_new_files_and_files_that_are_gone_are_changes(project: Path) -> None:
    watch = Watch("shop.jobs:app", project)
    jobs = project / "shop/jobs.py"
    seen = watch.snapshot()
    assert watch.changed_since(seen) is None
    (project / "shop/notes.txt").write_text("other")
    assert watch.changed_since(seen) is None
    os.utime(jobs, ns=(0, jobs.stat().st_mtime_ns + 1))
    assert watch.changed_since(seen) == str(jobs)
    seen = watch.snapshot()
    (project / "shop/more.py").write_text("")
    assert watch.changed_since(seen) == str(project / "shop/more.py")
    seen = watch.snapshot()
    jobs.unlink()
    assert watch.changed_since(seen) == str(jobs)
