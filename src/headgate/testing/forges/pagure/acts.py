"""Perform what happens on the stand-in for Pagure, send webhooks about it, and let pages show it and do it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import FakeGitHubAccount
from headgate.testing.forges.pages import BY_BRANCH, ChangeMark, PageChange, PageRemark
from headgate.testing.forges.pagure import model

STATUSES = ("success", "failure", "error", "pending", "canceled")
"""States of a flag."""
_THUMBS = {":thumbsup:": "approved", ":thumbsdown:": "asked for changes"}
"""Vote in a comment -> what pages call it."""


class FakePagureRefused(Exception):
    """Report that Pagure rejects an action."""

    def __init__(self, status: int, message: str, code: str = "ENOCODE", errors: Any = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.errors = status, message, code, errors


@dataclass(frozen=True, slots=True)
class FakePagureActs:
    """Perform actions on the forge."""

    world: model.FakePagureWorld
    post: model.FakePagurePost

    # --- pull requests

    def open(
        self,
        project: model.FakePagureProject,
        home: model.FakePagureProject,
        head: str,
        base: str,
        who: FakeGitHubAccount,
        title: str,
        text: str,
    ) -> model.FakePagureRequest:
        """Open a pull request.  Raise FakePagureRefused."""
        if project.options["pull_request_access_only"] and not self.world.level(project, who.login):
            raise FakePagureRefused(403, "You are not allowed to open pull-requests", "EPULLREQUESTSDISABLED")
        now_s, number, tip = self.world.clock.now_s(), next(project.numbers), hosts.heads(home)[head]
        hosts.bring(home, project, tip, f"refs/pull/{number}/head")
        request = model.FakePagureRequest(
            number, uuid.uuid4().hex, project, home, head, base, tip, tip, who, title, text or None, now_s, now_s
        )
        self._begin(request)
        project.requests[number] = request
        self.post.of_request(request, who, "new")
        return request

    def _begin(self, request: model.FakePagureRequest) -> None:
        base = hosts.heads(request.project).get(request.branch, "")
        own = hosts.own_commits(request, base) if base else []
        request.commit_start = own[0] if own else request.commit_stop

    def close(self, request: model.FakePagureRequest, who: FakeGitHubAccount, *, merged: bool = False) -> None:
        """Close the pull request."""
        request.status, request.closed_by = "Merged" if merged else "Closed", who
        self._say_itself(request, who, f"Pull-Request has been {'merged' if merged else 'closed'} by {who.login}")
        self.post.of_request(request, who, "closed", merged=merged)

    def reopen(self, request: model.FakePagureRequest, who: FakeGitHubAccount) -> None:
        """Open it again."""
        request.status, request.closed_by = "Open", None
        self._say_itself(request, who, f"Pull-Request has been reopened by {who.login}")
        self.post.of_request(request, who, "reopened")

    def edit(self, request: model.FakePagureRequest, who: FakeGitHubAccount, **what: Any) -> None:
        """Change its title, initial comment or branch."""
        for name, value in what.items():
            setattr(request, name, value)
        # Another target branch needs another test merge.
        if "branch" in what:
            request.merge_status = "unknown"
        self.post.of_request(request, who, "initial_comment.edited")

    def assign(self, request: model.FakePagureRequest, who: FakeGitHubAccount, to: FakeGitHubAccount | None) -> None:
        """Assign it to somebody."""
        request.assignee = to
        word = f"**Metadata Update from @{who.login}**:\n- Request assigned" if to else "**Metadata Update**"
        self._say_itself(request, who, word)

    def tag(self, request: model.FakePagureRequest, who: FakeGitHubAccount, name: str, *, off: bool = False) -> None:
        """Add a tag, or remove it."""
        # Nothing changes, so Pagure sends no message.
        if (name in request.tags) is not off:
            return
        request.tags = [one for one in request.tags if one != name] + ([] if off else [name])
        self._say_itself(request, who, f"**Metadata Update from @{who.login}**:\n- Pull-request tagged: {name}")
        topic = f"pull-request.tag.{'removed' if off else 'added'}"
        shown = self.post.shows.request(request)
        self.post.tell(request.project, who, topic, pull_request=shown, tags=[name])

    def pushed(self, project: model.FakePagureProject, who: FakeGitHubAccount, before: dict[str, str]) -> None:
        """Find moved branches: announce them, and update heads of pull requests."""
        after = hosts.heads(project)
        for branch in sorted({*before, *after}):
            old, new = before.get(branch), after.get(branch)
            if old != new:
                self._tell_push(project, who, branch, old, new)
                self._follow(project, who, branch, new)

    def _tell_push(
        self, project: model.FakePagureProject, who: FakeGitHubAccount, branch: str, old: str | None, new: str | None
    ) -> None:
        repo = self.post.shows.project(project)
        if old is None or new is None:
            topic = "git.branch.creation" if old is None else "git.branch.deletion"
            self.post.tell(project, who, topic, repo=repo, branch=branch, rev=new or old)
        if new is not None:
            push = {"branch": branch, "start_commit": new, "end_commit": new, "total_commits": 1, "forced": False}
            self.post.tell(project, who, "git.receive", repo=repo, **push)

    def _follow(self, home: model.FakePagureProject, who: FakeGitHubAccount, branch: str, new: str | None) -> None:
        for project in self.world.projects.values():
            for request in project.requests.values():
                if request.status != "Open":
                    continue
                # A push to the target branch outdates the test merge.
                if project is home and request.branch == branch:
                    request.merge_status = "unknown"
                # A push to the source branch adds commits to the request.
                if request.project_from is home and request.branch_from == branch and new:
                    request.commit_stop, request.merge_status = new, "unknown"
                    hosts.bring(home, project, new, f"refs/pull/{request.id}/head")
                    self._begin(request)
                    request.updated_s = self.world.clock.now_s()
                    if self.world.announces:
                        self._say_itself(request, who, "**1 new commit added**\n\n * ``Change``")

    def view(self, request: model.FakePagureRequest) -> str:
        """Load its page, which makes Pagure compute how it can be merged; return the result."""
        base = hosts.heads(request.project).get(request.branch, "")
        if not base or hosts.contains(request.project, base, request.commit_stop):
            request.merge_status = "NO_CHANGE"
        elif hosts.contains(request.project, request.commit_stop, base):
            request.merge_status = "FFORWARD"
        else:
            tree = hosts.merged_tree(request.project, base, request.commit_stop)
            request.merge_status = "CONFLICTS" if tree is None else "MERGE"
        return request.merge_status

    def merge(  # noqa: C901 - the forge's rules, one after the other
        self, request: model.FakePagureRequest, who: FakeGitHubAccount
    ) -> str:
        """Merge it as the API call does; return the call's answer, which may be wrong. Raise FakePagureRefused."""
        project, options = request.project, request.project.options
        if not self.world.commits(project, who.login):
            raise FakePagureRefused(
                403, "You are not allowed to merge/close pull-request for this project", "ENOPRCLOSE"
            )
        if options["Only_assignee_can_merge_pull-request"]:
            if request.assignee is None:
                raise FakePagureRefused(403, "This request must be assigned to be merged", "ENOTASSIGNED")
            if request.assignee is not who:
                raise FakePagureRefused(403, "Only the assignee can merge this request", "ENOTASSIGNEE")
        # The setting is -1 while no score is required.
        if project.threshold > 0 and request.score < project.threshold:
            why = "This request does not have the minimum review score necessary to be merged"
            raise FakePagureRefused(403, why, "EPRSCORE")
        if request.status != "Open":
            by = request.closed_by.login if request.closed_by else "?"
            raise FakePagureRefused(400, f"This pull-request was merged or closed by {by}")
        # Pagure hands merges to a worker; without one, they stay queued forever.
        if not self.world.worker:
            return "Merging queued"
        how = self.view(request)
        if how == "CONFLICTS":
            raise FakePagureRefused(
                500 if self.world.breaks else 409, "This pull-request conflicts and thus cannot be merged"
            )
        if how == "NO_CHANGE":
            raise FakePagureRefused(400, "Nothing to do, changes were already merged")
        if how == "FFORWARD" and not options["always_merge"]:
            tip: str | None = request.commit_stop
        elif how == "MERGE" and options["disable_non_fast-forward_merges"]:
            return "Changes merged!"  # it says so, and has not
        else:
            signature = hosts.signature(who, self.world.clock.now_s())
            base = hosts.heads(project)[request.branch]
            tip = hosts.merge(request, base, "merge", f"Merge #{request.id} `{request.title}`", signature)
        before = hosts.heads(project)
        hosts.point(project, f"refs/heads/{request.branch}", tip)
        self.close(request, who, merged=True)
        self.pushed(project, who, before)
        return "Changes merged!"

    # --- comments and flags

    def comment(
        self, request: model.FakePagureRequest, who: FakeGitHubAccount, text: str, commit: str | None = None
    ) -> model.FakePagureComment:
        """Comment on it; with `commit`, on a line of that commit."""
        one = model.FakePagureComment(next(self.world.ids), who, text, self.world.clock.now_s(), commit=commit)
        request.comments.append(one)
        self.post.of_request(request, who, "comment.added")
        return one

    def _say_itself(self, request: model.FakePagureRequest, who: FakeGitHubAccount, text: str) -> None:
        now_s = self.world.clock.now_s()
        request.comments.append(model.FakePagureComment(next(self.world.ids), who, text, now_s, notification=True))
        self.post.of_request(request, who, "comment.added")

    def flag(
        self, flags: list[model.FakePagureFlag], who: FakeGitHubAccount, form: dict[str, str]
    ) -> tuple[model.FakePagureFlag, str]:
        """Set a flag; return it, and the word with which Pagure describes the change. Raise FakePagureRefused."""
        # Pagure reports all invalid fields together.
        missing = {name: ["This field is required."] for name in ("username", "comment", "url") if not form.get(name)}
        if len(form.get("uid", "")) > 32:
            missing["uid"] = ["Field cannot be longer than 32 characters."]
        if form.get("status", "pending") not in STATUSES:
            missing["status"] = ["Not a valid choice."]
        if missing:
            raise FakePagureRefused(400, "Invalid or incomplete input submitted", "EINVALIDREQ", missing)
        now_s, uid = self.world.clock.now_s(), form.get("uid") or uuid.uuid4().hex
        # A flag with a known uid replaces the earlier one.
        found = next((one for one in flags if one.uid == uid), None)
        word = "added" if found is None else "updated"
        if found is None:
            found = model.FakePagureFlag(uid, who, form["username"], "", "", "", now_s, now_s)
            flags.append(found)
        found.status, found.comment, found.url = form.get("status", "pending"), form["comment"], form["url"]
        found.updated_s = now_s
        return found, word

    def flag_request(
        self, request: model.FakePagureRequest, who: FakeGitHubAccount, form: dict[str, str]
    ) -> tuple[model.FakePagureFlag, str]:
        """Flag a pull request.  Raise FakePagureRefused."""
        flag, word = self.flag(request.flags, who, form)
        shows = self.post.shows
        shown, of = shows.flag(flag), shows.request(request)
        self.post.tell(request.project, who, f"pull-request.flag.{word}", pullrequest=of, flag=shown)
        return flag, word

    def set_options(self, project: model.FakePagureProject, who: FakeGitHubAccount, **what: Any) -> None:
        """Change the options of a project."""
        # Names of options contain hyphens, which keyword arguments cannot have.
        project.options |= {name.replace("__", "-"): value for name, value in what.items()}
        self.post.tell(project, who, "project.edit", project=self.post.shows.project(project))


