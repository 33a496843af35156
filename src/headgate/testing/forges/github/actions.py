"""Provide pages of the stand-in for GitHub with what people see and do there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.access import FakeGitHubForge
from headgate.testing.forges.github.acts import FakeGitHubRefused
from headgate.testing.forges.github.model import CheckRun, FakeGitHubAccount, FakeGitHubPull, FakeGitHubRepository
from headgate.testing.forges.pages import BY_BRANCH, ChangeMark, PageChange, PageRemark

_DID = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "asked for changes",
    "COMMENTED": "reviewed",
    "DISMISSED": "had a review dismissed",
    "PENDING": "reviews",
}


@dataclass(frozen=True, slots=True)
class GitHubPageActions:
    """Implement `pages.PageActions` for GitHub."""

    of: FakeGitHubForge
    forge: str = "GitHub"
    kind: str = "stand-in for GitHub"
    hint: str = BY_BRANCH
    root: str = ""
    refused: type[Exception] = FakeGitHubRefused

    async def seen(self) -> Sequence[PageChange]:
        return [self._seen(pull) for repository in self._repositories() for pull in repository.pulls.values()]

    def people(self) -> Sequence[str]:
        return sorted(login for login, one in self.of.world.accounts.items() if one.kind == "User")

    def branches(self) -> Sequence[str]:
        return [
            f"{one.full_name}:{branch}"
            for one in self._repositories()
            for branch in hosts.heads(one)
            if branch != one.default_branch
            and not any(pull.head_ref == branch and pull.head_repository is one for pull in one.pulls.values())
        ]

    async def comment(self, path: str, who: str, text: str) -> None:
        self.of.says.comment(self._pull(path), self._account(who), text)

    async def approve(self, path: str, who: str) -> None:
        self.of.says.review(self._pull(path), self._account(who), "APPROVED", "")

    async def propose(self, branch: str, who: str, title: str, text: str) -> str:
        name, _, branch = branch.partition(":")
        at = self.of.world.repositories[name]
        base, account = at.default_branch, self._account(who)
        return _path(self.of.pulls.open(at, at, branch, base, account, title, text, draft=False))

    def _repositories(self) -> list[FakeGitHubRepository]:
        return [one for one in self.of.world.repositories.values() if not one.private]

    def _account(self, login: str) -> FakeGitHubAccount:
        return self.of.world.accounts[login]

    def _pull(self, path: str) -> FakeGitHubPull:
        every = (pull for one in self._repositories() for pull in one.pulls.values())
        return next(pull for pull in every if _path(pull) == path)

    def _seen(self, pull: FakeGitHubPull) -> PageChange:
        return PageChange(
            _path(pull), f"{pull.repository.full_name}#{pull.number}", pull.title, pull.user.login,
            "merged" if pull.merged else "draft" if pull.draft else pull.state, pull.head_label, pull.base_ref,
            pull.body or "", tuple(label.name for label in pull.labels), (*_runs(pull), *_statuses(pull)),
            (*_comments(pull), *_reviews(pull)),
        )  # fmt: skip


def _path(pull: FakeGitHubPull) -> str:
    return f"/{pull.repository.full_name}/pull/{pull.number}"


def _runs(pull: FakeGitHubPull) -> Iterator[ChangeMark]:
    """Yield the newest of each name."""
    newest: dict[str, CheckRun] = {}
    for one in pull.repository.check_runs.values():
        if one.head_sha == pull.head_sha:
            newest[one.name] = one
    for one in newest.values():
        lines = tuple(f"{note['path']}:{note['start_line']}: {note['message']}" for note in one.annotations)
        yield ChangeMark(one.name, one.conclusion or one.status, one.title or "", one.details_url or "", lines)


def _statuses(pull: FakeGitHubPull) -> Iterator[ChangeMark]:
    for one in {status.context: status for status in pull.repository.statuses.get(pull.head_sha, ())}.values():
        yield ChangeMark(one.context, one.state, one.description or "", one.target_url or "")


def _comments(pull: FakeGitHubPull) -> Iterator[PageRemark]:
    for one in pull.comments:
        yield PageRemark(one.user.login, one.created_s, "commented", one.body)


def _reviews(pull: FakeGitHubPull) -> Iterator[PageRemark]:
    for one in pull.reviews:
        yield PageRemark(one.user.login, one.at_s, _DID[one.state], one.body)
