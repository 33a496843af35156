"""Show what people see and do at the stand-in for GitLab, for its pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab.acts import FakeGitLabActs, FakeGitLabRefused
from headgate.testing.forges.gitlab.state import FakeGitLabMergeRequest, FakeGitLabProject
from headgate.testing.forges.pages import BY_BRANCH, ChangeMark, PageChange, PageRemark


@dataclass(frozen=True, slots=True)
class GitLabPageActions:
    """See `pages.PageActions`."""

    acts: FakeGitLabActs
    forge: str = "GitLab"
    kind: str = "stand-in for GitLab"
    hint: str = BY_BRANCH
    root: str = ""
    refused: type[Exception] = FakeGitLabRefused

    async def seen(self) -> Sequence[PageChange]:
        return [_seen(one) for project in self._projects() for one in project.requests.values()]

    def people(self) -> Sequence[str]:
        return sorted(username for username, one in self.acts.world.users.items() if not one.bot)

    def branches(self) -> Sequence[str]:
        return [
            f"{one.path}:{branch}"
            for one in self._projects()
            for branch in hosts.heads(one)
            if branch != one.default_branch
            and not any(other.source_branch == branch and other.source is one for other in one.requests.values())
        ]

    async def comment(self, path: str, who: str, text: str) -> None:
        self.acts.note(self._request(path), self.acts.world.users[who], text)

    async def approve(self, path: str, who: str) -> None:
        self.acts.approve(self._request(path), self.acts.world.users[who])

    async def propose(self, branch: str, who: str, title: str, text: str) -> str:
        path, _, branch = branch.rpartition(":")
        at, author = self.acts.world.projects[path], self.acts.world.users[who]
        return _path(self.acts.open(at, at, branch, at.default_branch, author, title, text))

    def _projects(self) -> list[FakeGitLabProject]:
        return [one for one in self.acts.world.projects.values() if not one.private]

    def _request(self, path: str) -> FakeGitLabMergeRequest:
        every = (one for project in self._projects() for one in project.requests.values())
        return next(one for one in every if _path(one) == path)


def _path(one: FakeGitLabMergeRequest) -> str:
    return f"/{one.project.path}/-/merge_requests/{one.iid}"


def _seen(one: FakeGitLabMergeRequest) -> PageChange:
    jobs = one.source.jobs(one.sha, one.source_branch) if one.source is not None else []
    return PageChange(
        _path(one), f"{one.project.path}!{one.iid}", one.title, one.author.username,
        "open" if one.state == "opened" else one.state, one.source_branch, one.target_branch, one.description,
        tuple(one.labels),
        tuple(ChangeMark(job.name, job.state, job.description or "", job.target_url or "") for job in jobs),
        (*_notes(one), *_approvals(one)),
    )  # fmt: skip


def _notes(one: FakeGitLabMergeRequest) -> Iterator[PageRemark]:
    for note in one.notes:
        yield PageRemark(note.author.username, note.at_s, "noted" if note.system else "commented", note.body)


def _approvals(one: FakeGitLabMergeRequest) -> Iterator[PageRemark]:
    for user in one.approvers:
        yield PageRemark(user.username, one.approved_s[user.id], "approved")
