"""Make and serve a stand-in for GitLab, and act as the people who use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.mail import Mail, Postman
from headgate.testing.forges.gitlab import model
from headgate.testing.forges.gitlab.acts import FakeGitLabActs
from headgate.testing.forges.gitlab.server import FakeGitLabFault, FakeGitLabLimits, FakeGitLabServer
from headgate.testing.forges.gitlab.views import FakeGitLabPost, FakeGitLabShows
from headgate.testing.servers.program import free_ports


@dataclass(frozen=True, slots=True)
class FakeGitLabPerson:
    """Act as a person who uses the forge in a browser and with git."""

    acts: FakeGitLabActs
    user: model.FakeGitLabUser

    def push(
        self,
        project: model.FakeGitLabProject,
        branch: str,
        files: Mapping[str, str | None],
        message: str = "Change",
        *,
        base: str = "",
        merges: str = "",
    ) -> str:
        """Put a commit on a branch, which begins at `base` when it is new; return it.  `merges`: another parent."""
        before = hosts.heads(project)
        parent = before.get(branch) or before.get(base or project.default_branch)
        signature = model.signature(self.user, self.acts.world.clock.now_s())
        parents = [one for one in (parent, merges) if one]
        commit = hosts.commit(project, parents, files, message, signature)
        hosts.point(project, f"refs/heads/{branch}", commit)
        self.acts.pushed(project, self.user, before)
        return commit

    def remove(self, project: model.FakeGitLabProject, branch: str) -> None:
        """Remove a branch."""
        before = hosts.heads(project)
        hosts.point(project, f"refs/heads/{branch}", None)
        self.acts.pushed(project, self.user, before)

    def propose(
        self,
        project: model.FakeGitLabProject,
        branch: str,
        files: Mapping[str, str | None],
        title: str = "A change",
        text: str = "",
        *,
        target: str = "",
        fork: model.FakeGitLabProject | None = None,
    ) -> model.FakeGitLabMergeRequest:
        """Push a branch with one commit and open a merge request from it."""
        target, home = target or project.default_branch, fork or project
        self.push(home, branch, files, title, base=target)
        return self.acts.open(project, home, branch, target, self.user, title, text)

    def fork(self, project: model.FakeGitLabProject) -> model.FakeGitLabProject:
        """Make a fork of the repository, and return it."""
        name = f"{self.user.username}/{project.path.rpartition('/')[2]}"
        made = make_project(self.acts.world, name, {}, project.default_branch)
        made.fork_of, made.members[self.user.username] = project, model.OWNER
        for branch, tip in hosts.heads(project).items():
            hosts.bring(project, made, tip, f"refs/heads/{branch}")
        return made

    def comment(self, one: model.FakeGitLabMergeRequest, body: str, *, resolvable: bool = False) -> model.Note | None:
        """Comment on it."""
        return self.acts.note(one, self.user, body, resolvable=resolvable)

    def approve(self, one: model.FakeGitLabMergeRequest) -> None:
        """Approve it."""
        self.acts.approve(one, self.user)

    def unapprove(self, one: model.FakeGitLabMergeRequest) -> None:
        """Withdraw the approval."""
        self.acts.unapprove(one, self.user)

    def label(self, one: model.FakeGitLabMergeRequest, *names: str, off: bool = False) -> None:
        """Add labels, or remove them."""
        self.acts.label(one, self.user, () if off else names, names if off else ())

    def edit(self, one: model.FakeGitLabMergeRequest, **what: str) -> None:
        """Change title, description or target_branch."""
        self.acts.edit(one, self.user, **what)

    def close(self, one: model.FakeGitLabMergeRequest) -> None:
        """Close it without merging."""
        self.acts.close(one, self.user)

    def reopen(self, one: model.FakeGitLabMergeRequest) -> None:
        """Open it again."""
        self.acts.reopen(one, self.user)

    def status(self, one: model.FakeGitLabMergeRequest, name: str, state: str = "success") -> None:
        """Set a status of its head, as another program does."""
        assert one.source is not None, "the fork is there"
        self.acts.status(one.source, self.user, one.sha, one.source_branch, name, state, None, None)


def make_project(
    world: model.FakeGitLabWorld, path: str, files: Mapping[str, str], branch: str = "main"
) -> model.FakeGitLabProject:
    """Make a project with one commit; without files it has none."""
    id = next(world.ids)
    git_dir = world.root / f"{id}.git"
    hosts.make(git_dir, branch)
    now_s = world.clock.now_s()
    made = model.FakeGitLabProject(id, path, git_dir, branch, now_s)
    world.projects[path] = made
    if files:
        first = hosts.commit(made, [], files, "Begin", model.signature(world.user("root"), now_s))
        hosts.point(made, f"refs/heads/{branch}", first)
        made.protected[branch] = model.Protected(branch)
    return made


@dataclass(slots=True)
class GitLab:
    """Imitate GitLab. Actions take effect immediately; webhooks follow, and `mail.delivered` waits for them."""

    url: str
    world: model.FakeGitLabWorld
    mail: Mail
    server: FakeGitLabServer
    limits: FakeGitLabLimits
    acts: FakeGitLabActs

    def person(self, username: str, levels: Mapping[str, int] | None = None) -> FakeGitLabPerson:
        """Return a new person; `levels` maps paths of projects to access levels."""
        for path, level in (levels or {}).items():
            self.world.projects[path].members[username] = level
        return FakeGitLabPerson(self.acts, self.world.user(username))

    def project(self, path: str, files: Mapping[str, str], branch: str = "main") -> model.FakeGitLabProject:
        """Make a project; its default branch is protected, as GitLab does."""
        return make_project(self.world, path, files, branch)

    def bot(self, username: str, *paths: str, level: int = model.MAINTAINER) -> str:
        """Return a token of an account that is a member of projects."""
        for path in paths:
            self.world.projects[path].members[username] = level
        text = f"glpat-{next(self.world.ids):020d}"
        self.world.tokens[text] = model.FakeGitLabToken(text, self.world.user(username))
        return text

    def hook(
        self, project: model.FakeGitLabProject, url: str, token: str = "", signing: str = ""
    ) -> model.FakeGitLabHook:
        """Add a webhook."""
        one = model.FakeGitLabHook(next(self.world.ids), url, token, signing)
        project.hooks.append(one)
        return one

    def rename(self, project: model.FakeGitLabProject, path: str) -> None:
        """Change the path of a project; reads of the old path are redirected."""
        old, project.path = project.path, path
        del self.world.projects[old]
        self.world.projects[path] = project
        self.world.moved.pop(path, None)
        self.world.moved[old] = path

    def transfer(self, project: model.FakeGitLabProject, path: str) -> dict[str, int]:
        """Move a project to another group, which hides it from its former members; return those."""
        self.rename(project, path)
        before, project.members, project.private = project.members, {}, True
        return before

    def remove_fork(self, fork: model.FakeGitLabProject) -> None:
        """Delete a fork that merge requests come from; they stay."""
        del self.world.projects[fork.path]
        for one in (one for project in self.world.projects.values() for one in project.requests.values()):
            if one.source is fork:
                one.source = None

    def fail(self, method: str = "", template: str = "", times: int = 1, **how: Any) -> FakeGitLabFault:
        """Make the next calls of a kind fail; see `FakeGitLabFault`."""
        one = FakeGitLabFault(method, template, times, **how)
        self.server.faults.append(one)
        return one


@asynccontextmanager
async def gitlab(root: Path) -> AsyncIterator[GitLab]:
    """Provide a GitLab on a free port of 127.0.0.1 that keeps its repositories below `root`."""
    port = free_ports(1)[0]
    url, world = f"http://127.0.0.1:{port}", model.FakeGitLabWorld(root)
    mail, shows, limits = Mail(world.clock), FakeGitLabShows(url), FakeGitLabLimits(world)
    acts = FakeGitLabActs(world, FakeGitLabPost(world, shows, mail))
    server = FakeGitLabServer(world, acts, shows, limits)
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with Postman(mail):
            yield GitLab(url, world, mail, server, limits, acts)
    finally:
        await runner.cleanup()
