"""Serve the web of a gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from headgate.adapters.process.joblog import follow
from headgate.adapters.sql.history import SqlHistory
from headgate.web.access import Access
from headgate.web.app import create_app
from headgate.web.site import Site

from .test_board import Town


@asynccontextmanager
async def web(here: Town, root: Path) -> AsyncIterator[httpx.AsyncClient]:
    context, history = here.gate.context, SqlHistory(f"sqlite:///{root}/history.sqlite")
    try:
        async with context.store.session("web") as session:
            access, tenants = Access("secret"), here.gate.scheduler.tenants
            site = Site(context, tenants, history, root, follow, access, joined=lambda: session)
            transport = httpx.ASGITransport(create_app(site))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                yield client
    finally:
        history.close()