@dataclass(frozen=True, slots=True)
class PagurePageActions:
    """Implement `pages.PageActions` for Pagure."""

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

    def _projects(self) -> list[model.FakePagureProject]:
        every = self.acts.world.projects.items()
        return [one for name, one in every if not one.private and not name.startswith("forks/")]

    def _account(self, login: str) -> FakeGitHubAccount:
        return self.acts.world.accounts[login]

    def path(self, pull: model.FakePagureRequest) -> str:
        """Return the path of a pull request's page."""
        return f"{self.root}/{pull.project.fullname}/pull-request/{pull.id}"

    def _pull(self, path: str) -> model.FakePagureRequest:
        every = (pull for one in self._projects() for pull in one.requests.values())
        return next(pull for pull in every if self.path(pull) == path)

    def _seen(self, pull: model.FakePagureRequest) -> PageChange:
        marks = (ChangeMark(_name(one.username), one.status, one.comment, one.url) for one in pull.flags)
        return PageChange(
            self.path(pull), f"{pull.project.fullname}#{pull.id}", pull.title, pull.user.login if pull.user else "",
            pull.status.lower(), pull.branch_from, pull.branch, pull.initial_comment or "", tuple(pull.tags),
            tuple(marks), tuple(_remarks(pull)),
        )  # fmt: skip


def _name(username: str) -> str:
    """Return the subject of a flag, without the name of the program in front of it."""
    return username.partition(": ")[2] or username


def _remarks(pull: model.FakePagureRequest) -> Iterator[PageRemark]:
    for one in pull.comments:
        verb = next((word for thumb, word in _THUMBS.items() if thumb in one.text), "commented")
        yield PageRemark(one.user.login, one.at_s, "noted" if one.notification else verb, one.text)
