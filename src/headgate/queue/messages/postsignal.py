"""Wake callers that wait for messages when some are posted; they then read the messages from the database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.queueing.lanes import Lane


class Listener:
    """Remember which lanes of one application (or one of its queues) were rung, each once."""

    def __init__(self, app: str, queue: str | None) -> None:
        self.app, self.queue = app, queue
        self._lanes: set[Lane] = set()
        self._queues_changed = False
        self._some = asyncio.Event()

    def tell(self, lane: Lane | None) -> None:
        if lane is None:
            self._queues_changed = True
        elif self.queue in (None, lane.queue):
            self._lanes.add(lane)
        else:
            return
        self._some.set()

    async def wait(self) -> tuple[set[Lane], bool]:
        """Wait, and return the lanes rung since the last call, and whether queues were added, removed or enlarged."""
        await self._some.wait()
        self._some.clear()
        lanes, changed, self._lanes, self._queues_changed = self._lanes, self._queues_changed, set(), False
        return lanes, changed


class PostSignal:
    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    @contextmanager
    def listen(self, app: str, queue: str | None = None) -> Iterator[Listener]:
        """Listen inside the block, where no ring is missed; read the database after entering it."""
        listener = Listener(app, queue)
        self._listeners.setdefault(app, set()).add(listener)
        try:
            yield listener
        finally:
            self._listeners[app].discard(listener)
            if not self._listeners[app]:
                del self._listeners[app]

    def ring(self, app: str, lane: Lane | None) -> None:
        """Wake callers that wait for a lane; None means that the queues themselves have changed."""
        for listener in self._listeners.get(app, ()):
            listener.tell(lane)

    def ring_all(self) -> None:
        """Wake everybody, because something may have been missed."""
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.tell(None)
                if listener.queue is not None:
                    listener.tell(Lane(listener.queue))
