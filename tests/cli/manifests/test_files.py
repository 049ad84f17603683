"""Files of manifests: three formats, several files, and every mistake told with its file; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.manifests.reading import through_yaml

from mainspring.cli.manifests import formats
from mainspring.cli.manifests.files import read_files
from mainspring.errors import ValidationError
from mainspring.model.manifests.manifest import MOST_BYTES

YAML = """
mainspring: 1
set: shop
jobs:
  report: {command: [./report.sh], timeout: 10m, retries: 3}
schedules:
  daily: {job: report, daily: 10:30, tz: Europe/Paris, calendars: [holidays]}
calendars: {holidays: [12-25, 2027-05-17, sun]}
"""
TOML = """
mainspring = 1
set = "shop"
[jobs.report]
command = ["./report.sh"]
timeout = "10m"
retries = 3
[schedules.daily]
job = "report"
daily = "10:30"
tz = "Europe/Paris"
calendars = ["holidays"]
[calendars]
holidays = ["12-25", 2027-05-17, "sun"]
"""
SHOP: dict[str, Any] = {
    "mainspring": 1,
    "set": "shop",
    "jobs": {"report": {"command": ["./report.sh"], "timeout": "10m", "retries": 3}},
    "schedules": {"daily": {"job": "report", "daily": "10:30", "tz": "Europe/Paris", "calendars": ["holidays"]}},
    "calendars": {"holidays": ["12-25", "2027-05-17", "sun"]},
}

Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return written


def sections(path: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
    made = read_files([path], variables).manifest
    return {name: getattr(made, name) for name in SHOP}


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.yaml", YAML), ("a.YML", YAML), ("a.toml", TOML), ("a.json", json.dumps(SHOP)), ("b.yaml", json.dumps(SHOP))],
)
def test_the_formats_say_the_same(write: Write, name: str, content: str) -> None:
    assert sections(write(name, content)) == SHOP
    assert sections(write(name, "\ufeff" + content)) == SHOP, "with a byte order mark"


def test_words_of_yaml_1_1_are_text() -> None:
    read = formats.read_yaml(
        "[yes, on, n, 10:30, 2026-12-25, 0777, 1e3x, 0o7, 1_000, true, 12, 1.5, 2e3, ~, .inf]", "a"
    )
    assert read == [
        "yes", "on", "n", "10:30", "2026-12-25", "0777", "1e3x", "0o7", "1_000", True, 12, 1.5, 2000.0, None, ".inf",
    ]  # fmt: skip


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
    | st.sampled_from(["yes", "~", "1e3", "0x1f", "<<", "=", "10:30", "- a", "a\x85b", "\u2028", "a: b", "12-25"])
    | st.sampled_from(["null", "0o14", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


@given(PLAIN)
def test_whatever_is_exported_as_yaml_is_read_as_it_was(value: Any) -> None:
    assert through_yaml(value) == value


def test_anchors_and_merges_work_within_bounds(write: Write) -> None:
    text = "mainspring: 1\njobs:\n  a: &a {command: [x], retries: 2}\n  b: {<<: *a, retries: 3}\n  c: *a\n"
    found = sections(write("a.yaml", text))["jobs"]
    assert (found["b"], found["c"]) == ({"command": ["x"], "retries": 3}, {"command": ["x"], "retries": 2})


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
WRONG: dict[str, tuple[str, str | bytes, str]] = {
    "duplicate keys of YAML": ("a.yaml", "mainspring: 1\njobs: {}\njobs: {}\n", "line 3: the key 'jobs' appears twice"),
    "duplicate keys of JSON": ("a.json", '{"mainspring": 1, "set": "a", "set": "b"}', "the key 'set' appears twice"),
    "duplicate keys of TOML": ("a.toml", "mainspring = 1\nmainspring = 1\n", "not TOML"),
    "a bomb of anchors": ("a.yaml", BOMB, "its anchors stand for more than 1,000,000 values"),
    "a bomb of merges": ("a.yaml", MERGES, "its anchors stand for more than 1,000,000 values"),
    "an anchor that holds itself": ("a.yaml", "mainspring: &a [*a]\n", "an anchor that holds itself"),
    "great depth in YAML": ("a.yaml", "[" * 100_000, "nested deeper than 64 levels"),
    "great depth in blocks": ("a.yaml", "- " * 10_000, "nested deeper than 64 levels"),
    "great depth in JSON": ("a.json", "[" * 100_000, "64 levels"),
    "great depth in TOML": ("a.toml", "a = " + "[" * 10_000, "nested deeper than 64 levels"),
    "what is not UTF-8": ("a.yaml", b"mainspring: 1\nset: \xff\xfe\n", "not text in UTF-8 (byte 20)"),
    "UTF-16": ("a.yaml", "mainspring: 1".encode("utf-16"), "not text in UTF-8"),
    "NUL": ("a.yaml", "mainspring: 1\nset: 'a\0b'\n", "not YAML"),
    "a huge file": ("a.yaml", "#" * (MOST_BYTES + 1), "more than 8 MB"),
    "two documents": ("a.yaml", "mainspring: 1\n---\nmainspring: 1\n", "not YAML: line 2"),
    "no YAML": ("a.yaml", "mainspring: [1\n", "not YAML: line 2"),
    "a tag of Python": ("a.yaml", "mainspring: !!python/object/apply:os.system [id]\n", "not YAML: line 1"),
    "a tag that is no JSON": ("a.yaml", "mainspring: !!set {a, b}\n", "no value that a manifest can hold"),
    "binary": ("a.yaml", "mainspring: !!binary aGVsbG8=\n", "no value that a manifest can hold"),
    "a key that is no text": ("a.yaml", "mainspring: 1\njobs: {1: {command: [a]}}\n", "jobs: the key 1 is no text"),
    "a key that is a list": ("a.yaml", "? [a]\n: 1\n", "line 1: a key that is no text"),
    "a number too long": ("a.yaml", f"mainspring: {'9' * 5000}\n", "not YAML"),
    "no JSON": ("a.json", "{", "not JSON"),
    "an empty file": ("a.yaml", "", "None is not a manifest"),
    "an unknown key": ("a.yaml", "mainspring: 1\nshedules: {}\n", "did you mean schedules?"),
    "another format": ("a.txt", "mainspring: 1\n", "the name of a manifest ends with .yaml"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_names_its_file(write: Write, what: str) -> None:
    name, content, says = WRONG[what]
    path = write(name, content)
    with pytest.raises(ValidationError) as caught:
        read_files([path], None)
    assert caught.value.message.startswith(path), caught.value.message
    assert says in caught.value.message


def test_a_directory_is_all_manifests_in_it(write: Write, tmp_path: Path) -> None:
    write("jobs.yaml", "mainspring: 1\nset: shop\njobs: {a: {command: [x]}}\n")
    write("more.json", '{"mainspring": 1, "set": "shop", "jobs": {"b": {"command": ["y"]}}}')
    write("days.toml", 'mainspring = 1\nset = "shop"\n[calendars]\nfree = ["sun"]\n')
    write("notes.txt", "not a manifest")
    write(".hidden.yaml", "nor is this")
    (tmp_path / "deeper").mkdir()
    read = read_files([str(tmp_path)], None)
    assert (sorted(read.manifest.jobs), list(read.manifest.calendars)) == (["a", "b"], ["free"])
    assert read.origins["jobs", "b"] == str(tmp_path / "more.json")
    write("again.yaml", "mainspring: 1\nset: shop\njobs: {b: {command: [z]}}\n")
    with pytest.raises(ValidationError, match=r"more.json: jobs.b is in .*again.yaml already"):
        read_files([str(tmp_path)], None)
    write("again.yaml", "mainspring: 1\nset: other\n")
    with pytest.raises(ValidationError, match=r"set: shop; .*again.yaml has other"):
        read_files([str(tmp_path)], None)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no file in it ends with"):
        read_files([str(tmp_path)], None)
    for path in (str(tmp_path / "none.yaml"), "a\0b.yaml"):
        with pytest.raises(ValidationError):
            read_files([path], None)
    with pytest.raises(ValidationError, match="given twice"):
        read_files(["x.yaml", "x.yaml"], None)


def test_variables_are_replaced_only_on_demand_and_only_in_texts(write: Write) -> None:
    text = "mainspring: 1\njobs:\n  a: {command: ['${HOME}/x', '$${HOME}', '$HOME'], env: {'${A}': '${A}${B}'}}\n"
    path = write("a.yaml", text)
    assert sections(path)["jobs"]["a"]["command"][0] == "${HOME}/x"
    found = sections(path, {"HOME": "/root", "A": "1: 2", "B": "${A}"})["jobs"]["a"]
    assert found == {"command": ["/root/x", "${HOME}", "$HOME"], "env": {"${A}": "1: 2${A}"}}
    with pytest.raises(ValidationError, match=r"a.yaml: jobs.a.env.\$\{A\}: \$\{B\} is not set"):
        sections(path, {"HOME": "/root", "A": ""})
