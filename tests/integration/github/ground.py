"""Provide a GitHub with one project, a driver that polls it, and the state that a gate would keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiohttp import web

from headgate.adapters.forges.github.client import GitHubAccount, GitHubClient, Tokens, account
from headgate.adapters.forges.github.forge import GitHubForge
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.base.tasks import end
from headgate.config.operator.model import Protection, TenantProject
from headgate.gate.state.change import ChangeState, TriggerEvent, numbered
from headgate.ports.forge import Forge, Hint, Ignored, Misdelivered, Sighting
from headgate.testing.clock import DEADLINE_S
from headgate.testing.forges.github.model import App, FakeGitHubInstallation, FakeGitHubPull, FakeGitHubRepository
from headgate.testing.forges.github.people import FakeGitHubPerson, GitHub
from headgate.testing.servers.program import free_ports

SECRET = "open sesame"
PROJECT = "127.0.0.1/acme/rocket"


@dataclass
class Gate:
    """Hold the known state, like a connection."""

    forge: Forge
    known: dict[str, ChangeState] = field(default_factory=dict)
    heads: dict[str, dict[str, str]] = field(default_factory=dict)
    refs: dict[str, dict[str, str]] = field(default_factory=dict)
    events: list[TriggerEvent] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    protections: list[Protection] = field(default_factory=list)
    """Events of the one project, in the reported order."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, sighting: Sighting) -> None:
        self.known |= {change_state.change.key: change_state for change_state in sighting.change_states}
        self.heads |= sighting.heads
        self.refs |= sighting.refs
        seen = {event.id for event in self.events}
        assert seen.isdisjoint(event.id for event in sighting.events), "nothing is told twice"
        self.events += sighting.events
        self.answered += sighting.answered
        self.problems |= sighting.problems
        self.protections += sighting.protections.values()
        self.moved.set()

    async def run(self) -> None:
        async for sighting in self.forge.sightings(self.known, self.heads, self.refs):
            self.take(sighting)

    async def until(self, ready: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(deadline_s):
            while not ready():
                self.moved.clear()
                await self.moved.wait()

    @property
    def reported(self) -> list[str]:
        """Return the events under the names of triggers."""
        happenings = [event.happening for event in self.events if event.happening is not None]
        return [f"{one.event}.{one.action}" if one.action else one.event for one in happenings]

    def change_state(self, number: int) -> ChangeState:
        return self.known[numbered(PROJECT, str(number))]


class Ground:
    """Hold the stand-in, people, and one driver."""

    def __init__(self, hub: GitHub, root: Path) -> None:
        self.hub = hub
        self.repository: FakeGitHubRepository = hub.repository("acme/rocket", {"a.txt": "1\n"})
        self.app: App = hub.app(hook_secret=SECRET)
        self.installation: FakeGitHubInstallation = hub.install(self.app, "acme")
        self.ada: FakeGitHubPerson = hub.person("ada", acme__rocket="write")
        self.bob: FakeGitHubPerson = hub.person("bob", acme__rocket="admin")
        self.eve: FakeGitHubPerson = hub.person("eve")
        self.root = root
        section = {"server": hub.url, "app_id": str(self.app.id), "app_key": "/key", "webhook_token": SECRET}
        self.account: GitHubAccount = account("hub", section, hub.keys[self.app.id])
        self.client, self.forge = self.driver("git")
        self.gate = Gate(self.forge)
        self.refused: list[str] = []
        self.ignored: list[str] = []
        self.hinted: list[str] = []

    def driver(self, name: str, every_s: float = 300.0, **changes: str) -> tuple[GitHubClient, GitHubForge]:
        """Return a driver as another process would have it."""
        now_s = self.hub.world.clock.now_s
        client = GitHubClient(replace(self.account, **changes), forge_http, now_s)
        tokens = Tokens(client, now_s)

        async def access(project: str) -> dict[str, str]:
            return dict(await tokens.git(client.account.short(project)))

        connection = GitConnection("hub", client.account.git, client.account.canonical_hostname, access=access)
        engine = GitEngine(self.root / name, {"hub": connection})
        return client, GitHubForge(client, tokens, lambda: engine, every_s)

    async def take(self, request: web.Request) -> web.Response:
        """Receive a delivery as the web does."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            found = self.forge.webhook(headers, await request.read())
        except Misdelivered as error:
            self.refused.append(str(error))
            return web.Response(status=error.status, text=str(error))
        if isinstance(found, Hint):
            self.hinted.append(found.id)
            await self.keep(found)
        else:
            self.ignored.append(found.why)
        return web.json_response({"ignored": found.why if isinstance(found, Ignored) else ""})

    async def keep(self, hint: Hint) -> None:
        """Pass a hint to the driver."""
        self.forge.stir(hint)

    def watch(self, *projects: str, **more: bool) -> None:
        names = projects or ("acme/rocket",)
        self.forge.look_at({f"127.0.0.1/{n}": TenantProject(f"127.0.0.1/{n}", n, "hub", False, **more) for n in names})  # type: ignore[arg-type]

    async def settled(self) -> None:
        """Wait until all deliveries are answered."""
        await self.hub.mail.delivered()
        await self.gate.until(lambda: set(self.hinted) <= set(self.gate.answered))


@asynccontextmanager
async def ground(hub: GitHub, root: Path) -> AsyncIterator[Ground]:
    """Provide it, with working webhooks."""
    found, port = Ground(hub, root), free_ports(1)[0]
    application = web.Application(client_max_size=30 << 20)
    application.router.add_post("/api/connection/hub/payload", found.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    found.app.hook_url = f"http://127.0.0.1:{port}/api/connection/hub/payload"
    try:
        yield found
    finally:
        await runner.cleanup()
        await found.forge.close()


@asynccontextmanager
async def watched(found: Ground, *projects: str, **more: bool) -> AsyncIterator[Gate]:
    """Run the driver inside the context, after its first poll; `more`: further settings of the projects in the tenant
    file."""
    found.watch(*projects, **more)
    found.forge.stir(Hint("begin", PROJECT, ref="refs/heads/main"))
    task = asyncio.ensure_future(found.gate.run())
    try:
        await found.gate.until(lambda: "begin" in found.gate.answered)
        yield found.gate
    finally:
        await end(task)


def opened(found: Ground, **more: object) -> FakeGitHubPull:
    """Propose a change."""
    return found.ada.propose(found.repository, "topic", {"a.txt": "2\n"}, "A title", "A body", **more)  # type: ignore[arg-type]
