"""What happens on the forge, whoever does it: each act changes the world and sends its webhooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.testing.forges.github import hosting
from headgate.testing.forges.github.mail import Mail
from headgate.testing.forges.github.rules import Asker, unmet
from headgate.testing.forges.github.shown import Shown, Shows, mergeability, node
from headgate.testing.forges.github.state import (
    Account,
    Deed,
    Pull,
    Repository,
    World,
    stamp,
)


class Refused(Exception):
    """GitHub does not do it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class Post:
    """Tells the hooks of apps what happened."""

    world: World
    shows: Shows
    mail: Mail

    def tell(self, at: Repository, sender: Account, event: str, action: str | None, /, **more: Any) -> None:
        """Deliver an event of a repository to the app that is installed there."""
        one = self.world.installation_of(at)
        if one is None or one.suspended:
            return
        said: Shown = {} if action is None else {"action": action}
        said |= more
        said["repository"] = {**self.shows.full_repository(at), **more.get("repository", {})}
        said["sender"] = self.shows.user(sender)
        said["installation"] = {"id": one.id, "node_id": node("Installation", one.id)}
        self.mail.post(self.mail.make(event, action, said, one.app.hook_url, one.app.hook_secret, one.app.id))

    def of_pull(self, pull: Pull, sender: Account, action: str, **more: Any) -> None:
        """Deliver an event of a pull request."""
        pull.updated_s = self.world.clock.now_s()
        pull.deeds.append(Deed(action, sender, pull.updated_s, more.get("label", {}).get("name", "")))
        shown = self.shows.pull(pull, Asker(sender), asks=False)
        self.tell(pull.repository, sender, "pull_request", action, number=pull.number, pull_request=shown, **more)


