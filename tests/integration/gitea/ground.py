"""A Gitea with one project, a driver that looks at it, and what a gate would keep of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from headgate.adapters.forges.gitea.account import GiteaAccount, account
from headgate.adapters.forges.gitea.client import Client
from headgate.adapters.forges.gitea.forge import GiteaForge
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.base.tasks import end
from headgate.config.tenants import TenantProject
from headgate.ports.forge import Hint, Ignored, Misdelivered
from headgate.testing.forges.gitea.people import Gitea, Person
from headgate.testing.forges.gitea.state import Hook, Pull, Repository
from headgate.testing.servers.program import free_ports
from tests.integration.github.ground import Gate

SECRET = "open sesame"
PROJECT = "127.0.0.1/acme/rocket"


class Ground:
    """The stand-in, people, and one driver."""

    def __init__(self, hub: Gitea, root: Path, url: str) -> None:
        self.hub, self.root = hub, root
        self.repository: Repository = hub.repository("acme/rocket", {"a.txt": "1\n"})
        self.hook: Hook = hub.hook(url, SECRET)
        self.bot: Person = hub.person("headgate", acme__rocket="admin")
        self.ada: Person = hub.person("ada", acme__rocket="write")
        self.bob: Person = hub.person("bob", acme__rocket="admin")
        self.eve: Person = hub.person("eve")
        token = hub.token("headgate")
        self.account: GiteaAccount = account(
            "hub", {"baseurl": f"{hub.url}/", "api_token": token, "webhook_token": SECRET}
        )
        self.client, self.forge = self.driver("git")
        self.gate = Gate(self.forge)
        self.refused: list[str] = []
        self.ignored: list[str] = []
        self.hinted: list[str] = []

    def driver(self, name: str, every_s: float = 300.0, **changes: str) -> tuple[Client, GiteaForge]:
        """Return a driver as another process has it."""
        client = Client(replace(self.account, **changes), forge_http, self.hub.world.clock.now_s)
        one = client.account
        connection = GitConnection("hub", one.clone, one.canonical_hostname, access=client.git)
        engine = GitEngine(self.root / name, {"hub": connection})
        return client, GiteaForge(client, lambda: engine, every_s)

    async def take(self, request: web.Request) -> web.Response:
        """Take a delivery as the web does."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            found = self.forge.webhook(headers, await request.read())
        except Misdelivered as error:
            self.refused.append(str(error))
            return web.Response(status=error.status, text=str(error))
        if isinstance(found, Hint):
            self.hinted.append(found.id)
            self.forge.stir(found)
        else:
            self.ignored.append(found.why)
        return web.json_response({"ignored": found.why if isinstance(found, Ignored) else ""})

    def watch(self, *projects: str, **more: bool) -> None:
        names = projects or ("acme/rocket",)
        self.forge.look_at({f"127.0.0.1/{n}": TenantProject(f"127.0.0.1/{n}", n, "hub", False, **more) for n in names})  # type: ignore[arg-type]

    async def settled(self) -> None:
        """Wait until what was delivered is answered."""
        await self.hub.mail.delivered()
        await self.gate.until(lambda: set(self.hinted) <= set(self.gate.answered))


@asynccontextmanager
async def ground(hub: Gitea, root: Path) -> AsyncIterator[Ground]:
    """Provide it, with webhooks that arrive."""
    port = free_ports(1)[0]
    found = Ground(hub, root, f"http://127.0.0.1:{port}/api/connection/hub/payload")
    application = web.Application(client_max_size=30 << 20)
    application.router.add_post("/api/connection/hub/payload", found.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield found
    finally:
        await runner.cleanup()
        await found.forge.close()


@asynccontextmanager
async def watched(found: Ground, *projects: str, **more: bool) -> AsyncIterator[Gate]:
    """Provide the gate while the driver looks, after its first look; `more`: as the tenant file says of projects."""
    found.watch(*projects, **more)
    found.forge.stir(Hint("begin", PROJECT, ref="refs/heads/main"))
    task = asyncio.ensure_future(found.gate.run())
    try:
        await found.gate.until(lambda: "begin" in found.gate.answered)
        yield found.gate
    finally:
        await end(task)


def opened(found: Ground, title: str = "A title", body: str = "A body") -> Pull:
    """Propose something."""
    return found.ada.propose(found.repository, "topic", {"a.txt": "2\n"}, title, body)
