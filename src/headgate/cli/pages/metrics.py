"""Generate the reference page about metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from headgate.adapters.metrics.figures import GAUGES, ProcessMetrics
from headgate.queue.workers.figures import WorkerMetrics

_TOP = """# Metrics

Every server answers `/metrics` in the format of Prometheus; see [operations](../operations.md#is-it-well) for who
may read it. A counter ends in `_total` there; a histogram has `_bucket`, `_sum` and `_count`.
"""


def page() -> str:
    """Return the text of the page."""
    system = ((one.name, "gauge", one.labels, one.doc) for one in GAUGES)
    return "\n".join(
        [
            _TOP,
            *_table("The whole system", "One process of all tells these.", system),
            *_table("Each process", "", _own(ProcessMetrics().registry)),
            *_table("Workers of message queues", "", _own(WorkerMetrics().registry)),
        ]
    )


def _own(registry: CollectorRegistry) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield the metrics registered there, without those that the library measures of any process."""
    for one in dict.fromkeys(registry._names_to_collectors.values()):  # the library has no public way to list them
        if isinstance(one, MetricWrapperBase) and one._type != "info":
            yield one._name, str(one._type), tuple(one._labelnames), one._documentation


def _table(title: str, text: str, rows: Iterator[tuple[str, str, tuple[str, ...], str]]) -> Iterator[str]:
    yield from (f"## {title}", "", *([text, ""] if text else []))
    yield from ("| metric | kind | labels | meaning |", "|---|---|---|---|")
    for name, kind, labels, doc in rows:
        yield f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {doc} |"
    yield ""
