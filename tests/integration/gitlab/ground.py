"""A GitLab with one project, a driver that looks at it, and what a gate would keep of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from headgate.adapters.forges.gitlab.account import GitLabAccount, account
from headgate.adapters.forges.gitlab.client import Client
from headgate.adapters.forges.gitlab.forge import GitLabForge
from headgate.adapters.forges.gitlab.people import People
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.base.tasks import end
from headgate.config.tenants import TenantProject
from headgate.gate.change import Change
from headgate.gate.work import Landing, LandRequest, MergeItem, RepoState
from headgate.ports.forge import Hint, Ignored, Misdelivered
from headgate.testing.forges.github import hosting
from headgate.testing.forges.gitlab.people import GitLab, Person
from headgate.testing.forges.gitlab.state import DEVELOPER, MAINTAINER, MergeRequest, Project
from headgate.testing.servers.program import free_ports
from tests.integration.github.ground import Gate

SECRET = "open sesame"
PATH = "acme/space/rocket"
PROJECT = f"127.0.0.1/{PATH}"
M = "/projects/{project}/merge_requests/{iid}"


class Ground:
    """The stand-in, people, and one driver."""

    def __init__(self, hub: GitLab, root: Path) -> None:
        self.hub, self.root = hub, root
        self.project: Project = hub.project(PATH, {"a.txt": "1\n"})
        self.ada: Person = hub.person("ada", {PATH: DEVELOPER})
        self.bob: Person = hub.person("bob", {PATH: MAINTAINER})
        self.eve: Person = hub.person("eve")
        self.token: str = hub.bot("gate", PATH)
        said = {"server": hub.url, "api_token": self.token, "webhook_token": SECRET}
        self.account: GitLabAccount = account("hub", said)
        self.client, self.forge = self.driver("git")
        self.gate = Gate(self.forge)
        self.refused: list[str] = []
        self.ignored: list[str] = []
        self.hinted: list[str] = []

    def driver(self, name: str, every_s: float = 300.0, **changes: Any) -> tuple[Client, GitLabForge]:
        """Return a driver as another process has it."""
        now_s = self.hub.world.clock.now_s
        client = Client(replace(self.account, **changes), forge_http, now_s)
        people = People(client, now_s)

        async def access(project: str) -> dict[str, str]:
            return dict(people.git())

        connection = GitConnection("hub", client.account.clone, client.account.canonical_hostname, access=access)
        engine = GitEngine(self.root / name, {"hub": connection})
        return client, GitLabForge(client, people, lambda: engine, every_s, now_s)

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

    def watch(self, *paths: str, **more: Any) -> None:
        names = paths or (PATH,)
        self.forge.look_at({f"127.0.0.1/{n}": TenantProject(f"127.0.0.1/{n}", n, "hub", False, **more) for n in names})

    async def settled(self) -> None:
        """Wait until what was delivered is answered."""
        await self.hub.mail.delivered()
        await self.gate.until(lambda: set(self.hinted) <= set(self.gate.answered))


@asynccontextmanager
async def ground(hub: GitLab, root: Path) -> AsyncIterator[Ground]:
    """Provide it, with webhooks that arrive."""
    found, port = Ground(hub, root), free_ports(1)[0]
    application = web.Application(client_max_size=30 << 20)
    application.router.add_post("/api/connection/hub/payload", found.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    hub.hook(found.project, f"http://127.0.0.1:{port}/api/connection/hub/payload", SECRET)
    try:
        yield found
    finally:
        await runner.cleanup()
        await found.forge.close()


@asynccontextmanager
async def watched(found: Ground, *paths: str, **more: Any) -> AsyncIterator[Gate]:
    """Provide the gate while the driver looks, after its first look; `more`: as the tenant file says of projects."""
    found.watch(*paths, **more)
    found.forge.stir(Hint("begin", PROJECT, ref="refs/heads/main"))
    task = asyncio.ensure_future(found.gate.run())
    try:
        await found.gate.until(lambda: "begin" in found.gate.answered)
        yield found.gate
    finally:
        await end(task)


def opened(found: Ground, **more: object) -> MergeRequest:
    """Propose something."""
    return found.ada.propose(found.project, "topic", {"a.txt": "2\n"}, "A title", "A text", **more)  # type: ignore[arg-type]


def change_of(one: MergeRequest) -> Change:
    """Return what the gate calls it."""
    return Change(
        "hub", PROJECT, one.target_branch, commit=one.sha, ref=f"refs/merge-requests/{one.iid}/head",
        number=str(one.iid), title=one.title, message=one.description,
    )  # fmt: skip


def as_tested(found: Ground, one: MergeRequest, mode: str = "merge") -> tuple[LandRequest, Landing]:
    """Return the request to land what was tested on the branch as it is now."""
    base = hosting.heads(found.project)[one.target_branch]
    tree = str(hosting.merged_tree(found.project, base, one.sha))
    change = change_of(one)
    item = MergeItem("item", PROJECT, "hub", change.branch, change.ref, change.commit, mode)
    heads, trees = {f"refs/heads/{change.branch}": base}, {change.branch: tree}
    state = RepoState((item,), {PROJECT: heads}, {}, {PROJECT: "hub"}, trees={PROJECT: trees})
    work = LandRequest("buildset", state, change, "speculative", "note")
    return work, Landing(change, "speculative", "note")
