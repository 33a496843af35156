"""Make and serve a stand-in for Pagure, and act as the people who use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.mail import Mail, Postman
from headgate.testing.forges.github.model import FakeGitHubAccount
from headgate.testing.forges.github.server import FakeGitHubFault, on_a_port, put
from headgate.testing.forges.pagure import model
from headgate.testing.forges.pagure.acts import FakePagureActs
from headgate.testing.forges.pagure.server import FakePagureServer

PATH = "/code"
"""Path below which the stand-in is served, as some instances are."""


@dataclass(frozen=True, slots=True)
class FakePagurePerson:
    """Act as a person who uses the forge in a browser and with git."""

    acts: FakePagureActs
    account: FakeGitHubAccount

    def push(
        self,
        project: model.FakePagureProject,
        branch: str,
        files: Mapping[str, str | None],
        message: str = "Change",
        *,
        base: str = "",
        merges: str | None = None,
    ) -> str:
        """Put a commit on a branch, which begins at `base` when it is new; return it.  `merges`: another parent."""
        before, now_s = hosts.heads(project), self.acts.world.clock.now_s()
        base = base or project.default_branch
        commit = put(project, branch, base, files, message, self.account, now_s, merges)
        self.acts.pushed(project, self.account, before)
        return commit

    def propose(
        self,
        project: model.FakePagureProject,
        branch: str,
        files: Mapping[str, str | None],
        title: str = "A change",
        text: str = "",
        *,
        base: str = "",
        home: model.FakePagureProject | None = None,
        message: str = "",
    ) -> model.FakePagureRequest:
        """Push a branch with one commit and open a pull request from it."""
        base, home = base or project.default_branch, home or project
        if home is not project:
            hosts.bring(project, home, hosts.heads(project)[base], f"refs/heads/{base}")
        self.push(home, branch, files, message or title, base=base)
        return self.acts.open(project, home, branch, base, self.account, title, text)

    def fork(self, project: model.FakePagureProject) -> model.FakePagureProject:
        """Make a fork of the repository, and return it."""
        made = make_project(self.acts.world, f"forks/{self.account.login}/{project.fullname}", {}, self.account)
        for branch, tip in hosts.heads(project).items():
            hosts.bring(project, made, tip, f"refs/heads/{branch}")
        return made

    def comment(
        self, request: model.FakePagureRequest, text: str, commit: str | None = None
    ) -> model.FakePagureComment:
        """Comment on it; with `commit`, on a line of that commit."""
        return self.acts.comment(request, self.account, text, commit)

    def thumb(self, request: model.FakePagureRequest, way: str = "up") -> model.FakePagureComment:
        """Vote."""
        return self.comment(request, f":thumbs{way}:")

    def tag(self, request: model.FakePagureRequest, *names: str, off: bool = False) -> None:
        """Add tags, or remove them."""
        for name in names:
            self.acts.tag(request, self.account, name, off=off)

    def close(self, request: model.FakePagureRequest) -> None:
        """Close it without merging."""
        self.acts.close(request, self.account)

    def reopen(self, request: model.FakePagureRequest) -> None:
        """Open it again."""
        self.acts.reopen(request, self.account)

    def edit(self, request: model.FakePagureRequest, **what: str) -> None:
        """Change its title, initial comment or branch."""
        self.acts.edit(request, self.account, **what)

    def assign(self, request: model.FakePagureRequest, to: FakePagurePerson | None) -> None:
        """Assign it to somebody."""
        self.acts.assign(request, self.account, to.account if to is not None else None)

    def flag(self, request: model.FakePagureRequest, name: str, status: str = "success") -> model.FakePagureFlag:
        """Flag it, as another program does."""
        form = {"username": name, "status": status, "comment": "Said", "url": "https://ci.example.com"}
        return self.acts.flag_request(request, self.account, {**form, "uid": f"{name}-{self.account.login}"})[0]


def make_project(
    world: model.FakePagureWorld, fullname: str, files: Mapping[str, str], owner: FakeGitHubAccount
) -> model.FakePagureProject:
    """Make a project with one commit; without files it has none."""
    git_dir = world.root / f"{next(world.ids)}.git"
    hosts.make(git_dir, "main")
    made = model.FakePagureProject(next(world.ids), fullname, owner, git_dir, f"{next(world.ids):040d}")
    world.projects[fullname] = made
    if files:
        put(made, "main", "main", files, "Begin", owner, world.clock.now_s())
    return made


@dataclass(slots=True)
class Pagure:
    """Imitate Pagure. Actions take effect immediately; webhooks follow, and `mail.delivered` waits for them."""

    url: str
    """Address with its path."""
    world: model.FakePagureWorld
    mail: Mail
    server: FakePagureServer
    acts: FakePagureActs

    def person(self, login: str, **levels: str) -> FakePagurePerson:
        """Return a new person; `levels` maps projects (with __ for /) to access levels."""
        account = self.world.account(login)
        for project, level in levels.items():
            self.world.projects[project.replace("__", "/")].access[login] = level
        return FakePagurePerson(self.acts, account)

    def project(
        self, fullname: str, files: Mapping[str, str], owner: str = "root", hook: str = ""
    ) -> model.FakePagureProject:
        """Make a project; `hook`: where it delivers."""
        made = make_project(self.world, fullname, files, self.world.account(owner))
        made.options["Web-hooks"] = hook or None
        return made

    def token(self, login: str, acls: frozenset[str] = model.ACLS) -> str:
        """Return a new token of a person."""
        text = f"{next(self.world.ids):064X}"
        self.world.tokens[text] = model.FakePagureToken(self.world.account(login), acls)
        return text

    def options(self, project: model.FakePagureProject, **what: Any) -> None:
        """Change options of a project, with __ for - in their names."""
        self.acts.set_options(project, project.owner, **what)

    def remove_fork(self, project: model.FakePagureProject) -> None:
        """Delete a fork that pull requests come from; they stay."""
        del self.world.projects[project.fullname]
        for one in self.world.projects.values():
            for request in one.requests.values():
                if request.project_from is project:
                    request.project_from = None

    def rename(self, project: model.FakePagureProject, fullname: str) -> None:
        """Rename a project, or move it to another owner, as an administrator does: the old name does not redirect."""
        del self.world.projects[project.fullname]
        project.fullname = fullname
        self.world.projects[fullname] = project

    def fail(self, method: str = "", template: str = "", times: int = 1, **how: Any) -> FakeGitHubFault:
        """Make the next calls of a kind fail; see `FakeGitHubFault`."""
        one = FakeGitHubFault(method, template, times, **how)
        self.server.faults.append(one)
        return one


@asynccontextmanager
async def pagure(root: Path, path: str = PATH) -> AsyncIterator[Pagure]:
    """Provide a Pagure on a free port of 127.0.0.1, below `path`, that keeps its repositories below `root`."""
    world = model.FakePagureWorld(root)
    mail = Mail(world.clock)
    servers: list[FakePagureServer] = []

    def application(url: str) -> Any:
        shows = model.FakePagureShows(world, url)
        servers.append(
            FakePagureServer(world, shows, FakePagureActs(world, model.FakePagurePost(world, shows, mail)), path)
        )
        return servers[0].application()

    async with on_a_port(path, application) as url, Postman(mail):
        try:
            yield Pagure(url, world, mail, servers[0], servers[0].acts)
        finally:
            for fault in servers[0].faults:
                fault.until.set()
