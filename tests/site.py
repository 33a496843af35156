"""Build the site of a gate under test, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from headgate.adapters.process.joblog import follow
from headgate.adapters.sql.history import SqlHistory
from headgate.ports.history import HistoryReader
from headgate.services.context import Context
from headgate.store.store import Session
from headgate.testing.gate import Gate
from headgate.web.access import Access
from headgate.web.app import create_app
from headgate.web.buildlogs import BuildLogs
from headgate.web.peers.requests import App
from headgate.web.problems import SystemProblems
from headgate.web.process import StoreAvailability
from headgate.web.site import Site
from headgate.web.status import Configured

HERE = "http://headgate.example"


def site_of(
    context: Context,
    tenants: Mapping[str, Configured],
    history: HistoryReader,
    logs: Path | BuildLogs,
    access: Access | None = None,
    session: Session | None = None,
    availability: StoreAvailability | None = None,
    **more: Any,
) -> Site:
    """Return a site; `more` are further fields of it."""
    found = logs if isinstance(logs, BuildLogs) else BuildLogs(logs, follow)
    problems = SystemProblems(context, availability=availability)
    return Site(context, tenants, history, found, problems, access or Access(), joined=lambda: session, **more)


@asynccontextmanager
async def site_beside(gate: Gate, root: Path, access: Access | None = None) -> AsyncIterator[Site]:
    """Provide the site of a running gate, with a history of its own and a session for requests."""
    history = SqlHistory(f"sqlite:///{root}/history.sqlite")
    async with gate.context.store.session("web") as session:
        yield site_of(gate.context, gate.scheduler.tenants, history, root / "logs", access, session)
    history.close()


def client_of(site: Site | App, address: str = HERE) -> httpx.AsyncClient:
    """Return a client of a site, or of the application of one."""
    app = create_app(site) if isinstance(site, Site) else site
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=address)  # type: ignore[arg-type]
