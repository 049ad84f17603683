"""Metrics: `/metrics` as Prometheus text or OpenMetrics, from what the parts of this process have counted.

A scrape is rendered in parts, one for each metric, between which the event loop serves others. The text is written
here: prometheus-client takes ten times as long, which 500 agents and 200 jobs would feel (decision 43). Its parsers
check this text in the tests.
Reads   sources, such as server/metrics.py, api/metering/cluster_metrics.py and api/metering/tallies.py
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import accumulate

import psutil

from mainspring.model.metrics.histogram import Histogram
from mainspring.model.metrics.metrics import Family, Metric

Source = Callable[[], Iterable[Family]]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
END = "# EOF\n"  # of OpenMetrics

# As every Prometheus client calls them, and in its words.
_CPU = Metric("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.")
_VIRTUAL = Metric("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.")
_RESIDENT = Metric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.")
_STARTED = Metric("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
_DESCRIPTORS = Metric("process_open_fds", "gauge", "Number of open file descriptors.")
_MOST_DESCRIPTORS = Metric("process_max_fds", "gauge", "Maximum number of open file descriptors.")


def render(sources: Iterable[Source], accept: str = "") -> tuple[str, bytes]:
    """The media type and the text of one scrape. `accept` is the header of the request."""
    content_type, parts = _parts(sources, accept)
    return content_type, "".join(parts).encode()


async def render_in_parts(sources: Iterable[Source], accept: str = "") -> tuple[str, bytes]:
    """The same; the event loop serves others between two metrics."""
    content_type, parts = _parts(sources, accept)
    text: list[str] = []
    for part in parts:
        text.append(part)
        await asyncio.sleep(0)
    return content_type, "".join(text).encode()


def _wants_openmetrics(accept: str) -> bool:
    """Whether a scraper names it: Prometheus does, and takes the older text as well."""
    return any(part.partition(";")[0].strip().lower() == "application/openmetrics-text" for part in accept.split(","))


def _parts(sources: Iterable[Source], accept: str) -> tuple[str, Iterator[str]]:
    is_open = _wants_openmetrics(accept)
    return OPENMETRICS if is_open else TEXT, _texts(sources, is_open)


def _texts(sources: Iterable[Source], is_open: bool) -> Iterator[str]:
    """Of two sources that tell the same metric the first one counts: a scraper refuses a text with both."""
    told = set[str]()
    for source in (*sources, process):
        for family in source():
            if family.metric.name not in told:
                told.add(family.metric.name)
                yield _family(family, is_open)
    if is_open:
        yield END


def process() -> Iterator[Family]:
    """CPU, memory and descriptors of this process, as every Prometheus client tells them."""
    of_this = psutil.Process()
    cpu, memory = of_this.cpu_times(), of_this.memory_info()
    yield Family(_CPU, [((), cpu.user + cpu.system)])
    yield Family(_VIRTUAL, [((), memory.vms)])
    yield Family(_RESIDENT, [((), memory.rss)])
    yield Family(_STARTED, [((), of_this.create_time())])
    if sys.platform == "linux":
        yield Family(_DESCRIPTORS, [((), of_this.num_fds())])
        yield Family(_MOST_DESCRIPTORS, [((), of_this.rlimit(psutil.RLIMIT_NOFILE)[0])])


def _family(family: Family, is_open: bool) -> str:
    metric, samples = family
    name = metric.name
    title = name.removesuffix("_total") if is_open and metric.kind == "counter" else name
    lines = [f"# HELP {title} {_help(metric.help, is_open)}\n# TYPE {title} {metric.kind}\n"]
    for values, value in samples:
        if len(values) == 1:
            labels = f'{metric.labels[0]}="{_escape(values[0])}"'
        else:
            labels = ",".join([f'{label}="{_escape(text)}"' for label, text in zip(metric.labels, values, strict=True)])
        if isinstance(value, Histogram):
            lines.append(_histogram(name, labels, value))
        else:
            lines.append(f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n")
    return "".join(lines)


def _histogram(name: str, labels: str, histogram: Histogram) -> str:
    counts = list(accumulate(histogram.counts))
    before = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
    after = f"{{{labels}}}" if labels else ""
    rows = [f'{before}le="{bound}"}} {count}\n' for bound, count in zip(_bounds(histogram), counts, strict=True)]
    rows.append(f"{name}_count{after} {counts[-1]}\n{name}_sum{after} {_number(histogram.sum)}\n")
    return "".join(rows)


def _bounds(histogram: Histogram) -> tuple[str, ...]:
    return _bound_texts(tuple(histogram.bounds))


@lru_cache
def _bound_texts(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(str(float(bound)) for bound in bounds), "+Inf")


def _number(value: float) -> str:
    """Infinite and undefined ones as Prometheus writes them."""
    text = repr(value)
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


@lru_cache(10_000)
def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _help(text: str, is_open: bool) -> str:
    return _escape(text) if is_open else text.replace("\\", r"\\").replace("\n", r"\n")
