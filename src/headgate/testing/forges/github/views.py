"""Render the stand-in's objects as GitHub's API does."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headgate.testing.forges.github import hosts, model
from headgate.testing.forges.github.rules import Asker, mergeable_state

Shown = dict[str, Any]
_PLACES = (
    *("archive", "assignees", "blobs", "branches", "collaborators", "comments", "commits", "compare", "contents"),
    *("contributors", "deployments", "downloads", "events", "forks", "git_commits", "git_refs", "git_tags", "hooks"),
    *(
        "issue_comment",
        "issue_events",
        "issues",
        "keys",
        "labels",
        "languages",
        "merges",
        "milestones",
        "notifications",
    ),
    *("pulls", "releases", "stargazers", "statuses", "subscribers", "subscription", "tags", "teams", "trees"),
)
"""Resources for which a repository has a URL."""
_OF_USERS = (
    *("events", "followers", "following", "gists", "organizations", "received_events", "repos", "starred"),
    "subscriptions",
)


def node(kind: str, number: int) -> str:
    """Return the GraphQL id of an object."""
    return b64encode(f"{kind}:{number}".encode()).decode()


@dataclass(frozen=True, slots=True)
class FakeGitHubShows:
    """Render the API's JSON. `web` and `api` are the URLs for people and programs."""

    world: model.FakeGitHubWorld
    web: str
    api: str

    def user(self, one: model.FakeGitHubAccount) -> Shown:
        """Return a simple user."""
        url = f"{self.api}/users/{quote(one.login)}"
        return {
            "login": one.login,
            "id": one.id,
            "node_id": node(one.kind, one.id),
            "avatar_url": f"{self.web}/avatars/{one.id}",
            "gravatar_id": "",
            "url": url,
            "html_url": f"{self.web}/{quote(one.login)}",
            **{f"{place}_url": f"{url}/{place}" for place in _OF_USERS},
            "type": one.kind,
            "site_admin": False,
        }

    def public_user(self, one: model.FakeGitHubAccount) -> Shown:
        """Return a user as the request for one login shows it."""
        return {
            **self.user(one),
            "name": one.name,
            "company": None,
            "blog": None,
            "location": None,
            "email": one.email,
            "hireable": None,
            "bio": None,
            "public_repos": 0,
            "public_gists": 0,
            "followers": 0,
            "following": 0,
            "created_at": model.stamp(0),
            "updated_at": model.stamp(0),
        }

    def app(self, one: model.App) -> Shown:
        """Return an app."""
        return {
            "id": one.id,
            "slug": one.slug,
            "node_id": node("App", one.id),
            "client_id": f"Iv1.{one.id}",
            "owner": self.user(one.owner),
            "name": one.slug,
            "description": None,
            "external_url": f"{self.web}/apps/{one.slug}",
            "html_url": f"{self.web}/apps/{one.slug}",
            "created_at": model.stamp(one.created_s),
            "updated_at": model.stamp(one.created_s),
            "permissions": dict(one.permissions),
            "events": ["pull_request", "push"],
        }

    def installation(self, one: model.FakeGitHubInstallation) -> Shown:
        """Return an installation of an app."""
        return {
            "id": one.id,
            "account": self.user(one.account),
            "repository_selection": "all" if one.projects is None else "selected",
            "access_tokens_url": f"{self.api}/app/installations/{one.id}/access_tokens",
            "repositories_url": f"{self.api}/installation/repositories",
            "html_url": f"{self.web}/settings/installations/{one.id}",
            "app_id": one.app.id,
            "app_slug": one.app.slug,
            "target_id": one.account.id,
            "target_type": one.account.kind,
            "permissions": dict(one.app.permissions),
            "events": ["pull_request", "push"],
            "created_at": model.stamp(one.created_s),
            "updated_at": model.stamp(one.created_s),
            "single_file_name": None,
            "suspended_by": self.user(one.account) if one.suspended else None,
            "suspended_at": model.stamp(one.created_s) if one.suspended else None,
        }

    def minimal(self, one: model.FakeGitHubRepository) -> Shown:
        """Return the fields that every representation of a repository has."""
        url = f"{self.api}/repos/{one.full_name}"
        return {
            "id": one.id,
            "node_id": node("Repository", one.id),
            "name": one.name,
            "full_name": one.full_name,
            "owner": self.user(one.owner),
            "private": one.private,
            "html_url": f"{self.web}/{one.full_name}",
            "description": None,
            "fork": one.fork_of is not None,
            "url": url,
            **{f"{place}_url": f"{url}/{place.replace('git_', 'git/')}" for place in _PLACES},
        }

    def repository(self, one: model.FakeGitHubRepository) -> Shown:
        """Return a repository as lists and pull requests show it."""
        return {
            **self.minimal(one),
            "git_url": f"git:{self.web.partition(':')[2]}/{one.full_name}.git",
            "ssh_url": f"git@127.0.0.1:{one.full_name}.git",
            "clone_url": f"{self.web}/{one.full_name}.git",
            "svn_url": f"{self.web}/{one.full_name}",
            "mirror_url": None,
            "homepage": None,
            "language": None,
            "forks_count": 0,
            "stargazers_count": 0,
            "watchers_count": 0,
            "size": 1,
            "default_branch": one.default_branch,
            "open_issues_count": sum(p.state == "open" for p in one.pulls.values()),
            "topics": [],
            "has_issues": True,
            "has_projects": True,
            "has_wiki": True,
            "has_pages": False,
            "has_downloads": True,
            "has_discussions": False,
            "archived": one.archived,
            "disabled": False,
            "visibility": "private" if one.private else "public",
            "pushed_at": model.stamp(one.pushed_s),
            "created_at": model.stamp(one.created_s),
            "updated_at": model.stamp(one.pushed_s),
            "license": None,
            "forks": 0,
            "open_issues": sum(p.state == "open" for p in one.pulls.values()),
            "watchers": 0,
            "web_commit_signoff_required": False,
        }

    def full_repository(self, one: model.FakeGitHubRepository) -> Shown:
        """Return a repository as the request for one name shows it."""
        return {
            **self.repository(one),
            "subscribers_count": 0,
            "network_count": 0,
            "allow_merge_commit": one.allow_merge_commit,
            "allow_squash_merge": one.allow_squash_merge,
            "allow_rebase_merge": one.allow_rebase_merge,
        }

    def label(self, pull_repository: model.FakeGitHubRepository, one: model.FakeGitHubLabel) -> Shown:
        """Return a label."""
        return {
            "id": one.id,
            "node_id": node("Label", one.id),
            "url": f"{self.api}/repos/{pull_repository.full_name}/labels/{quote(one.name)}",
            "name": one.name,
            "description": "",
            "color": one.color,
            "default": False,
        }

    def _side(self, repository: model.FakeGitHubRepository | None, label: str, ref: str, sha: str) -> Shown:
        owner = self.user(self.world.account(label.partition(":")[0]))
        shown = self.repository(repository) if repository else None
        return {"label": label, "ref": ref, "sha": sha, "user": owner, "repo": shown}

    def listed_pull(self, one: model.FakeGitHubPull) -> Shown:
        """Return a pull request as lists show it."""
        url = f"{self.api}/repos/{one.repository.full_name}/pulls/{one.number}"
        issue = f"{self.api}/repos/{one.repository.full_name}/issues/{one.number}"
        html = f"{self.web}/{one.repository.full_name}/pull/{one.number}"
        statuses = f"{self.api}/repos/{one.repository.full_name}/statuses/{one.head_sha}"
        links = {
            "self": url,
            "html": html,
            "issue": issue,
            "comments": f"{issue}/comments",
            "review_comments": f"{url}/comments",
            "review_comment": f"{url}/comments{{/number}}",
            "commits": f"{url}/commits",
            "statuses": statuses,
        }
        return {
            "url": url,
            "id": one.id,
            "node_id": node("PullRequest", one.id),
            "html_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "issue_url": issue,
            "commits_url": f"{url}/commits",
            "review_comments_url": f"{url}/comments",
            "review_comment_url": f"{url}/comments{{/number}}",
            "comments_url": f"{issue}/comments",
            "statuses_url": statuses,
            "number": one.number,
            "state": one.state,
            "locked": False,
            "title": one.title,
            "user": self.user(one.user),
            "body": one.body,
            "labels": [self.label(one.repository, label) for label in one.labels],
            "milestone": None,
            "active_lock_reason": None,
            "created_at": model.stamp(one.created_s),
            "updated_at": model.stamp(one.updated_s),
            "closed_at": model.stamp(one.closed_s) if one.closed_s is not None else None,
            "merged_at": model.stamp(one.closed_s) if one.merged and one.closed_s is not None else None,
            "merge_commit_sha": one.merge_commit_sha,
            "assignee": None,
            "assignees": [],
            "requested_reviewers": [],
            "requested_teams": [],
            "head": self._side(one.head_repository, one.head_label, one.head_ref, one.head_sha),
            "base": self._side(
                one.repository, f"{one.repository.owner.login}:{one.base_ref}", one.base_ref, one.base_sha
            ),
            "_links": {name: {"href": href} for name, href in links.items()},
            "author_association": "CONTRIBUTOR",
            "auto_merge": None,
            "draft": one.draft,
        }

    def pull(self, one: model.FakeGitHubPull, asker: Asker, *, asks: bool = True) -> Shown:
        """Return a pull request as the request for one number shows it. `asks`: the request makes GitHub compute
        whether it can be merged."""
        clean = mergeability(self.world, one, asks=asks)
        tip = hosts.heads(one.repository).get(one.base_ref, one.base_sha)
        files = hosts.files_of(one, tip)
        word = "unknown" if clean is None else mergeable_state(one, asker, clean)
        return {
            **self.listed_pull(one),
            "merged": one.merged,
            # GitHub computes no mergeability for a merged pull request.
            "mergeable": None if one.merged else clean,
            "rebaseable": None if one.merged else clean,
            "mergeable_state": "unknown" if one.merged else word,
            "merged_by": self.user(one.merged_by) if one.merged_by else None,
            "comments": len(one.comments),
            "review_comments": len(one.threads),
            "maintainer_can_modify": False,
            "commits": len(hosts.own_commits(one, tip)) if not one.merged else 1,
            "additions": sum(f.added for f in files),
            "deletions": sum(f.deleted for f in files),
            "changed_files": len(files),
        }

    def review(self, pull: model.FakeGitHubPull, one: model.FakeGitHubReview) -> Shown:
        """Return a review."""
        url = f"{self.api}/repos/{pull.repository.full_name}/pulls/{pull.number}"
        html = f"{self.web}/{pull.repository.full_name}/pull/{pull.number}#pullrequestreview-{one.id}"
        return {
            "id": one.id,
            "node_id": node("PullRequestReview", one.id),
            "user": self.user(one.user),
            "body": one.body,
            "state": one.state,
            "html_url": html,
            "pull_request_url": url,
            "_links": {"html": {"href": html}, "pull_request": {"href": url}},
            "submitted_at": model.stamp(one.at_s),
            "commit_id": one.commit_id,
            "author_association": "COLLABORATOR",
        }

    def comment(self, pull: model.FakeGitHubPull, one: model.FakeGitHubComment) -> Shown:
        """Return a comment on a pull request."""
        issue = f"{self.api}/repos/{pull.repository.full_name}/issues"
        return {
            "id": one.id,
            "node_id": node("IssueComment", one.id),
            "url": f"{issue}/comments/{one.id}",
            "html_url": f"{self.web}/{pull.repository.full_name}/pull/{pull.number}#issuecomment-{one.id}",
            "issue_url": f"{issue}/{pull.number}",
            "body": one.body,
            "user": self.user(one.user),
            "created_at": model.stamp(one.created_s),
            "updated_at": model.stamp(one.updated_s),
            "author_association": "COLLABORATOR",
        }

    def status(self, repository: model.FakeGitHubRepository, sha: str, one: model.FakeGitHubStatus) -> Shown:
        """Return one status of a commit."""
        return {
            "url": f"{self.api}/repos/{repository.full_name}/statuses/{sha}",
            "avatar_url": f"{self.web}/avatars/{one.creator.id}",
            "id": one.id,
            "node_id": node("StatusContext", one.id),
            "state": one.state,
            "description": one.description,
            "target_url": one.target_url,
            "context": one.context,
            "created_at": model.stamp(one.at_s),
            "updated_at": model.stamp(one.at_s),
            "creator": self.user(one.creator),
        }

    def check_run(self, repository: model.FakeGitHubRepository, one: model.CheckRun) -> Shown:
        """Return a check run."""
        url = f"{self.api}/repos/{repository.full_name}/check-runs/{one.id}"
        pulls = [p for p in repository.pulls.values() if p.head_sha == one.head_sha and p.state == "open"]
        return {
            "id": one.id,
            "head_sha": one.head_sha,
            "node_id": node("CheckRun", one.id),
            "external_id": one.external_id,
            "url": url,
            "html_url": f"{self.web}/{repository.full_name}/runs/{one.id}",
            "details_url": one.details_url,
            "status": one.status,
            "conclusion": one.conclusion,
            "started_at": model.stamp(one.started_s) if one.started_s is not None else None,
            "completed_at": model.stamp(one.completed_s) if one.completed_s is not None else None,
            "output": {
                "title": one.title,
                "summary": one.summary,
                "text": one.text,
                "annotations_count": len(one.annotations),
                "annotations_url": f"{url}/annotations",
            },
            "name": one.name,
            "check_suite": {"id": one.app.id},
            "app": self.app(one.app),
            # GitHub leaves out pull requests from forks.
            "pull_requests": [self._pull_of_check(p) for p in pulls if p.head_repository is repository],
        }

    def _pull_of_check(self, one: model.FakeGitHubPull) -> Shown:
        url = f"{self.api}/repos/{one.repository.full_name}"
        repo = {"id": one.repository.id, "url": url, "name": one.repository.name}
        return {
            "url": f"{url}/pulls/{one.number}",
            "id": one.id,
            "number": one.number,
            "head": {"ref": one.head_ref, "sha": one.head_sha, "repo": repo},
            "base": {"ref": one.base_ref, "sha": one.base_sha, "repo": repo},
        }


def mergeability(world: model.FakeGitHubWorld, pull: model.FakeGitHubPull, *, asks: bool = True) -> bool | None:
    """Return whether a pull request can be merged; None while GitHub computes that, which a request starts."""
    if pull.state != "open":
        return None
    tip = hosts.heads(pull.repository).get(pull.base_ref)
    if tip is None:
        return False
    # A push to either side outdates the test merge, so the answer is open once more.
    if pull.test_merge != (pull.head_sha, tip):
        # GitHub computes the test merge in the background, so the first requests get no answer.
        if asks:
            pull.times_asked += 1
        if pull.times_asked <= world.mergeability_asks:
            return None
        pull.test_merge, pull.times_asked = (pull.head_sha, tip), 0
    return hosts.merged_tree(pull.repository, tip, pull.head_sha) is not None
