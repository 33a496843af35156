"""Wake callers that wait for messages when some are posted; they then read the messages from the database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.queueing.partitions import QueuePartition


class Listener:
    """Remember which partitions of one application (or one of its queues) got messages, each once."""

    def __init__(self, app: str, queue: str | None) -> None:
        self.app, self.queue = app, queue
        self._partitions: set[QueuePartition] = set()
        self._queues_changed = False
        self._some = asyncio.Event()

    def tell(self, partition: QueuePartition | None) -> None:
        if partition is None:
            self._queues_changed = True
        elif self.queue in (None, partition.queue):
            self._partitions.add(partition)
        else:
            return
        self._some.set()

    async def wait(self) -> tuple[set[QueuePartition], bool]:
        """Wait, and return the partitions with posts since the last call, and whether queues were added, removed or
        enlarged."""
        await self._some.wait()
        self._some.clear()
        partitions, self._partitions = self._partitions, set()
        changed, self._queues_changed = self._queues_changed, False
        return partitions, changed


class PostSignal:
    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    @contextmanager
    def listen(self, app: str, queue: str | None = None) -> Iterator[Listener]:
        """Listen inside the block, where no post is missed; read the database after entering it."""
        listener = Listener(app, queue)
        self._listeners.setdefault(app, set()).add(listener)
        try:
            yield listener
        finally:
            self._listeners[app].discard(listener)
            if not self._listeners[app]:
                del self._listeners[app]

    def notify(self, app: str, partition: QueuePartition | None) -> None:
        """Wake callers that wait for a partition; None means that the queues themselves have changed."""
        for listener in self._listeners.get(app, ()):
            listener.tell(partition)

    def notify_all(self) -> None:
        """Wake everybody, because something may have been missed."""
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.tell(None)
                if listener.queue is not None:
                    listener.tell(QueuePartition(listener.queue))
