"""The tour: `Next:` leads from the job through the life of a task to its history row, forward only."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import mainspring

SOURCE = Path(mainspring.__file__).parent
MODULES = sorted(str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py"))
PACKAGES = sorted(module for module in MODULES if module.endswith("__init__.py"))
NEXT = re.compile(r"^Next:\s+(\S+\.py)\b", re.MULTILINE)

START, END = "sdk/job.py", "store/tasks/transitions.py"
ROOMS = [
    "sdk", "sdk/backends", "operations/requests", "store/submission", "server/cluster", "server/dispatch",
    "store/tasks", "server/dispatch", "server/agents", "wire",
    "agent/connection", "agent/run", "agent/timing", "agent/run", "agent/executors", "agent/run", "agent/connection",
    "server/agents", "server/recording", "model/tasks", "store/tasks",
]  # fmt: skip


def docstring(module: str) -> str:
    return ast.get_docstring(ast.parse((SOURCE / module).read_text())) or ""


def following(module: str) -> list[str]:
    return NEXT.findall(docstring(module))


def test_the_tour_leads_from_a_job_to_the_history_row() -> None:
    way = [START]
    while step := following(way[-1]):
        assert step[0] not in way, f"{way[-1]} leads back to {step[0]}"
        way.append(step[0])
    assert way[-1] == END
    rooms = [str(Path(module).parent) for module in way]
    assert [room for n, room in enumerate(rooms) if n == 0 or rooms[n - 1] != room] == ROOMS


def test_no_way_leads_back_to_where_it_came_from() -> None:
    graph = {module: following(module) for module in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_next_module_exists() -> None:
    leading = [module for module in MODULES if "Next:" in docstring(module)]
    assert len(leading) > 100
    assert [module for module in leading if not following(module) or not set(following(module)) <= set(MODULES)] == []


def test_every_module_that_a_docstring_reads_or_writes_exists() -> None:
    named = re.compile(r"^(?:Reads|Writes|Asks) +((?:store|model|server)(?:\.[a-z_]+)+)", re.MULTILINE)
    found = {(module, name.replace(".", "/")) for module in MODULES for name in named.findall(docstring(module))}
    assert len(found) > 20
    assert {
        (module, path) for module, path in found if not {f"{path}.py", f"{path}/__init__.py"} & set(MODULES)
    } == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_says_what_it_is_for_and_is_no_warehouse(package: str) -> None:
    assert docstring(package)
    beside = [module for module in MODULES if Path(module).parent == Path(package).parent and module != package]
    assert len(beside) <= 12
