"""Show what people see and do at the stand-in for Pagure, for its pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.forges.pages import BY_BRANCH, ChangeMark, PageChange, PageRemark
from headgate.testing.forges.pagure.acts import FakePagureActs, FakePagureRefused
from headgate.testing.forges.pagure.state import FakePagureProject, FakePagureRequest

_THUMBS = {":thumbsup:": "approved", ":thumbsdown:": "asked for changes"}


@dataclass(frozen=True, slots=True)
class PagurePageActions:
    """See `pages.PageActions`."""

    acts: FakePagureActs
    forge: str = "Pagure"
    kind: str = "stand-in for Pagure"
    hint: str = BY_BRANCH
    refused: type[Exception] = FakePagureRefused

    @property
    def root(self) -> str:
        return urlsplit(self.acts.post.shows.web).path

    async def seen(self) -> Sequence[PageChange]:
        return [self._seen(pull) for project in self._projects() for pull in project.requests.values()]

    def people(self) -> Sequence[str]:
        return sorted(self.acts.world.accounts)

    def branches(self) -> Sequence[str]:
        return [
            f"{one.fullname}:{branch}"
            for one in self._projects()
            for branch in hosts.heads(one)
            if branch != one.default_branch
            and not any(pull.branch_from == branch and pull.project_from is one for pull in one.requests.values())
        ]

    async def comment(self, path: str, who: str, text: str) -> None:
        self.acts.comment(self._pull(path), self._account(who), text)

    async def approve(self, path: str, who: str) -> None:
        self.acts.comment(self._pull(path), self._account(who), ":thumbsup:")

    async def propose(self, branch: str, who: str, title: str, text: str) -> str:
        name, _, branch = branch.partition(":")
        at = self.acts.world.projects[name]
        return self.path(self.acts.open(at, at, branch, at.default_branch, self._account(who), title, text))

    def _projects(self) -> list[FakePagureProject]:
        every = self.acts.world.projects.items()
        return [one for name, one in every if not one.private and not name.startswith("forks/")]

    def _account(self, login: str) -> FakeGitHubAccount:
        return self.acts.world.accounts[login]

    def path(self, pull: FakePagureRequest) -> str:
        """Return where the page of a pull request is."""
        return f"{self.root}/{pull.project.fullname}/pull-request/{pull.id}"

    def _pull(self, path: str) -> FakePagureRequest:
        every = (pull for one in self._projects() for pull in one.requests.values())
        return next(pull for pull in every if self.path(pull) == path)

    def _seen(self, pull: FakePagureRequest) -> PageChange:
        marks = (ChangeMark(_name(one.username), one.status, one.comment, one.url) for one in pull.flags)
        return PageChange(
            self.path(pull), f"{pull.project.fullname}#{pull.id}", pull.title, pull.user.login if pull.user else "",
            pull.status.lower(), pull.branch_from, pull.branch, pull.initial_comment or "", tuple(pull.tags),
            tuple(marks), tuple(_remarks(pull)),
        )  # fmt: skip


def _name(username: str) -> str:
    """Return what a flag is of, without the name of the program that stands before it."""
    return username.partition(": ")[2] or username


def _remarks(pull: FakePagureRequest) -> Iterator[PageRemark]:
    for one in pull.comments:
        verb = next((word for thumb, word in _THUMBS.items() if thumb in one.text), "commented")
        yield PageRemark(one.user.login, one.at_s, "noted" if one.notification else verb, one.text)
