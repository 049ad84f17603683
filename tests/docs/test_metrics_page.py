"""The page on metrics lists what the code tells, and its examples name nothing else."""

from __future__ import annotations

import re

from mainspring.model.metrics.metrics import METRICS
from tests.docs.test_pages import DOCS

PAGE = DOCS / "reference" / "metrics.md"
_ROW = re.compile(r"^\| `mainspring_.*$", re.MULTILINE)
_NAME = re.compile(r"\bmainspring_[a-z_]+")


def rows() -> list[str]:
    """The rows of the table: paste them into the page when this test fails."""
    return [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in METRICS.values()
    ]


def test_the_page_has_every_metric_as_the_code_has_it() -> None:
    assert "\n".join(_ROW.findall(PAGE.read_text(encoding="utf-8"))) == "\n".join(rows())


def test_examples_name_metrics_that_exist() -> None:
    known = {metric.name for metric in METRICS.values()}
    for metric in METRICS.values():
        if metric.kind == "histogram":
            known |= {f"{metric.name}{end}" for end in ("_bucket", "_count", "_sum")}
    examples = _ROW.sub("", PAGE.read_text(encoding="utf-8"))
    assert set(_NAME.findall(examples)) - {"mainspring_cluster_"} <= known
