"""Perform what happens on the stand-in for Gitea, send webhooks about it, and let pages show it and do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from headgate.testing.forges.gitea import model
from headgate.testing.forges.gitea.views import FakeGiteaPost
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import FakeGitHubAccount, FakeGitHubComment, FakeGitHubLabel, FakeGitHubStatus
from headgate.testing.forges.pages import BY_BRANCH, ChangeMark, PageChange, PageRemark

REVIEWED = {
    "APPROVED": "pull_request_review_approved",
    "REQUEST_CHANGES": "pull_request_review_rejected",
    "COMMENT": "pull_request_review_comment",
}
"""State of a review -> the event of webhooks."""
_DID = {
    "APPROVED": "approved",
    "REQUEST_CHANGES": "asked for changes",
    "COMMENT": "reviewed",
    "REQUEST_REVIEW": "was asked for a review",
}
"""State of a review -> what pages call it."""


class FakeGiteaRefused(Exception):
    """Report that Gitea rejects an action."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class FakeGiteaActs:
    """Perform actions on the forge."""

    world: model.FakeGiteaWorld
    post: FakeGiteaPost

    # --- pull requests

    def open(
        self,
        repository: model.FakeGiteaRepository,
        fork: model.FakeGiteaRepository,
        head: str,
        base: str,
        who: FakeGitHubAccount,
        title: str,
        body: str,
    ) -> model.FakeGiteaPull:
        """Open a pull request."""
        tip = hosts.heads(fork).get(head)
        if tip is None or base not in hosts.heads(repository):
            raise FakeGiteaRefused(404, "The target couldn't be found.")
        now_s, number = self.world.clock.now_s(), next(repository.numbers)
        pull = model.FakeGiteaPull(
            number, next(self.world.ids), repository, fork, head, tip, base, who, title, body, now_s, now_s
        )
        repository.pulls[number] = pull
        hosts.bring(fork, repository, tip, f"refs/pull/{number}/head")
        self.post.of_pull(pull, who, "pull_request", "opened")
        return pull

    def close(self, pull: model.FakeGiteaPull, who: FakeGitHubAccount) -> None:
        """Close it without merging."""
        pull.state, pull.closed_s = "closed", self.world.clock.now_s()
        self.post.of_pull(pull, who, "pull_request", "closed")

    def reopen(self, pull: model.FakeGiteaPull, who: FakeGitHubAccount) -> None:
        """Open it again."""
        pull.state, pull.closed_s = "open", None
        self.post.of_pull(pull, who, "pull_request", "reopened")

    def edit(
        self,
        pull: model.FakeGiteaPull,
        who: FakeGitHubAccount,
        title: str | None = None,
        body: str | None = None,
        base: str | None = None,
    ) -> None:
        """Change its text, or its target branch."""
        changes: dict[str, Any] = {}
        if title is not None:
            changes["title"], pull.title = {"from": pull.title}, title
        if body is not None:
            changes["body"], pull.body = {"from": pull.body}, body
        if base is not None:
            changes["ref"], pull.base_ref = {"from": pull.base_ref}, base
        self.post.of_pull(pull, who, "pull_request", "edited", changes=changes)

    def pushed(self, repository: model.FakeGiteaRepository, who: FakeGitHubAccount, before: dict[str, str]) -> None:
        """Find moved branches: announce them, update heads of pull requests, and mark landed ones as merged."""
        after = hosts.heads(repository)
        for branch in sorted({*before, *after}):
            old, new = before.get(branch, hosts.ZERO), after.get(branch, hosts.ZERO)
            if old != new:
                self._tell_push(repository, who, branch, old, new)
                self._follow_heads(repository, who, branch, new)
                self._mark_merged(repository, who, branch, old, new)

    def _tell_push(
        self, repository: model.FakeGiteaRepository, who: FakeGitHubAccount, branch: str, old: str, new: str
    ) -> None:
        if hosts.ZERO in (old, new):
            event = "create" if old == hosts.ZERO else "delete"
            self.post.tell(repository, who, event, ref=branch, ref_type="branch", sha=new.strip("0") or old)
        if new != hosts.ZERO:
            self.post.tell(
                repository, who, "push", ref=f"refs/heads/{branch}", before=old, after=new, commits=[],
                pusher=self.post.shows.user(who),
            )  # fmt: skip

    def _follow_heads(
        self, repository: model.FakeGiteaRepository, who: FakeGitHubAccount, branch: str, new: str
    ) -> None:
        for base in self.world.repositories.values():
            for pull in base.pulls.values():
                if pull.head_repository is not repository or pull.head_ref != branch or pull.state != "open":
                    continue
                if new == hosts.ZERO:
                    continue  # it stays, with its last head
                pull.head_sha = new
                hosts.bring(repository, base, new, f"refs/pull/{pull.number}/head")
                self.post.of_pull(pull, who, "pull_request_sync", "synchronized")

    def _mark_merged(
        self, repository: model.FakeGiteaRepository, who: FakeGitHubAccount, branch: str, old: str, tip: str
    ) -> None:
        """Mark a pull request whose head is in its base as merged, no matter who pushed it, where the repository
        detects merges."""
        for pull in repository.pulls.values() if repository.detects_merges else ():
            affected = pull.base_ref == branch and pull.state == "open" and tip != hosts.ZERO
            if affected and hosts.contains(repository, tip, pull.head_sha):
                self._merged(pull, who, tip, old)

    def _merged(self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, commit: str, base: str) -> None:
        pull.state, pull.closed_s = "closed", self.world.clock.now_s()
        pull.merged_by, pull.merge_commit_sha, pull.base_at_merge = who, commit, base
        self.post.of_pull(pull, who, "pull_request", "closed")

    def merge(
        self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, style: str, head: str, title: str, text: str
    ) -> None:
        """Merge it as the button does.  Raise FakeGiteaRefused."""
        repository = pull.repository
        if repository.archived:
            raise FakeGiteaRefused(423, "Repo is archived.")
        if not model.may_merge(repository, pull.base_ref, who):
            raise FakeGiteaRefused(405, "User not allowed to merge PR")
        if pull.merged or pull.state != "open":
            raise FakeGiteaRefused(405 if pull.merged else 404, "" if pull.merged else "The target couldn't be found.")
        if pull.draft:
            raise FakeGiteaRefused(405, "Work in progress PRs cannot be merged")
        # Gitea answers alike to a conflict and to a test merge that is not computed yet.
        if model.mergeable(self.world, pull) is not True:
            raise FakeGiteaRefused(405, "Please try again later")
        lacking = next(model.unmet(pull), "")
        if lacking:
            raise FakeGiteaRefused(405, f"not allowed to merge [reason: {lacking}]")
        if style not in repository.styles:
            raise FakeGiteaRefused(405, f"{style} is not allowed an allowed merge style for this repository")
        # The client names the head that it has seen, so that a later push is not merged by accident.
        if head and head != pull.head_sha:
            raise FakeGiteaRefused(409, "head out of date")
        before = hosts.heads(repository)
        signature = hosts.signature(who, self.world.clock.now_s())
        subject = (
            title or f"Merge pull request '{pull.title}' (#{pull.number}) from {pull.head_ref} into {pull.base_ref}"
        )
        tip = hosts.merge(pull, before[pull.base_ref], style, f"{subject}\n\n{text}", signature)
        if tip is None:
            raise FakeGiteaRefused(409, "Merge conflict")
        hosts.point(repository, f"refs/heads/{pull.base_ref}", tip)
        self._merged(pull, who, tip, before[pull.base_ref])
        self.pushed(repository, who, before)

    def mark_merged(self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, commit: str) -> None:
        """Record that a commit of the branch has merged the pull request. Raise FakeGiteaRefused."""
        repository = pull.repository
        if not model.may_merge(repository, pull.base_ref, who):
            raise FakeGiteaRefused(405, "User not allowed to merge PR")
        if "manually-merged" not in repository.styles:
            raise FakeGiteaRefused(405, "manually-merged is not allowed an allowed merge style for this repository")
        tip = hosts.heads(repository).get(pull.base_ref, "")
        # Gitea accepts only the full id of a commit that the branch already contains.
        if len(commit) != 40 or not hosts.has(repository, commit) or not hosts.contains(repository, tip, commit):
            raise FakeGiteaRefused(409, "Wrong commit ID")
        self._merged(pull, who, commit, tip)

    # --- comments, reviews, labels and statuses

    def comment(self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, body: str) -> FakeGitHubComment:
        """Comment on it."""
        now_s = self.world.clock.now_s()
        one = FakeGitHubComment(next(self.world.ids), who, body, now_s, now_s)
        pull.comments.append(one)
        self._tell_comment(pull, who, one, "created")
        return one

    def edit_comment(
        self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, one: FakeGitHubComment, body: str
    ) -> None:
        """Change a comment."""
        one.body, one.updated_s = body, self.world.clock.now_s()
        self._tell_comment(pull, who, one, "edited")

    def _tell_comment(
        self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, one: FakeGitHubComment, action: str
    ) -> None:
        pull.updated_s = self.world.clock.now_s()
        issue = {
            "number": pull.number,
            "title": pull.title,
            "state": pull.state,
            "pull_request": {"merged": pull.merged},
        }
        shown = self.post.shows.comment(pull, one)
        self.post.tell(
            pull.repository, who, "pull_request_comment", action=action, issue=issue, comment=shown, is_pull=True
        )

    def review(
        self, pull: model.FakeGiteaPull, who: FakeGitHubAccount,
        state: Literal["APPROVED", "REQUEST_CHANGES", "COMMENT"], body: str, commit: str = "",
        notes: tuple[tuple[str, int, str], ...] = (),
    ) -> model.FakeGiteaReview:  # fmt: skip
        """Review it."""
        if who is pull.user and state != "COMMENT":
            word = "approve" if state == "APPROVED" else "reject"
            raise FakeGiteaRefused(422, f"{word} your own pull is not allowed")
        if not body and state != "APPROVED" and not notes:
            raise FakeGiteaRefused(422, "review event: a body is needed")
        counts = state != "COMMENT" and model.official(pull.repository, pull.base_ref, who)
        for former in pull.reviews if counts else ():
            # A person has one official review; the newest one takes the weight from the earlier ones.
            former.official = former.official and former.user is not who
        at_s = self.world.clock.now_s()
        one = model.FakeGiteaReview(
            next(self.world.ids), who, state, body, commit or pull.head_sha, at_s, counts, notes=notes
        )
        pull.reviews.append(one)
        self.post.of_pull(pull, who, REVIEWED[state], "reviewed", review={"type": REVIEWED[state], "content": body})
        return one

    def request_review(self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, of: FakeGitHubAccount) -> None:
        """Request a review."""
        counts, at_s = model.official(pull.repository, pull.base_ref, of), self.world.clock.now_s()
        pull.reviews.append(
            model.FakeGiteaReview(next(self.world.ids), of, "REQUEST_REVIEW", "", pull.head_sha, at_s, counts)
        )
        self.post.of_pull(pull, who, "pull_request_review_request", "review_requested")

    def dismiss(self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, one: model.FakeGiteaReview) -> None:
        """Withdraw the effect of a review, as a dismissal does; Gitea sends no delivery about it."""
        one.dismissed, pull.updated_s = True, self.world.clock.now_s()

    def label(
        self, pull: model.FakeGiteaPull, who: FakeGitHubAccount, label: FakeGitHubLabel, *, off: bool = False
    ) -> None:
        """Add a label, or remove it."""
        # Nothing changes, so Gitea sends no webhook.
        if (label in pull.labels) is not off:
            return
        pull.labels = [one for one in pull.labels if one is not label] + ([] if off else [label])
        self.post.of_pull(pull, who, "pull_request_label", "label_updated" if pull.labels else "label_cleared")

    def status(
        self,
        repository: model.FakeGiteaRepository,
        who: FakeGitHubAccount,
        sha: str,
        state: str,
        context: str,
        text: str,
        url: str,
    ) -> FakeGitHubStatus:
        """Set a status of a commit. Raise FakeGiteaRefused."""
        if not hosts.has(repository, sha):
            raise FakeGiteaRefused(404, "The target couldn't be found.")
        one = FakeGitHubStatus(next(self.world.ids), state, context, text, url, who, self.world.clock.now_s())
        repository.statuses.setdefault(sha, []).append(one)
        self.post.tell(
            repository, who, "status", sha=sha, commit={"id": sha}, context=context, state=state, description=text,
            target_url=url,
        )  # fmt: skip
        return one


