"""Provide a Pagure with one project, a driver that polls it, and the state that a gate would keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.adapters.forges.pagure.client import PagureAccount, PagureClient, account
from headgate.adapters.forges.pagure.forge import PagureForge
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.testing.forges.pagure.model import FakePagureProject, FakePagureRequest
from headgate.testing.forges.pagure.people import FakePagurePerson, Pagure
from tests.integration.forge.setups import ForgeSetup, a_port, hook_of
from tests.integration.github.ground import Gate

PROJECT = "127.0.0.1/acme/rocket"


class Ground(ForgeSetup):
    """Hold the stand-in, people, and one driver."""

    def __init__(self, hub: Pagure, root: Path, hook: str) -> None:
        self.hub, self.root, self.hook = hub, root, hook
        self.project: FakePagureProject = hub.project("acme/rocket", {"a.txt": "1\n"}, hook=hook)
        self.bot: FakePagurePerson = hub.person("headgate", acme__rocket="admin")
        self.ada: FakePagurePerson = hub.person("ada", acme__rocket="commit")
        self.bob: FakePagurePerson = hub.person("bob", acme__rocket="admin")
        self.eve: FakePagurePerson = hub.person("eve")
        section = {"baseurl": f"{hub.url}/", "api_token": hub.token("headgate")}
        self.account: PagureAccount = account("hub", section)
        self.client, forge = self.driver("git")
        self.begin(forge, hub.mail)

    def driver(self, name: str, every_s: float = 300.0, **changes: Any) -> tuple[PagureClient, PagureForge]:
        """Return a driver as another process would have it."""
        client = PagureClient(replace(self.account, **changes), forge_http, self.hub.world.clock.now_s)
        one = client.account
        connection = GitConnection("hub", one.clone, one.canonical_hostname, access=client.git, suffix=".git")
        engine = GitEngine(self.root / name, {"hub": connection})
        return client, PagureForge(client, lambda: engine, every_s)

    @property
    def calls(self) -> list[str]:
        """Return the requests, in order."""
        return [f"{one.method} {one.template}" for one in self.hub.server.log]


@asynccontextmanager
async def ground(hub: Pagure, root: Path) -> AsyncIterator[Ground]:
    """Provide it, with working webhooks."""
    port = a_port()
    found = Ground(hub, root, hook_of(port))
    async with found.served(port):
        yield found


def watched(found: Ground, *projects: str, **more: bool) -> AbstractAsyncContextManager[Gate]:
    """Run the driver inside the context; see `ForgeSetup`."""
    return found.watched(*projects, **more)


def opened(found: Ground, title: str = "A title", text: str = "A text", **more: Any) -> FakePagureRequest:
    """Propose a change."""
    return found.ada.propose(found.project, "topic", {"a.txt": "2\n"}, title, text, **more)
