"""Perform what happens on the stand-in for GitLab, send webhooks about it, and let pages show it and do it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab import model
from headgate.testing.forges.gitlab.views import FakeGitLabPost
from headgate.testing.forges.pages import BY_BRANCH, ChangeMark, PageChange, PageRemark

ZEROS = "0" * 40
NOTE_MAX = 1_000_000
_QUICK = re.compile(r"^/(merge|approve|close|reopen|label|unlabel|draft|ready)\b *(.*)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FROM = {"pending": ("pending", "running"), "running": ("running",)}
"""State -> the states from which a status cannot change to it."""


class FakeGitLabRefused(Exception):
    """Report that GitLab rejects an action."""

    def __init__(self, status: int, message: str, *, plain: bool = False) -> None:
        """Refuse with a status and a message; if `plain`, the answer has the message as `error`, as for wrong
        tokens."""
        super().__init__(message)
        self.status, self.message, self.plain = status, message, plain


@dataclass(frozen=True, slots=True)
class FakeGitLabActs:
    """Perform actions on the forge."""

    world: model.FakeGitLabWorld
    post: FakeGitLabPost

    # --- branches

    def pushed(self, project: model.FakeGitLabProject, who: model.FakeGitLabUser, before: dict[str, str]) -> None:
        """Process moved branches: update heads of merge requests, and mark landed ones as merged."""
        after = hosts.heads(project)
        for branch in sorted(before.keys() | after.keys()):
            old, new = before.get(branch, ZEROS), after.get(branch, ZEROS)
            if old != new:
                self.post.of_push(project, who, f"refs/heads/{branch}", old, new)
                self._follow(project, who, branch, new)

    def _follow(self, project: model.FakeGitLabProject, who: model.FakeGitLabUser, branch: str, tip: str) -> None:
        for home in list(self.world.projects.values()):
            for one in home.requests.values():
                if one.state != "opened" or tip == ZEROS:
                    continue
                if one.source is project and one.source_branch == branch and one.sha != tip:
                    self._renew(one, who, tip)
                elif one.project is project and one.target_branch == branch:
                    if hosts.contains(project, tip, one.sha):
                        self._merged(one, who)
                    else:
                        one.undecided = self.world.undecided_asks

    def _renew(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser, tip: str) -> None:
        old, one.sha = one.sha, tip
        one.undecided = self.world.undecided_asks
        if not one.project.keeps_approvals:
            one.approvers.clear()
        self._point(one)
        self.post.of_request(one, who, "update", oldrev=old)

    def _point(self, one: model.FakeGitLabMergeRequest) -> None:
        assert one.source is not None, "who pushes has a branch"
        hosts.bring(one.source, one.project, one.sha, f"refs/merge-requests/{one.iid}/head")

    # --- merge requests

    def open(
        self,
        project: model.FakeGitLabProject,
        source: model.FakeGitLabProject,
        branch: str,
        target: str,
        author: model.FakeGitLabUser,
        title: str,
        text: str,
    ) -> model.FakeGitLabMergeRequest:
        """Open a merge request."""
        now_s = self.world.clock.now_s()
        one = model.FakeGitLabMergeRequest(
            next(self.world.ids), len(project.requests) + 1, project, source, branch, target, author, title, text,
            hosts.heads(source)[branch], now_s, now_s, undecided=self.world.undecided_asks,
        )  # fmt: skip
        project.requests[one.iid] = one
        self._point(one)
        self.post.of_request(one, author, "open")
        return one

    def edit(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser, **what: str) -> None:
        """Change title, description or target_branch."""
        changes = {name: {"previous": getattr(one, name), "current": text} for name, text in what.items()}
        for name, text in what.items():
            setattr(one, name, text)
        self.post.of_request(one, who, "update", changes=changes)

    def label(
        self,
        one: model.FakeGitLabMergeRequest,
        who: model.FakeGitLabUser,
        add: tuple[str, ...] = (),
        remove: tuple[str, ...] = (),
    ) -> None:
        """Add some labels, and remove others."""
        old = list(one.labels)
        one.labels[:] = [name for name in dict.fromkeys((*old, *add)) if name not in remove]
        if one.labels != old:
            changes = {
                "labels": {"previous": [{"title": n} for n in old], "current": [{"title": n} for n in one.labels]}
            }
            self.post.of_request(one, who, "update", changes=changes)

    def close(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser) -> None:
        """Close it."""
        if one.state == "opened":
            one.state = "closed"
            self.post.of_request(one, who, "close")

    def reopen(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser) -> None:
        """Open it again."""
        if one.state == "closed":
            one.state = "opened"
            self.post.of_request(one, who, "reopen")

    def merge(
        self,
        one: model.FakeGitLabMergeRequest,
        who: model.FakeGitLabUser,
        sha: str,
        squash: bool = False,
        message: str = "",
        squash_message: str = "",
    ) -> None:
        """Merge it.  Raise FakeGitLabRefused."""
        if not one.project.may_merge(who, one.target_branch):
            raise FakeGitLabRefused(401, "401 Unauthorized")
        if model.detailed(one) != "mergeable":
            raise FakeGitLabRefused(405 if one.state != "opened" or one.draft else 422, "Branch cannot be merged")
        if sha and sha != one.sha:
            raise FakeGitLabRefused(409, f"SHA does not match HEAD of source branch: {one.sha}")
        before = hosts.heads(one.project)
        model.merge(one, who, squash, message, squash_message, self.world.clock.now_s())
        self._merged(one, who)
        self.pushed(one.project, who, before)

    def _merged(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser) -> None:
        one.state, one.merged_by = "merged", who
        self.post.of_request(one, who, "merge")

    # --- approvals, notes and statuses

    def approve(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser, sha: str = "") -> None:
        """Approve it.  Raise FakeGitLabRefused."""
        # GitLab answers alike to a second approval and to a missing right.
        if who in one.approvers or one.project.level(who) < model.DEVELOPER:
            raise FakeGitLabRefused(401, "401 Unauthorized")
        if sha and sha != one.sha:
            raise FakeGitLabRefused(409, "SHA does not match HEAD of source branch")
        one.approvers.append(who)
        one.approved_s[who.id] = self.world.clock.now_s()
        self.post.of_request(one, who, "approved" if model.approved(one) else "approval")

    def unapprove(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser) -> None:
        """Withdraw an approval. Raise FakeGitLabRefused."""
        if who not in one.approvers:
            raise FakeGitLabRefused(404, "404 Not found")
        was_approved = model.approved(one)
        one.approvers.remove(who)
        self.post.of_request(one, who, "unapproved" if was_approved else "unapproval")

    def note(
        self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser, body: str, *, resolvable: bool = False
    ) -> model.Note | None:
        """Comment on a merge request. Lines with quick actions are carried out and are not part of the comment;
        return None if nothing else was in it. Raise FakeGitLabRefused."""
        text = self._acted(one, who, body)
        if not text.strip():
            return None
        note = model.Note(next(self.world.ids), who, text, self.world.clock.now_s(), resolvable=resolvable)
        one.notes.append(note)
        self.post.of_note(one, note)
        one.updated_s = self.world.clock.now_s()
        return note

    def renote(self, one: model.FakeGitLabMergeRequest, note: model.Note, body: str) -> None:
        """Change the text of a note."""
        note.body = self._acted(one, note.author, body)

    def _acted(self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser, body: str) -> str:
        """Perform the quick actions in a comment and return the rest. Blocks of code are not searched for them."""
        if len(body) > NOTE_MAX:
            raise FakeGitLabRefused(400, "400 Bad request - Note is too long (maximum is 1000000 characters)")
        outside = _CODE.sub("", body)
        for name, more in _QUICK.findall(outside):
            names = tuple(part.strip(' ~"') for part in more.split() if part)
            match name:
                case "merge":
                    self.merge(one, who, "")
                case "approve":
                    self.approve(one, who)
                case "close":
                    self.close(one, who)
                case "reopen":
                    self.reopen(one, who)
                case "label":
                    self.label(one, who, add=names)
                case "unlabel":
                    self.label(one, who, remove=names)
        return body if outside == _QUICK.sub("", outside) else _QUICK.sub("", body)

    def resolve(self, one: model.FakeGitLabMergeRequest, note: model.Note) -> None:
        """Resolve a thread; no delivery announces it."""
        note.resolved = True
        one.updated_s = self.world.clock.now_s()

    def status(
        self,
        project: model.FakeGitLabProject,
        who: model.FakeGitLabUser,
        sha: str,
        ref: str,
        name: str,
        state: str,
        about: str | None,
        url: str | None,
    ) -> model.FakeGitLabStatus:
        """Set a status of a commit. Raise FakeGitLabRefused."""
        known = {one.name: one for one in project.jobs(sha, ref)}.get(name)
        if known is not None and known.state in ("pending", "running"):
            if known.state in _FROM.get(state, ()):
                word = "run" if state == "running" else "enqueue"
                why = f'Status cannot transition via "{word}"'
                raise FakeGitLabRefused(
                    400, f"Cannot transition status via :{word} from :{known.state} (Reason(s): {why})"
                )
            project.statuses.remove(known)
        now_s = self.world.clock.now_s()
        made = model.FakeGitLabStatus(next(self.world.ids), sha, ref, name, state, who, now_s, about, url)
        project.statuses.append(made)
        # The first status of a commit makes a pipeline, to which all later ones belong.
        project.pipelines.setdefault((sha, ref), made.id)
        self.post.of_pipeline(project, project.jobs(sha, ref)[0].author, ref, sha, state)
        return made


@dataclass(frozen=True, slots=True)
class GitLabPageActions:
    """Implement `pages.PageActions` for GitLab."""

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

    def _projects(self) -> list[model.FakeGitLabProject]:
        return [one for one in self.acts.world.projects.values() if not one.private]

    def _request(self, path: str) -> model.FakeGitLabMergeRequest:
        every = (one for project in self._projects() for one in project.requests.values())
        return next(one for one in every if _path(one) == path)


def _path(one: model.FakeGitLabMergeRequest) -> str:
    return f"/{one.project.path}/-/merge_requests/{one.iid}"


def _seen(one: model.FakeGitLabMergeRequest) -> PageChange:
    jobs = one.source.jobs(one.sha, one.source_branch) if one.source is not None else []
    return PageChange(
        _path(one), f"{one.project.path}!{one.iid}", one.title, one.author.username,
        "open" if one.state == "opened" else one.state, one.source_branch, one.target_branch, one.description,
        tuple(one.labels),
        tuple(ChangeMark(job.name, job.state, job.description or "", job.target_url or "") for job in jobs),
        (*_notes(one), *_approvals(one)),
    )  # fmt: skip


def _notes(one: model.FakeGitLabMergeRequest) -> Iterator[PageRemark]:
    for note in one.notes:
        yield PageRemark(note.author.username, note.at_s, "noted" if note.system else "commented", note.body)


def _approvals(one: model.FakeGitLabMergeRequest) -> Iterator[PageRemark]:
    for user in one.approvers:
        yield PageRemark(user.username, one.approved_s[user.id], "approved")
