"""Post to queues, which are made if necessary, with everything of a project in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.ports.messages import PostedAlready, Poster, PostRefused, QueueGone
from headgate.services.publisher.names import partition_of

PARTITIONS = 8


@dataclass(slots=True)
class ServerPosts:
    """Post to the queues of one message server."""

    poster: Poster
    partitions: int = PARTITIONS
    """Number of partitions of new queues."""
    _known: dict[str, int] = field(default_factory=dict)
    """Queue -> number of its partitions."""

    async def post(self, queue: str, bodies: Sequence[tuple[str, str]], key: str, ttl_s: int | None = None) -> None:
        """Post `bodies`, pairs of project and text: all or none, and once under the same key. A queue that was
        recreated since the last look is looked at again. Raise SourceDown, QueueGone or PostRefused."""
        # The second round is for a queue that was deleted or recreated with other partitions since the last look.
        for known in (queue in self._known, False):
            partitions = await self._partitions(queue)
            messages = [(text, partition_of(project, partitions)) for project, text in bodies]
            try:
                await self.poster.post_many(queue, messages, key, ttl_s=ttl_s)
                return
            except PostedAlready:
                return
            except (QueueGone, PostRefused) as error:
                self._known.pop(queue, None)
                # A refusal may come from a partition that no longer exists; only one after a fresh look is final.
                if isinstance(error, PostRefused) and not known:
                    raise
        raise QueueGone(queue)

    async def _partitions(self, queue: str) -> int:
        """Return the number of partitions of the queue, after creating it if necessary."""
        if queue not in self._known:
            try:
                found = await self.poster.partition_count(queue)
            # Another process may create it at the same time, perhaps with another number of partitions; hence the
            # question after.
            except QueueGone:
                await self.poster.create(queue, self.partitions)
                found = await self.poster.partition_count(queue)
            self._known[queue] = found
        return self._known[queue]
