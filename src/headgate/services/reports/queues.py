"""Reports as messages of queues."""

from __future__ import annotations

import msgspec

from headgate.map.outbox import OutboxMessage
from headgate.ports.messages import PostRefused, QueueGone, SourceDown
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.services.publisher.posts import ServerPosts


class QueueReporter:
    """Implement `ports.reporter.Reporter`. A message is posted once, even if its report is repeated."""

    def __init__(self, posts: ServerPosts) -> None:
        self._posts = posts

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Post the report. Raise ReporterAway or ReportRefused."""
        report, of = outgoing.report, outgoing.report.answers
        # What answers a message keeps the order of its source; everything else that of its project.
        whose = f"{of.source}/{of.ordering_key}" if of is not None else report.project
        body = (whose, msgspec.json.encode(report).decode())
        try:
            await self._posts.post(outgoing.queue, [body], f"report-{outgoing.key}", outgoing.ttl_s)
        except (SourceDown, QueueGone) as down:
            raise ReporterAway(f"the message server: {down}") from down
        except PostRefused as refused:
            raise ReportRefused(f"the queue {outgoing.queue} does not take it: {refused}") from refused