@dataclass(frozen=True, slots=True)
class GiteaPageActions:
    """Implement `pages.PageActions` for Gitea."""

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

    def _repositories(self) -> list[model.FakeGiteaRepository]:
        return [one for one in self.acts.world.repositories.values() if not one.private]

    def _account(self, login: str) -> FakeGitHubAccount:
        return self.acts.world.accounts[login]

    def _path(self, pull: model.FakeGiteaPull) -> str:
        return f"{self.root}/{pull.repository.full_name}/pulls/{pull.number}"

    def _pull(self, path: str) -> model.FakeGiteaPull:
        every = (pull for one in self._repositories() for pull in one.pulls.values())
        return next(pull for pull in every if self._path(pull) == path)

    def _seen(self, pull: model.FakeGiteaPull) -> PageChange:
        statuses = model.newest(pull.repository, pull.head_sha)
        return PageChange(
            self._path(pull), f"{pull.repository.full_name}#{pull.number}", pull.title, pull.user.login,
            "merged" if pull.merged else pull.state, pull.head_ref, pull.base_ref, pull.body,
            tuple(label.name for label in pull.labels),
            tuple(ChangeMark(one.context, one.state, one.description or "", one.target_url or "") for one in statuses),
            (*_comments(pull), *_reviews(pull)),
        )  # fmt: skip


def _comments(pull: model.FakeGiteaPull) -> Iterator[PageRemark]:
    for one in pull.comments:
        yield PageRemark(one.user.login, one.created_s, "commented", one.body)


def _reviews(pull: model.FakeGiteaPull) -> Iterator[PageRemark]:
    for one in pull.reviews:
        lines = [f"{path}:{line}: {text}" for path, line, text in one.notes]
        did = "approved, which was dismissed" if one.dismissed else _DID[one.state]
        yield PageRemark(one.user.login, one.at_s, did, "\n".join([one.body, *lines]).strip())
