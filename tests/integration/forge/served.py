"""The web of a town."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from headgate.adapters.process.tail import follow
from headgate.adapters.sql.history import SqlHistory
from headgate.web.access import Access
from headgate.web.app import create_app
from headgate.web.site import Site

from .test_board import Town


@asynccontextmanager
async def web(here: Town, root: Path) -> AsyncIterator[httpx.AsyncClient]:
    context, history = here.gate.context, SqlHistory(f"sqlite:///{root}/history.sqlite")
    site = Site(context, here.gate.scheduler.tenants, history, root, follow, Access("secret"))
    transport = httpx.ASGITransport(create_app(site))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client
    finally:
        history.close()
