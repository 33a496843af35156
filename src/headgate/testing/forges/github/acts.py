"""Perform what people and apps do on the forge: each act changes the world and sends its webhooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.testing.forges.github import hosts, model
from headgate.testing.forges.github.mail import Mail
from headgate.testing.forges.github.rules import Asker, unmet
from headgate.testing.forges.github.views import FakeGitHubShows, Shown, mergeability, node


class FakeGitHubRefused(Exception):
    """Report that GitHub rejects an action."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class FakeGitHubPost:
    """Send events to the hooks of apps."""

    world: model.FakeGitHubWorld
    shows: FakeGitHubShows
    mail: Mail

    def tell(
        self,
        at: model.FakeGitHubRepository,
        sender: model.FakeGitHubAccount,
        event: str,
        action: str | None,
        /,
        **more: Any,
    ) -> None:
        """Deliver an event of a repository to the app that is installed there."""
        one = self.world.installation_of(at)
        # GitHub delivers nothing to an app that is not installed, or that is suspended.
        if one is None or one.suspended:
            return
        payload: Shown = {} if action is None else {"action": action}
        payload |= more
        payload["repository"] = {**self.shows.full_repository(at), **more.get("repository", {})}
        payload["sender"] = self.shows.user(sender)
        payload["installation"] = {"id": one.id, "node_id": node("Installation", one.id)}
        self.mail.post(self.mail.make(event, action, payload, one.app.hook_url, one.app.hook_secret, one.app.id))

    def of_pull(self, pull: model.FakeGitHubPull, sender: model.FakeGitHubAccount, action: str, **more: Any) -> None:
        """Deliver an event of a pull request."""
        pull.updated_s = self.world.clock.now_s()
        pull.deeds.append(
            model.FakeGitHubTimelineEntry(action, sender, pull.updated_s, more.get("label", {}).get("name", ""))
        )
        # A delivery shows the mergeability that is known, and does not have it computed.
        shown = self.shows.pull(pull, Asker(sender), asks=False)
        self.tell(pull.repository, sender, "pull_request", action, number=pull.number, pull_request=shown, **more)