@dataclass(frozen=True, slots=True)
class Pulls:
    """Pull requests and the branches under them."""

    world: World
    post: Post

    def open(
        self,
        repository: Repository,
        head_repository: Repository,
        head: str,
        base: str,
        who: Account,
        title: str,
        body: str | None,
        draft: bool,
    ) -> Pull:
        """Open a pull request."""
        tip, base_tip = hosting.heads(head_repository).get(head), hosting.heads(repository).get(base)
        if tip is None or base_tip is None:
            raise Refused(422, "Validation Failed")
        now_s, number = self.world.clock.now_s(), next(repository.numbers)
        label = f"{head_repository.owner.login}:{head}"
        pull = Pull(
            number, next(self.world.ids), repository, head_repository, label, head, tip, base, base_tip, who, title,
            body, now_s, now_s, draft,
        )  # fmt: skip
        repository.pulls[number] = pull
        hosting.bring(head_repository, repository, tip, f"refs/pull/{number}/head")
        self.post.of_pull(pull, who, "opened")
        return pull

    def close(self, pull: Pull, who: Account) -> None:
        """Close it without merging."""
        pull.state, pull.closed_s = "closed", self.world.clock.now_s()
        self.post.of_pull(pull, who, "closed")

    def reopen(self, pull: Pull, who: Account) -> None:
        """Open it again."""
        pull.state, pull.closed_s = "open", None
        self.post.of_pull(pull, who, "reopened")

    def edit(
        self, pull: Pull, who: Account, title: str | None = None, body: str | None = None, base: str | None = None
    ) -> None:
        """Change what it says, or where it goes."""
        changes: Shown = {}
        if title is not None:
            changes["title"], pull.title = {"from": pull.title}, title
        if body is not None:
            changes["body"], pull.body = {"from": pull.body or ""}, body
        if base is not None:
            changes["base"] = {"ref": {"from": pull.base_ref}, "sha": {"from": pull.base_sha}}
            pull.base_ref, pull.base_sha = base, hosting.heads(pull.repository)[base]
        self.post.of_pull(pull, who, "edited", changes=changes)

    def set_draft(self, pull: Pull, who: Account, draft: bool) -> None:
        """Make it a draft, or ready for review."""
        pull.draft = draft
        self.post.of_pull(pull, who, "converted_to_draft" if draft else "ready_for_review")

    def pushed(self, repository: Repository, who: Account, before: dict[str, str]) -> None:
        """See what moved: tell of the branches, take heads of pull requests over, mark merged what has landed."""
        after = hosting.heads(repository)
        repository.pushed_s = self.world.clock.now_s()
        for branch in sorted({*before, *after}):
            old, new = before.get(branch, hosting.ZERO), after.get(branch, hosting.ZERO)
            if old != new:
                self._tell_push(repository, who, branch, old, new)
                self._follow_heads(repository, who, branch, old, new)
                self._mark_merged(repository, who, branch, new)

    def _tell_push(self, repository: Repository, who: Account, branch: str, old: str, new: str) -> None:
        gone, born = new == hosting.ZERO, old == hosting.ZERO
        commits = [] if gone else self._commits(repository, old, new)
        shown_owner = {"name": repository.owner.login, "email": None}
        self.post.tell(
            repository, who, "push", None,
            ref=f"refs/heads/{branch}", before=old, after=new, created=born, deleted=gone,
            forced=not (gone or born or hosting.contains(repository, new, old)), base_ref=None,
            compare=f"{self.post.shows.web}/{repository.full_name}/compare/{old[:12]}...{new[:12]}",
            commits=commits, head_commit=commits[-1] if commits else None,
            pusher={"name": who.login, "email": f"{who.id}@users.noreply.github.com"},
            repository={
                "owner": {**self.post.shows.user(repository.owner), **shown_owner},
                "created_at": int(repository.created_s), "pushed_at": int(repository.pushed_s),
                "stargazers": 0, "master_branch": repository.default_branch,
            },
        )  # fmt: skip

    def _commits(self, repository: Repository, old: str, new: str) -> list[Shown]:
        git = hosting.opened(repository)
        found: list[Shown] = []
        for one in git.walk(new):
            if str(one.id) == old or len(found) == 20:
                break
            person = {"name": one.author.name, "email": one.author.email, "username": one.author.name}
            url = f"{self.post.shows.web}/{repository.full_name}/commit/{one.id}"
            found.append(
                {
                    "id": str(one.id), "tree_id": str(one.tree_id), "distinct": True, "message": one.message,
                    "timestamp": stamp(one.commit_time), "url": url, "author": person, "committer": person,
                    "added": [], "removed": [], "modified": [],
                }
            )  # fmt: skip
        return found[::-1]

    def _follow_heads(self, repository: Repository, who: Account, branch: str, old: str, new: str) -> None:
        for base in self.world.repositories.values():
            for pull in base.pulls.values():
                if pull.head_repository is not repository or pull.head_ref != branch or pull.state != "open":
                    continue
                if new == hosting.ZERO:
                    self.close(pull, who)
                    continue
                pull.head_sha = new
                hosting.bring(repository, base, new, f"refs/pull/{pull.number}/head")
                self.post.of_pull(pull, who, "synchronize", before=old, after=new)

    def _mark_merged(self, repository: Repository, who: Account, branch: str, tip: str) -> None:
        """A pull request whose head is in its base is merged, whoever pushed it."""
        for pull in repository.pulls.values():
            its = pull.base_ref == branch and pull.state == "open" and tip != hosting.ZERO
            if its and hosting.contains(repository, tip, pull.head_sha):
                self._merged(pull, who, tip)

    def _merged(self, pull: Pull, who: Account, commit: str) -> None:
        pull.state, pull.closed_s = "closed", self.world.clock.now_s()
        pull.merged, pull.merged_by, pull.merge_commit_sha = True, who, commit
        self.post.of_pull(pull, who, "closed")

    def merge(
        self, pull: Pull, asker: Asker, sha: str | None, method: str, title: str | None, message: str | None
    ) -> str:
        """Merge it as the button does; return the new tip of the base.  Raise Refused."""
        repository = pull.repository
        allowed = {
            "merge": repository.allow_merge_commit,
            "squash": repository.allow_squash_merge,
            "rebase": repository.allow_rebase_merge,
        }
        if sha is not None and sha != pull.head_sha:
            raise Refused(409, "Head branch was modified. Review and try the merge again.")
        if pull.merged or pull.state != "open" or pull.draft:
            raise Refused(405, "Pull Request is not mergeable" if not pull.draft else "Pull Request is still a draft")
        if not allowed[method]:
            words = {"merge": "Merge commits are", "squash": "Squash merges are", "rebase": "Rebase merges are"}
            raise Refused(405, f"{words[method]} not allowed on this repository.")
        if mergeability(self.world, pull) is None:
            raise Refused(405, "Base branch was modified. Review and try the merge again.")
        words_unmet = unmet(pull, asker, method)
        if words_unmet:
            raise Refused(405, "Repository rule violations found\n\n" + "\n\n".join(words_unmet))
        before = hosting.heads(repository)
        who = hosting.signature(asker.account, self.world.clock.now_s())
        subject = title or f"Merge pull request #{pull.number} from {pull.head_label.replace(':', '/')}"
        text = f"{subject}\n\n{pull.title if message is None else message}"
        tip = hosting.merge(pull, before[pull.base_ref], method, text, who)
        if tip is None:
            raise Refused(405, "Pull Request has merge conflicts")
        hosting.point(repository, f"refs/heads/{pull.base_ref}", tip)
        self._merged(pull, asker.account, tip)
        self.pushed(repository, asker.account, before)
        return tip
