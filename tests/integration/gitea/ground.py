"""Provide a Gitea with one project, a driver that polls it, and the state that a gate would keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from headgate.adapters.forges.gitea.client import GiteaAccount, GiteaClient, account
from headgate.adapters.forges.gitea.forge import GiteaForge
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.testing.forges.gitea.model import FakeGiteaHook, FakeGiteaPull, FakeGiteaRepository
from headgate.testing.forges.gitea.people import FakeGiteaPerson, Gitea
from tests.integration.forge.setups import ForgeSetup, a_port, hook_of
from tests.integration.github.ground import Gate

SECRET = "open sesame"
PROJECT = "127.0.0.1/acme/rocket"


class Ground(ForgeSetup):
    """Hold the stand-in, people, and one driver."""

    def __init__(self, hub: Gitea, root: Path, url: str) -> None:
        self.hub, self.root = hub, root
        self.repository: FakeGiteaRepository = hub.repository("acme/rocket", {"a.txt": "1\n"})
        self.hook: FakeGiteaHook = hub.hook(url, SECRET)
        self.bot: FakeGiteaPerson = hub.person("headgate", acme__rocket="admin")
        self.ada: FakeGiteaPerson = hub.person("ada", acme__rocket="write")
        self.bob: FakeGiteaPerson = hub.person("bob", acme__rocket="admin")
        self.eve: FakeGiteaPerson = hub.person("eve")
        token = hub.token("headgate")
        self.account: GiteaAccount = account(
            "hub", {"baseurl": f"{hub.url}/", "api_token": token, "webhook_token": SECRET}
        )
        self.client, forge = self.driver("git")
        self.begin(forge, hub.mail)

    def driver(self, name: str, every_s: float = 300.0, **changes: str) -> tuple[GiteaClient, GiteaForge]:
        """Return a driver as another process would have it."""
        client = GiteaClient(replace(self.account, **changes), forge_http, self.hub.world.clock.now_s)
        one = client.account
        connection = GitConnection("hub", one.clone, one.canonical_hostname, access=client.git)
        engine = GitEngine(self.root / name, {"hub": connection})
        return client, GiteaForge(client, lambda: engine, every_s)


@asynccontextmanager
async def ground(hub: Gitea, root: Path) -> AsyncIterator[Ground]:
    """Provide it, with working webhooks."""
    port = a_port()
    found = Ground(hub, root, hook_of(port))
    async with found.served(port):
        yield found


def watched(found: Ground, *projects: str, **more: bool) -> AbstractAsyncContextManager[Gate]:
    """Run the driver inside the context; see `ForgeSetup`."""
    return found.watched(*projects, **more)


def opened(found: Ground, title: str = "A title", body: str = "A body") -> FakeGiteaPull:
    """Propose a change."""
    return found.ada.propose(found.repository, "topic", {"a.txt": "2\n"}, title, body)
