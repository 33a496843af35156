"""Show a metric also under the name that it had in the release before."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class FormerMetric(Collector):
    """Collect the samples of another collector's only metric under its former name. A scrape then has each sample
    twice, but only one of them is counted."""

    def __init__(self, former: str, metric: Collector) -> None:
        self._former, self._metric = former, metric

    def collect(self) -> Iterator[Metric]:
        for family in self._metric.collect():
            renamed = Metric(self._former, f"Deprecated: use {family.name}.", family.type)
            renamed.samples = [
                # Samples add an end to the name of the metric, such as `_total`.
                sample._replace(name=self._former + sample.name.removeprefix(family.name))
                for sample in family.samples
            ]
            yield renamed
