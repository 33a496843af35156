"""Show what people see and do at the stand-in for Gitea, for its pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from headgate.testing.forges.gitea import rules
from headgate.testing.forges.gitea.acts import FakeGiteaActs, FakeGiteaRefused
from headgate.testing.forges.gitea.state import FakeGiteaPull, FakeGiteaRepository
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.forges.pages import BY_BRANCH, ChangeMark, PageChange, PageRemark

_DID = {
    "APPROVED": "approved",
    "REQUEST_CHANGES": "asked for changes",
    "COMMENT": "reviewed",
    "REQUEST_REVIEW": "was asked for a review",
}


@dataclass(frozen=True, slots=True)
class GiteaPageActions:
    """See `pages.PageActions`."""

    acts: FakeGiteaActs
    forge: str = "Gitea"
    kind: str = "stand-in for Gitea"
    hint: str = BY_BRANCH
    refused: type[Exception] = FakeGiteaRefused

    @property
    def root(self) -> str:
        return urlsplit(self.acts.post.shows.web).path

    async def seen(self) -> Sequence[PageChange]:
        return [self._seen(pull) for repository in self._repositories() for pull in repository.pulls.values()]

    def people(self) -> Sequence[str]:
        return sorted(login for login, one in self.acts.world.accounts.items() if one.kind == "User")

    def branches(self) -> Sequence[str]:
        return [
            f"{one.full_name}:{branch}"
            for one in self._repositories()
            for branch in hosts.heads(one)
            if branch != one.default_branch
            and not any(pull.head_ref == branch and pull.head_repository is one for pull in one.pulls.values())
        ]

    async def comment(self, path: str, who: str, text: str) -> None:
        self.acts.comment(self._pull(path), self._account(who), text)

    async def approve(self, path: str, who: str) -> None:
        self.acts.review(self._pull(path), self._account(who), "APPROVED", "")

    async def propose(self, branch: str, who: str, title: str, text: str) -> str:
        name, _, branch = branch.partition(":")
        at = self.acts.world.repositories[name]
        return self._path(self.acts.open(at, at, branch, at.default_branch, self._account(who), title, text))

    def _repositories(self) -> list[FakeGiteaRepository]:
        return [one for one in self.acts.world.repositories.values() if not one.private]

    def _account(self, login: str) -> FakeGitHubAccount:
        return self.acts.world.accounts[login]

    def _path(self, pull: FakeGiteaPull) -> str:
        return f"{self.root}/{pull.repository.full_name}/pulls/{pull.number}"

    def _pull(self, path: str) -> FakeGiteaPull:
        every = (pull for one in self._repositories() for pull in one.pulls.values())
        return next(pull for pull in every if self._path(pull) == path)

    def _seen(self, pull: FakeGiteaPull) -> PageChange:
        statuses = rules.newest(pull.repository, pull.head_sha)
        return PageChange(
            self._path(pull), f"{pull.repository.full_name}#{pull.number}", pull.title, pull.user.login,
            "merged" if pull.merged else pull.state, pull.head_ref, pull.base_ref, pull.body,
            tuple(label.name for label in pull.labels),
            tuple(ChangeMark(one.context, one.state, one.description or "", one.target_url or "") for one in statuses),
            (*_comments(pull), *_reviews(pull)),
        )  # fmt: skip


def _comments(pull: FakeGiteaPull) -> Iterator[PageRemark]:
    for one in pull.comments:
        yield PageRemark(one.user.login, one.created_s, "commented", one.body)


def _reviews(pull: FakeGiteaPull) -> Iterator[PageRemark]:
    for one in pull.reviews:
        lines = [f"{path}:{line}: {text}" for path, line, text in one.notes]
        did = "approved, which was dismissed" if one.dismissed else _DID[one.state]
        yield PageRemark(one.user.login, one.at_s, did, "\n".join([one.body, *lines]).strip())