@dataclass(frozen=True, slots=True)
class Pulls:
    """Pull requests and the branches under them."""

    world: model.FakeGitHubWorld
    post: FakeGitHubPost

    def open(
        self,
        repository: model.FakeGitHubRepository,
        head_repository: model.FakeGitHubRepository,
        head: str,
        base: str,
        who: model.FakeGitHubAccount,
        title: str,
        body: str | None,
        draft: bool,
    ) -> model.FakeGitHubPull:
        """Open a pull request."""
        tip, base_tip = hosts.heads(head_repository).get(head), hosts.heads(repository).get(base)
        if tip is None or base_tip is None:
            raise FakeGitHubRefused(422, "Validation Failed")
        now_s, number = self.world.clock.now_s(), next(repository.numbers)
        label = f"{head_repository.owner.login}:{head}"
        pull = model.FakeGitHubPull(
            number, next(self.world.ids), repository, head_repository, label, head, tip, base, base_tip, who, title,
            body, now_s, now_s, draft,
        )  # fmt: skip
        repository.pulls[number] = pull
        hosts.bring(head_repository, repository, tip, f"refs/pull/{number}/head")
        self.post.of_pull(pull, who, "opened")
        return pull

    def close(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount) -> None:
        """Close it without merging."""
        pull.state, pull.closed_s = "closed", self.world.clock.now_s()
        self.post.of_pull(pull, who, "closed")

    def reopen(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount) -> None:
        """Open it again."""
        pull.state, pull.closed_s = "open", None
        self.post.of_pull(pull, who, "reopened")

    def edit(
        self,
        pull: model.FakeGitHubPull,
        who: model.FakeGitHubAccount,
        title: str | None = None,
        body: str | None = None,
        base: str | None = None,
    ) -> None:
        """Change its text, or its target branch."""
        changes: Shown = {}
        if title is not None:
            changes["title"], pull.title = {"from": pull.title}, title
        if body is not None:
            changes["body"], pull.body = {"from": pull.body or ""}, body
        if base is not None:
            changes["base"] = {"ref": {"from": pull.base_ref}, "sha": {"from": pull.base_sha}}
            pull.base_ref, pull.base_sha = base, hosts.heads(pull.repository)[base]
        self.post.of_pull(pull, who, "edited", changes=changes)

    def set_draft(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, draft: bool) -> None:
        """Make it a draft, or ready for review."""
        pull.draft = draft
        self.post.of_pull(pull, who, "converted_to_draft" if draft else "ready_for_review")

    def pushed(
        self, repository: model.FakeGitHubRepository, who: model.FakeGitHubAccount, before: dict[str, str]
    ) -> None:
        """Find moved branches: announce them, update heads of pull requests, and mark landed ones as merged."""
        after = hosts.heads(repository)
        repository.pushed_s = self.world.clock.now_s()
        for branch in sorted({*before, *after}):
            old, new = before.get(branch, hosts.ZERO), after.get(branch, hosts.ZERO)
            if old != new:
                self._tell_push(repository, who, branch, old, new)
                self._follow_heads(repository, who, branch, old, new)
                self._mark_merged(repository, who, branch, new)

    def _tell_push(
        self, repository: model.FakeGitHubRepository, who: model.FakeGitHubAccount, branch: str, old: str, new: str
    ) -> None:
        gone, born = new == hosts.ZERO, old == hosts.ZERO
        commits = [] if gone else self._commits(repository, old, new)
        shown_owner = {"name": repository.owner.login, "email": None}
        self.post.tell(
            repository, who, "push", None,
            ref=f"refs/heads/{branch}", before=old, after=new, created=born, deleted=gone,
            forced=not (gone or born or hosts.contains(repository, new, old)), base_ref=None,
            compare=f"{self.post.shows.web}/{repository.full_name}/compare/{old[:12]}...{new[:12]}",
            commits=commits, head_commit=commits[-1] if commits else None,
            pusher={"name": who.login, "email": f"{who.id}@users.noreply.github.com"},
            repository={
                "owner": {**self.post.shows.user(repository.owner), **shown_owner},
                "created_at": int(repository.created_s), "pushed_at": int(repository.pushed_s),
                "stargazers": 0, "master_branch": repository.default_branch,
            },
        )  # fmt: skip

    def _commits(self, repository: model.FakeGitHubRepository, old: str, new: str) -> list[Shown]:
        git = hosts.opened(repository)
        found: list[Shown] = []
        for one in git.walk(new):
            # A push delivery lists at most 20 commits.
            if str(one.id) == old or len(found) == 20:
                break
            person = {"name": one.author.name, "email": one.author.email, "username": one.author.name}
            url = f"{self.post.shows.web}/{repository.full_name}/commit/{one.id}"
            found.append(
                {
                    "id": str(one.id), "tree_id": str(one.tree_id), "distinct": True, "message": one.message,
                    "timestamp": model.stamp(one.commit_time), "url": url, "author": person, "committer": person,
                    "added": [], "removed": [], "modified": [],
                }
            )  # fmt: skip
        return found[::-1]

    def _follow_heads(
        self, repository: model.FakeGitHubRepository, who: model.FakeGitHubAccount, branch: str, old: str, new: str
    ) -> None:
        for base in self.world.repositories.values():
            for pull in base.pulls.values():
                if pull.head_repository is not repository or pull.head_ref != branch or pull.state != "open":
                    continue
                # GitHub closes a pull request whose branch is deleted.
                if new == hosts.ZERO:
                    self.close(pull, who)
                    continue
                pull.head_sha = new
                hosts.bring(repository, base, new, f"refs/pull/{pull.number}/head")
                self.post.of_pull(pull, who, "synchronize", before=old, after=new)

    def _mark_merged(
        self, repository: model.FakeGitHubRepository, who: model.FakeGitHubAccount, branch: str, tip: str
    ) -> None:
        """Mark a pull request whose head is in its base as merged, no matter who pushed it."""
        for pull in repository.pulls.values():
            affected = pull.base_ref == branch and pull.state == "open" and tip != hosts.ZERO
            if affected and hosts.contains(repository, tip, pull.head_sha):
                self._merged(pull, who, tip)

    def _merged(self, pull: model.FakeGitHubPull, who: model.FakeGitHubAccount, commit: str) -> None:
        pull.state, pull.closed_s = "closed", self.world.clock.now_s()
        pull.merged, pull.merged_by, pull.merge_commit_sha = True, who, commit
        self.post.of_pull(pull, who, "closed")

    def merge(
        self,
        pull: model.FakeGitHubPull,
        asker: Asker,
        sha: str | None,
        method: str,
        title: str | None,
        message: str | None,
    ) -> str:
        """Merge it as the button does; return the new tip of the base.  Raise FakeGitHubRefused."""
        repository = pull.repository
        allowed = {
            "merge": repository.allow_merge_commit,
            "squash": repository.allow_squash_merge,
            "rebase": repository.allow_rebase_merge,
        }
        if sha is not None and sha != pull.head_sha:
            raise FakeGitHubRefused(409, "Head branch was modified. Review and try the merge again.")
        if pull.merged or pull.state != "open" or pull.draft:
            raise FakeGitHubRefused(
                405, "Pull Request is not mergeable" if not pull.draft else "Pull Request is still a draft"
            )
        if not allowed[method]:
            words = {"merge": "Merge commits are", "squash": "Squash merges are", "rebase": "Rebase merges are"}
            raise FakeGitHubRefused(405, f"{words[method]} not allowed on this repository.")
        # Until the test merge is computed, GitHub refuses with the same words as after a push to the base.
        if mergeability(self.world, pull) is None:
            raise FakeGitHubRefused(405, "Base branch was modified. Review and try the merge again.")
        words_unmet = unmet(pull, asker, method)
        if words_unmet:
            raise FakeGitHubRefused(405, "Repository rule violations found\n\n" + "\n\n".join(words_unmet))
        before = hosts.heads(repository)
        signature = hosts.signature(asker.account, self.world.clock.now_s())
        subject = title or f"Merge pull request #{pull.number} from {pull.head_label.replace(':', '/')}"
        text = f"{subject}\n\n{pull.title if message is None else message}"
        tip = hosts.merge(pull, before[pull.base_ref], method, text, signature)
        if tip is None:
            raise FakeGitHubRefused(405, "Pull Request has merge conflicts")
        hosts.point(repository, f"refs/heads/{pull.base_ref}", tip)
        # Before `pushed`, which would otherwise find the head in
        # its base and mark the pull request as merged by a push.
        self._merged(pull, asker.account, tip)
        self.pushed(repository, asker.account, before)
        return tip
