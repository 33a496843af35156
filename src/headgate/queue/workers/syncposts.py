"""Give hooks a client with which to post, and define the hook that only logs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headgate.base.ids import fresh
from headgate.ports.messages import MessageSource, NewMessage
from headgate.queue.workers.calls import log
from headgate.queueing.message import Message

TIMEOUT_S = 60.0


class BlockingClient:
    """Post from plain hooks, which run in threads. Async hooks await the methods of `source`."""

    def __init__(self, source: MessageSource, loop: asyncio.AbstractEventLoop) -> None:
        self.source, self._loop = source, loop

    def post(self, queue: str, body: str, *, partition: int | None = None, ttl_s: int | None = None) -> None:
        """Post a message once, however often the network fails. Raise SourceDown, QueueGone or PostRefused."""
        # The fresh key lets the client repeat a request whose answer was lost.
        self._wait(self.source.post(NewMessage(queue, body, fresh(), partition, ttl_s)))

    def create_queue(self, queue: str, partitions: int = 1) -> None:
        """Create the queue if it does not exist."""
        self._wait(self.source.create(queue, partitions))

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)


def log_failure(message: Message, context: object, queue: str, error: BaseException, client: object) -> None:
    """Log a failure; this is a hook for `job_failure`."""
    log.error("%s: message %s: %r", queue, message.message_id, error, exc_info=error)
