"""Provide a GitLab with one project, a driver that polls it, and the state that a gate would keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.adapters.forges.gitlab.client import GitLabAccount, GitLabClient, People, account
from headgate.adapters.forges.gitlab.forge import GitLabForge
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import Landing, LandRequest, RepoState
from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab.model import DEVELOPER, MAINTAINER, FakeGitLabMergeRequest, FakeGitLabProject
from headgate.testing.forges.gitlab.people import FakeGitLabPerson, GitLab
from tests.integration.forge.setups import ForgeSetup, a_port, hook_of
from tests.integration.github.ground import Gate

SECRET = "open sesame"
PATH = "acme/space/rocket"
PROJECT = f"127.0.0.1/{PATH}"
M = "/projects/{project}/merge_requests/{iid}"


class Ground(ForgeSetup):
    """Hold the stand-in, people, and one driver."""

    usual = PATH

    def __init__(self, hub: GitLab, root: Path) -> None:
        self.hub, self.root = hub, root
        self.project: FakeGitLabProject = hub.project(PATH, {"a.txt": "1\n"})
        self.ada: FakeGitLabPerson = hub.person("ada", {PATH: DEVELOPER})
        self.bob: FakeGitLabPerson = hub.person("bob", {PATH: MAINTAINER})
        self.eve: FakeGitLabPerson = hub.person("eve")
        self.token: str = hub.bot("gate", PATH)
        section = {"server": hub.url, "api_token": self.token, "webhook_token": SECRET}
        self.account: GitLabAccount = account("hub", section)
        self.client, forge = self.driver("git")
        self.begin(forge, hub.mail)

    def driver(self, name: str, every_s: float = 300.0, **changes: Any) -> tuple[GitLabClient, GitLabForge]:
        """Return a driver as another process would have it."""
        now_s = self.hub.world.clock.now_s
        client = GitLabClient(replace(self.account, **changes), forge_http, now_s)
        people = People(client, now_s)

        async def access(project: str) -> dict[str, str]:
            return dict(people.git())

        connection = GitConnection("hub", client.account.clone, client.account.canonical_hostname, access=access)
        engine = GitEngine(self.root / name, {"hub": connection})
        return client, GitLabForge(client, people, lambda: engine, every_s, now_s)


@asynccontextmanager
async def ground(hub: GitLab, root: Path) -> AsyncIterator[Ground]:
    """Provide it, with working webhooks."""
    found, port = Ground(hub, root), a_port()
    async with found.served(port):
        hub.hook(found.project, hook_of(port), SECRET)
        yield found


def watched(found: Ground, *paths: str, **more: bool) -> AbstractAsyncContextManager[Gate]:
    """Run the driver inside the context; see `ForgeSetup`."""
    return found.watched(*paths, **more)


def opened(found: Ground, **more: object) -> FakeGitLabMergeRequest:
    """Propose a change."""
    return found.ada.propose(found.project, "topic", {"a.txt": "2\n"}, "A title", "A text", **more)  # type: ignore[arg-type]


def change_of(one: FakeGitLabMergeRequest) -> Change:
    """Return the gate's key of it."""
    return Change(
        "hub", PROJECT, one.target_branch, commit=one.sha, ref=f"refs/merge-requests/{one.iid}/head",
        number=str(one.iid), title=one.title, message=one.description,
    )  # fmt: skip


def as_tested(found: Ground, one: FakeGitLabMergeRequest, mode: str = "merge") -> tuple[LandRequest, Landing]:
    """Return the request to land the tested change on the current branch."""
    base = hosts.heads(found.project)[one.target_branch]
    tree = str(hosts.merged_tree(found.project, base, one.sha))
    change = change_of(one)
    item = MergeItem("item", PROJECT, "hub", change.branch, change.ref, change.commit, mode)
    heads, trees = {f"refs/heads/{change.branch}": base}, {change.branch: tree}
    state = RepoState((item,), {PROJECT: heads}, {}, {PROJECT: "hub"}, trees={PROJECT: trees})
    work = LandRequest("buildset", state, change, "speculative", "note")
    return work, Landing(change, "speculative", "note")
