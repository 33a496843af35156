"""Hear what other processes post to the same PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import threading

from headgate.queue.messages.database import DatabaseDown
from headgate.queue.messages.postgres import listen
from headgate.queue.messages.postsignal import PostSignal
from headgate.queueing.partitions import QueuePartition

log = logging.getLogger("headgate.messages")

RETRY_S = 2.0


async def hear(url: str, signal: PostSignal) -> None:
    """Listen until cancelled. After a broken connection, wake everybody, because something may have been missed."""
    loop = asyncio.get_running_loop()
    stop = threading.Event()
    try:
        while True:
            try:
                # Cancelling this leaves the thread running; it sees `stop` within a second.
                await loop.run_in_executor(None, _listen, url, signal, loop, stop)
            except DatabaseDown as error:
                log.warning("the database does not tell what others post (%s); trying again in %s s", error, RETRY_S)
                await asyncio.sleep(RETRY_S)
    finally:
        stop.set()


def _listen(url: str, signal: PostSignal, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
    first = True
    for payload in listen(url):
        if stop.is_set():
            return
        if first:
            # Only now does the server listen: what others posted before was announced to nobody here.
            loop.call_soon_threadsafe(signal.notify_all)
            first = False
        if payload is not None:
            app, *partition = payload.split("\n")
            loop.call_soon_threadsafe(
                signal.notify, app, QueuePartition(partition[0], int(partition[1])) if partition else None
            )
