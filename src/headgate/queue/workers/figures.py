"""Measure what a worker does, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class WorkerMetrics:
    """Keep the metrics of one worker in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = self.registry
        self.done = Counter("headgate_queue_done", "Messages processed.", ["queue"], registry=of)
        self.retries = Counter("headgate_queue_retries", "Tries after the first.", ["queue"], registry=of)
        self.failures = Counter("headgate_queue_failures", "Tries that failed.", ["queue"], registry=of)
        self.dead = Counter("headgate_queue_dead", "Messages given up.", ["queue"], registry=of)
        self.commits = Counter("headgate_queue_commits", "Records of progress written.", registry=of)
        self.hook_errors = Counter("headgate_queue_hook_errors", "Failures of job_failure.", registry=of)
        self.source_errors = Counter("headgate_queue_source_errors", "Requests the server did not answer.", registry=of)
        self.lost = Counter("headgate_queue_partitions_lost", "Partitions another worker took.", registry=of)
        self.moved = Counter("headgate_queue_partitions_moved", "Partitions handed over to other workers.", registry=of)
        self.running = Gauge("headgate_queue_in_flight", "Jobs running now.", registry=of)
        self.owned = Gauge("headgate_queue_partitions", "Partitions owned now.", registry=of)
        self.parked = Gauge(
            "headgate_queue_parked", "Messages waiting for another try.", ["queue", "partition"], registry=of
        )
        self.lag = Gauge("headgate_queue_lag", "Messages behind the progress.", ["queue", "partition"], registry=of)
        self.job_s = Histogram("headgate_queue_job_seconds", "Time a job takes.", ["queue"], registry=of)

    def forget(self, queue: str, partition: int) -> None:
        """Forget a partition that another worker has taken over."""
        for gauge in (self.parked, self.lag):
            gauge.remove(queue, str(partition))
