"""Run a message server and a worker alongside the demo; the worker prints the events of the gate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from headgate.base.tasks import run_until
from headgate.map.outbox import PublishedEvent, QueueReport
from headgate.map.workers import QueueMap
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queue.server.access import ApplicationKeys
from headgate.queue.server.app import create_app
from headgate.queue.workers.calls import JobCaller
from headgate.queue.workers.processor import MessageProcessor
from headgate.queue.workers.worker import QueueWorker
from headgate.queueing import Message, Policy, Routing, RoutingRule
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.web.routes.pages import MESSAGE_PAGES
from headgate.web.server import serve

APP, KEY = "demo", "demo"


@asynccontextmanager
async def audience(directory: Path, say: Callable[[str], None]) -> AsyncIterator[str]:
    """Run a message server and a worker; yield the URL to which the gate posts its events."""
    board = await MessageBoard.open(f"sqlite:///{directory / 'messages.sqlite'}")
    heard, stop, bound = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop().create_future()
    app = create_app(board, ApplicationKeys({APP: [KEY]}), stop, MESSAGE_PAGES)
    works = asyncio.ensure_future(run_until(stop, serve(app, "127.0.0.1", 0, stop, bound.set_result)))
    url = f"http://127.0.0.1:{await bound}/v1/{APP}/"
    listening = asyncio.ensure_future(_listen(url, say, heard))
    try:
        yield url
    finally:
        heard.set()
        await listening  # the worker must end before its server
        stop.set()
        await works
        await board.close()


async def _listen(url: str, say: Callable[[str], None], stop: asyncio.Event) -> None:
    async def job(message: Message, context: None) -> None:
        event = msgspec.json.decode(message.body, type=PublishedEvent)
        if event.kind == "report":
            report = msgspec.json.decode(message.body, type=QueueReport)
            jobs = ", ".join(f"{build.job} {build.result}" for build in report.builds)
            say(f"report of {report.pipeline}, {report.report}: {report.change} ({jobs})")
        elif not event.kind.startswith("build-"):
            say(f"{event.kind}: {event.project} {event.change} in {event.pipeline}")

    async with MessageClient.open([url], KEY) as source:
        routes = Routing((RoutingRule("gate-*", job, Policy()),))
        actions = MessageProcessor(source, routes, JobCaller(10, 1), None, lambda: int(time.time() * 1000))
        await QueueWorker(actions, Store(MemoryBackend()), QueueMap().app(APP), "demo").run(stop)
