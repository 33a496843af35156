"""Provide a message server for tests: real HTTP, on either database, with a clock that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp

from headgate.base.tasks import end
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.bounds import UNLIMITED, ApplicationLimits
from headgate.testing.queues.harness import APP, KEY, serving


class Site:
    """Represent the server as one application sees it; tests add common requests."""

    def __init__(self, board: MessageBoard, http: aiohttp.ClientSession, url: str) -> None:
        self.board, self.http, self.root, self.url = board, http, url, f"{url}/v1/{APP}"

    async def ask(self, method: str, path: str, status: int = 200, *, app: str = APP, **more: Any) -> Any:
        """Return the answer; for a refusal because of limits, with `again`."""
        async with self.http.request(method, f"{self.root}/v1/{app}{path}", **more) as answer:
            found = await answer.json()
            assert answer.status == status, (answer.status, found)
            return {**found, "again": answer.headers["Retry-After"]} if status == 429 else found


S = TypeVar("S", bound=Site)


@asynccontextmanager
async def site(
    kind: type[S], database_url: str, limits: ApplicationLimits = UNLIMITED, *, upkeep: bool = False
) -> AsyncIterator[S]:
    """Serve the messages in that database; without upkeep nothing is delivered unless the test requests it."""
    board = await MessageBoard.open(database_url, limits)
    upkeeping = [asyncio.ensure_future(board.upkeep())] if upkeep else []
    async with serving(board) as url, aiohttp.ClientSession(headers={"Authorization": f"Application {KEY}"}) as http:
        yield kind(board, http, url)
    await end(*upkeeping)
    await board.close()
