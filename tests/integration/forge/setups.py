"""Run a driver that receives deliveries as the web passes them on, and keep its sightings like a gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from aiohttp import web

from headgate.base.tasks import end
from headgate.config.operator.model import TenantProject
from headgate.ports.forge import Forge, Hint, Ignored, Misdelivered
from headgate.testing.forges.github.mail import Mail
from headgate.testing.servers.program import free_ports
from headgate.web.routes.hooks import verified
from tests.integration.github.ground import Gate

PAYLOAD = "/api/connection/hub/payload"


class ForgeSetup:
    """Hold what the test setups of all forges share."""

    usual: ClassVar[str] = "acme/rocket"
    """The default project."""
    mail: Mail
    forge: Forge

    def begin(self, forge: Forge, mail: Mail) -> None:
        """Use a driver whose forge delivers."""
        self.forge, self.mail, self.gate = forge, mail, Gate(forge)
        self.refused: list[str] = []
        self.ignored: list[str] = []
        self.hinted: list[str] = []

    async def take(self, request: web.Request) -> web.Response:
        """Receive a delivery as the web does."""
        try:
            found = await verified(self.forge, request.headers.items(), await request.read())
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
        names = projects or (self.usual,)
        self.forge.look_at({f"127.0.0.1/{n}": TenantProject(f"127.0.0.1/{n}", n, "hub", False, **more) for n in names})  # type: ignore[arg-type]

    async def settled(self) -> None:
        """Wait until all deliveries are answered."""
        await self.mail.delivered()
        await self.gate.until(lambda: set(self.hinted) <= set(self.gate.answered))

    @asynccontextmanager
    async def served(self, port: int) -> AsyncIterator[None]:
        """Receive deliveries inside the context."""
        application = web.Application(client_max_size=30 << 20)
        application.router.add_post(PAYLOAD, self.take)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield
        finally:
            await runner.cleanup()
            await self.forge.close()  # type: ignore[attr-defined]

    @asynccontextmanager
    async def watched(self, *projects: str, **more: bool) -> AsyncIterator[Gate]:
        """Run the driver inside the context, after its first poll; `more`: further settings of the projects in the
        tenant file."""
        self.watch(*projects, **more)
        self.forge.stir(Hint("begin", f"127.0.0.1/{self.usual}", ref="refs/heads/main"))
        task = asyncio.ensure_future(self.gate.run())
        try:
            await self.gate.until(lambda: "begin" in self.gate.answered)
            yield self.gate
        finally:
            await end(task)


def hook_of(port: int) -> str:
    """Return the address of deliveries."""
    return f"http://127.0.0.1:{port}{PAYLOAD}"


def a_port() -> int:
    """Return a free port."""
    return free_ports(1)[0]
