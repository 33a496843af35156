"""Record comments, reviews, labels, statuses and check runs on pull requests and commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headgate.testing.forges.github import hosts, model
from headgate.testing.forges.github.acts import FakeGitHubPost, FakeGitHubRefused
from headgate.testing.forges.github.views import FakeGitHubShows, Shown, node

_UNSIGNED = {"verified": False, "reason": "unsigned", "signature": None, "payload": None, "verified_at": None}


@dataclass(frozen=True, slots=True)
class Says:
    """Record what people and apps post on pull requests and commits."""

    world: model.FakeGitHubWorld
    post: FakeGitHubPost

    def comment(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, body: str) -> model.FakeGitHubComment:
        """Comment on the pull request."""
        now_s = self.world.clock.now_s()
        one = model.FakeGitHubComment(next(self.world.ids), who, body, now_s, now_s)
        pull.comments.append(one)
        pull.updated_s = now_s
        self._tell_comment(pull, who, one, "created")
        return one

    def edit_comment(
        self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, one: model.FakeGitHubComment, body: str
    ) -> None:
        """Change a comment."""
        before, one.body, one.updated_s = one.body, body, self.world.clock.now_s()
        self._tell_comment(pull, who, one, "edited", changes={"body": {"from": before}})

    def _tell_comment(
        self,
        pull: model.FakeGitHubPull,
        who: model.FakeGitHubAccount,
        one: model.FakeGitHubComment,
        action: str,
        **more: Any,
    ) -> None:
        shows = self.post.shows
        listed = shows.listed_pull(pull)
        url = f"{shows.api}/repos/{pull.repository.full_name}/issues/{pull.number}"
        issue = {
            **{k: listed[k] for k in ("number", "title", "user", "labels", "state", "locked", "assignee", "assignees")},
            **{k: listed[k] for k in ("milestone", "created_at", "updated_at", "closed_at", "author_association")},
            **{k: listed[k] for k in ("active_lock_reason", "body", "draft", "html_url", "node_id", "id")},
            "url": url,
            "repository_url": f"{shows.api}/repos/{pull.repository.full_name}",
            "labels_url": f"{url}/labels{{/name}}",
            "comments_url": f"{url}/comments",
            "events_url": f"{url}/events",
            "timeline_url": f"{url}/timeline",
            "comments": len(pull.comments),
            "pull_request": {k: listed[k] for k in ("url", "html_url", "diff_url", "patch_url", "merged_at")},
            "reactions": _reactions(url),
            "performed_via_github_app": None,
            "state_reason": None,
        }
        shown = {**shows.comment(pull, one), "reactions": _reactions(shows.comment(pull, one)["url"])}
        shown["performed_via_github_app"] = None
        self.post.tell(pull.repository, who, "issue_comment", action, issue=issue, comment=shown, **more)

    def review(
        self,
        pull: model.FakeGitHubPull,
        who: model.FakeGitHubAccount,
        state: Literal["APPROVED", "CHANGES_REQUESTED", "COMMENTED"],
        body: str,
        commit: str | None = None,
    ) -> model.FakeGitHubReview:
        """Review it."""
        if who is pull.user and state != "COMMENTED":
            word = "approve" if state == "APPROVED" else "request changes on"
            raise FakeGitHubRefused(422, f"Can not {word} your own pull request")
        one = model.FakeGitHubReview(
            next(self.world.ids), who, state, body, commit or pull.head_sha, self.world.clock.now_s()
        )
        pull.reviews.append(one)
        self._tell_review(pull, who, one, "submitted")
        return one

    def dismiss(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, one: model.FakeGitHubReview) -> None:
        """Withdraw the effect of a review, as a dismissal does."""
        one.state = "DISMISSED"
        self._tell_review(pull, who, one, "dismissed")

    def _tell_review(
        self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, one: model.FakeGitHubReview, action: str
    ) -> None:
        pull.updated_s = self.world.clock.now_s()
        shows = self.post.shows
        shown = {**shows.review(pull, one), "state": one.state.lower()}
        self.post.tell(
            pull.repository, who, "pull_request_review", action, review=shown, pull_request=shows.listed_pull(pull)
        )

    def label(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, name: str) -> None:
        """Add a label; create it first if it is new."""
        label = pull.repository.labels.setdefault(name, model.FakeGitHubLabel(next(self.world.ids), name))
        if label not in pull.labels:
            pull.labels.append(label)
            self.post.of_pull(pull, who, "labeled", label=self.post.shows.label(pull.repository, label))

    def unlabel(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, name: str) -> None:
        """Remove a label. Raise FakeGitHubRefused."""
        found = next((one for one in pull.labels if one.name.lower() == name.lower()), None)
        if found is None:
            raise FakeGitHubRefused(404, "Label does not exist")
        pull.labels.remove(found)
        self.post.of_pull(pull, who, "unlabeled", label=self.post.shows.label(pull.repository, found))

    def status(
        self, repository: model.FakeGitHubRepository, who: model.FakeGitHubAccount, sha: str, state: str, context: str,
        description: str | None, target_url: str | None,
    ) -> model.FakeGitHubStatus:  # fmt: skip
        """Set a status of a commit. Raise FakeGitHubRefused."""
        if not hosts.has(repository, sha):
            raise FakeGitHubRefused(422, f"No commit found for SHA: {sha}")
        statuses = repository.statuses.setdefault(sha, [])
        if sum(one.context == context for one in statuses) >= 1000:
            raise FakeGitHubRefused(422, "This SHA and context has reached the maximum number of statuses.")
        at_s = self.world.clock.now_s()
        one = model.FakeGitHubStatus(next(self.world.ids), state, context, description, target_url, who, at_s)
        statuses.append(one)
        shows = self.post.shows
        shown = shows.status(repository, sha, one)
        self.post.tell(
            repository, who, "status", None,
            **{k: shown[k] for k in ("id", "target_url", "context", "description", "state", "avatar_url")},
            sha=sha, name=repository.full_name, commit=_of_status(shows, repository, sha), branches=[],
            created_at=shown["created_at"], updated_at=shown["updated_at"],
        )  # fmt: skip
        return one

    def check(
        self,
        repository: model.FakeGitHubRepository,
        who: model.FakeGitHubAccount,
        one: model.CheckRun,
        action: str,
        **more: Any,
    ) -> None:
        """Announce a check run."""
        if action == "created":
            repository.check_runs[one.id] = one
        shown = self.post.shows.check_run(repository, one)
        shown["check_suite"] = _suite(self.post.shows, repository, one)
        self.post.tell(repository, who, "check_run", action, check_run=shown, **more)


def _reactions(url: str) -> Shown:
    kinds = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")
    return {"url": f"{url}/reactions", "total_count": 0, **{kind: 0 for kind in kinds}}


def _of_status(shows: FakeGitHubShows, repository: model.FakeGitHubRepository, sha: str) -> Shown:
    """Return a commit in the form of webhooks of statuses."""
    one = hosts.opened(repository)[sha]
    url = f"{shows.api}/repos/{repository.full_name}/commits/{sha}"
    author, committer = (
        {"name": who.name, "email": who.email, "date": model.stamp(who.time)} for who in (one.author, one.committer)
    )
    return {
        "sha": sha, "node_id": node("Commit", 1), "url": url, "comments_url": f"{url}/comments",
        "html_url": f"{shows.web}/{repository.full_name}/commit/{sha}", "author": None, "committer": None,
        "parents": [], "commit": {
            "author": author, "committer": committer, "message": one.message, "url": url, "comment_count": 0,
            "tree": {"sha": str(one.tree_id), "url": url},
            "verification": _UNSIGNED,
        },
    }  # fmt: skip


def _suite(shows: FakeGitHubShows, repository: model.FakeGitHubRepository, one: model.CheckRun) -> Shown:
    """Return the suite of a check run in the form of its webhooks."""
    pulls = shows.check_run(repository, one)["pull_requests"]
    return {
        "id": one.app.id, "node_id": node("CheckSuite", one.app.id), "head_branch": None, "head_sha": one.head_sha,
        "status": one.status, "conclusion": one.conclusion,
        "url": f"{shows.api}/repos/{repository.full_name}/check-suites/1",
        "before": None, "after": None, "pull_requests": pulls, "app": shows.app(one.app),
        "created_at": model.stamp(one.started_s or 0), "updated_at": model.stamp(one.started_s or 0),
    }  # fmt: skip
