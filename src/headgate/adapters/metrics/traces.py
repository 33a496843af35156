"""Trace the way of an item through a pipeline.

Every process adds the spans of its own work. The ids of the trace and its root derive from the item, so neither the
store nor any request has to carry them.
"""

from __future__ import annotations

import hashlib

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from headgate import __version__
from headgate.map.records import Finished
from headgate.ports.observer import WorkDone


class _FixedIdGenerator(IdGenerator):
    """Generate the ids that were set before; this works because spans are started one at a time."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class Traces:
    """Send spans to a collector; see `ports.observer.Observer`.  They are sent in the background; `close` sends the
    rest."""

    def __init__(self, exporter: SpanExporter, hostname: str) -> None:
        self._ids = _FixedIdGenerator()
        about = {"service.name": "headgate", "service.version": __version__, "host.name": hostname}
        self._provider = TracerProvider(id_generator=self._ids, resource=Resource.create(about))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headgate", __version__)

    @classmethod
    def to(cls, endpoint: str, hostname: str) -> Traces:
        """Send traces to the OpenTelemetry collector that accepts OTLP over HTTP at `endpoint`."""
        return cls(OTLPSpanExporter(endpoint=endpoint), hostname)

    def turn(self, tenant: str, pipeline: str, events: int, took_s: float) -> None:
        """Ignore turns, because they belong to no single item."""

    def done(self, work: WorkDone) -> None:
        if not work.item:
            return
        names = ("tenant", "pipeline", "item", "buildset", "change", "job", "id", "result")
        about = {f"headgate.{name}": value for name in names if (value := getattr(work, name))}
        name = f"build {work.job}" if work.kind == "build" else work.kind
        self._span(name, work.item, work.id, work.start_ms, work.end_ms, about, failed=work.result != "SUCCESS")

    def finished(self, finished: Finished) -> None:
        if not finished.item:
            return
        about = {
            "headgate.tenant": finished.tenant,
            "headgate.pipeline": finished.pipeline,
            "headgate.item": finished.item,
            "headgate.buildset": finished.buildset,
            "headgate.change": finished.change.id,
            "headgate.result": finished.result,
        }
        name, failed = f"{finished.pipeline} {finished.change.id}", finished.result != "SUCCESS"
        self._span(name, finished.item, "", finished.enqueued_ms, finished.ended_ms, about, failed=failed)

    def dropped(self, to: str, messages: int) -> None:
        """Ignore dropped messages, because they are no part of a trace."""

    def shown(self, kind: str, cpu_s: float) -> None:
        """Ignore the CPU time of pages, because it is no part of a trace."""

    def _span(
        self, name: str, item: str, id: str, start_ms: int, end_ms: int, about: dict[str, str], *, failed: bool
    ) -> None:
        """Add a span to the trace of an item; the root has an empty `id`."""
        # There is no await between here and `start_span`, so no other span can use these ids.
        trace_id, root_id = _number(item, 16), _number(item, 8)
        self._ids.trace_id, self._ids.span_id = trace_id, _number(id, 8) if id else root_id
        # The flag marks the parent as sampled, because the default sampler drops children of an unsampled parent.
        parent = trace.SpanContext(trace_id, root_id, is_remote=True, trace_flags=trace.TraceFlags(1))
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent)) if id else Context()
        span = self._tracer.start_span(name, context, attributes=about, start_time=start_ms * 1_000_000)
        if failed:
            span.set_status(trace.StatusCode.ERROR)
        # Start and end may come from the clocks of two machines, but a span must not end before it starts.
        span.end(max(start_ms, end_ms) * 1_000_000)

    def close(self) -> None:
        self._provider.shutdown()


def _number(name: str, size_bytes: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:size_bytes], "big")
