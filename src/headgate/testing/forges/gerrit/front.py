"""A server before a real Gerrit: its pages of changes are those of the stand-ins; everything else is Gerrit's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from yarl import URL

from headgate.testing.forges.pages import FakePages, PageActions

_BODY_MAX = 64 << 20
_HOPS = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
"""Headers that are not passed on, since each server sets its own."""


@asynccontextmanager
async def front(actions: PageActions, gerrit: str, port: int) -> AsyncIterator[str]:
    """Provide its address."""
    # Bodies are passed on as they are, still compressed, since their headers are passed on too.
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def passed_on(request: web.Request) -> web.Response:
            headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOPS]
            # Names of projects contain %2F, which decoding and encoding again would turn into a slash.
            to = URL(gerrit + request.raw_path, encoded=True)
            body = await request.read()
            async with session.request(request.method, to, headers=headers, data=body, allow_redirects=False) as answer:
                answer_headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOPS]
                made = web.Response(status=answer.status, body=await answer.read())
                for name, value in answer_headers:
                    made.headers[name] = value
                return made

        app = web.Application(client_max_size=_BODY_MAX)
        FakePages(actions).add(app, "/c/{project:.+}/+/{number}")
        app.router.add_route("*", "/{rest:.*}", passed_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()
