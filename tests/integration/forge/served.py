"""Serve the web of a gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from headgate.web.access import Access
from tests.site import client_of, site_beside

from .test_board import Town


@asynccontextmanager
async def web(here: Town, root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with site_beside(here.gate, root, Access("secret")) as site, client_of(site, "http://127.0.0.1") as client:
        yield client
