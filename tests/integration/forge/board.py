"""Provide a new kind of forge, written against the port alone: pull requests in memory, over repositories on disk.

It has pull requests with labels, reviews, statuses and comments; it merges, and sends signed deliveries, which may be
lost. It uses only `ports.forge` and the records of a change.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.git.connection import GitConnection
from headgate.base.errors import UserError
from headgate.base.ids import derived, fresh
from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, ProgramStatus, Vote
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import ZEROS, Change, ChangeState, EventKind, TriggerEvent, numbered
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import (
    Abilities,
    Hint,
    Ignored,
    MergeLanded,
    Misdelivered,
    NotLanded,
    Protection,
    ReporterAway,
    ReportPutOff,
    ReportRefused,
    Sighting,
    is_tested_on,
    tested_tree,
)
from headgate.testing.repositories import Repositories, run_git

US, HOST, SECRET = "gatekeeper", "board.example", b"only the two of us know"
_URL = re.compile(rf"https?://{re.escape(HOST)}/(?P<project>.+)/pulls/(?P<number>\d+)(?:[/?#].*)?$")


@dataclass(slots=True)
class Pull:
    """Represent one pull request."""

    project: str
    number: int
    branch: str
    head: str
    title: str
    body: str = ""
    open: bool = True
    merged: str = ""
    draft: bool = False
    labels: set[str] = field(default_factory=set)
    votes: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    """Comments of Headgate."""
    happened: list[tuple[EventKind, ForgeEvent]] = field(default_factory=list)

    @property
    def key(self) -> str:
        return numbered(f"{HOST}/{self.project}", str(self.number))

    @property
    def url(self) -> str:
        return f"https://{HOST}/{self.project}/pulls/{self.number}"


def connect(given: DriverOptions) -> Connected:
    """Create the driver as the registry does."""
    if len(given.options["token"]) < 8:
        raise UserError("the token is not a token")
    board = Board(given.directory / given.options.get("place", "board"), given.name)
    return Connected(board.git, board)


class Board:
    """Implement `ports.forge.Forge`."""

    def __init__(self, root: Path, name: str = "board", lands: str = "merge") -> None:
        self.name = name
        self.can = Abilities(
            lands=lands, labels=True, statuses=True, drafts=True, webhooks=True, protection=True, any_case=True
        )
        self.repositories = Repositories(root)
        self.git = GitConnection(name, str(self.repositories.hub), HOST)
        self.pulls: dict[str, Pull] = {}
        self.looks = self.lookups = 0
        self.away = ""
        """Reason for which it does not answer."""
        self.undecided = 0
        """Number of answers that leave open whether something can be merged."""
        self.refuses = ""
        """Reason for which it merges nothing."""
        self.mute = ""
        """Reason for which it accepts no comments."""
        self.meanwhile: dict[str, str] = {}
        """Project -> file that somebody pushes to it at the moment of a merge."""
        self.calls: list[str] = []
        self.blind = False
        """Whether it fails to notice that a branch contains a proposal."""
        self.protections: dict[str, Protection] = {}
        """Project -> protection of its branches."""
        self._watched: dict[str, TenantProject] = {}
        self._stirred = asyncio.Event()
        self._hints: list[str] = []

    # --- what people do

    def propose(
        self, project: str, title: str, files: Mapping[str, str], body: str = "", branch: str = "master"
    ) -> Pull:
        """Open a pull request."""
        number = 1 + sum(one.project == project for one in self.pulls.values())
        work = self.repositories.work(project)
        run_git("fetch", "-q", "origin", at=work)
        run_git("checkout", "-q", "--detach", f"refs/remotes/origin/{branch}", at=work)
        self.repositories.write(project, files)
        run_git("commit", "-q", "--allow-empty", "-m", title, at=work)
        run_git("push", "-q", "-f", "origin", f"HEAD:refs/pull/{number}/head", at=work)
        pull = Pull(project, number, branch, run_git("rev-parse", "HEAD", at=work), title, body)
        self.pulls[pull.key] = pull
        pull.happened.append((EventKind.PROPOSED, ForgeEvent("pull_request", "opened")))
        return pull

    def amend(self, pull: Pull, files: Mapping[str, str]) -> None:
        """Push one more commit to it."""
        work = self.repositories.work(pull.project)
        run_git("checkout", "-q", "--detach", pull.head, at=work)
        self.repositories.write(pull.project, files)
        run_git("commit", "-q", "-m", "more", at=work)
        run_git("push", "-q", "-f", "origin", f"HEAD:refs/pull/{pull.number}/head", at=work)
        pull.head = run_git("rev-parse", "HEAD", at=work)
        pull.statuses.clear()
        pull.happened.append((EventKind.PROPOSED, ForgeEvent("pull_request", "changed")))

    def label(self, pull: Pull, label: str) -> None:
        pull.labels.add(label)
        pull.happened.append((EventKind.STIRRED, ForgeEvent("pull_request", "labeled", added=(label,))))

    def review(self, pull: Pull, who: str, value: str) -> None:
        pull.votes[who] = value
        pull.happened.append((EventKind.STIRRED, ForgeEvent("pull_request_review", "submitted", state=value)))

    def comment(self, pull: Pull, text: str) -> None:
        pull.happened.append((EventKind.STIRRED, ForgeEvent("pull_request", "comment", comments=(text,))))

    def merge(self, pull: Pull) -> None:
        """Merge the pull request as a person does with the button."""
        pull.merged, pull.open = self._merge(pull), False
        pull.happened.append((EventKind.MERGED, ForgeEvent("pull_request", "closed")))

    def close(self, pull: Pull) -> None:
        pull.open = False
        pull.happened.append((EventKind.ABANDONED, ForgeEvent("pull_request", "closed")))

    def reopen(self, pull: Pull) -> None:
        pull.open = True
        pull.happened.append((EventKind.PROPOSED, ForgeEvent("pull_request", "opened")))

    def delivery(self, pull: Pull) -> tuple[dict[str, str], bytes]:
        """Return the delivery of the forge about it."""
        body = json.dumps({"project": pull.project, "number": pull.number, "id": fresh()}).encode()
        return self.signed(body), body

    @staticmethod
    def signed(body: bytes) -> dict[str, str]:
        return {"X-Board-Signature": hmac.new(SECRET, body, hashlib.sha256).hexdigest()}

    # --- the port

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        self._watched = dict(projects)

    def stir(self, hint: Hint) -> None:
        self._hints.append(hint.id)
        self._stirred.set()

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        signed = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signed, headers.get("x-board-signature", "")):
            raise Misdelivered("the signature is wrong: see that the secret is the same here and there")
        try:
            delivered = json.loads(body)
            project, number, id = str(delivered["project"]), int(delivered["number"]), str(delivered["id"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Misdelivered(f"it is no delivery: {error}", 400) from error
        if number == 0:
            return Ignored("nobody wants to know that")
        return Hint(id, f"{HOST}/{project}", str(number))

    def named(self, url: str) -> str:
        found = _URL.match(url)
        return numbered(f"{HOST}/{found['project']}", found["number"]) if found else ""

    async def look_up(self, key: str) -> ChangeState | None:
        self._answer("look up")
        self.lookups += 1
        pull = self.pulls.get(key)
        if pull is not None:
            self._mark(pull)
        return self._change_state(pull, None)[0] if pull is not None else None

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        while True:
            self._stirred.clear()
            answered, self._hints = tuple(self._hints), []
            self.looks += 1
            change_states, events = list[ChangeState](), list[TriggerEvent]()
            moved = dict[str, dict[str, str]]()
            for pull in self.pulls.values():
                self._mark(pull)
                if f"{HOST}/{pull.project}" in self._watched:
                    change_state, happened = self._change_state(pull, known.get(pull.key))
                    events += happened
                    change_states += [change_state] if happened or change_state != known.get(pull.key) else []
            for project in self._watched:
                now = self._heads(project.removeprefix(f"{HOST}/"))
                if now != heads.get(project):
                    moved[project] = now
                    events += self._moves(project, heads.get(project), now)
            selective = (name for name, source in self._watched.items() if source.is_selective)
            protections = {name: self.protections[name] for name in selective if name in self.protections}
            if change_states or events or moved or answered or protections:
                yield Sighting(tuple(change_states), tuple(events), moved, protections=protections, answered=answered)
            await self._stirred.wait()

    async def report(self, outgoing: OutboxMessage) -> None:
        self._answer("report")
        if self.mute and not outgoing.how.get("status"):
            raise ReportRefused(self.mute)
        assert outgoing.change is not None, "it is a forge"
        pull, how = self.pulls[outgoing.change.key], outgoing.how
        if (state := how.get("status")) is not None:
            pull.statuses[f"{outgoing.report.tenant}/{outgoing.report.pipeline}"] = state
        pull.labels |= set(_list(how.get("label")))
        pull.labels -= set(_list(how.get("unlabel")))
        if how.get("comment", True) and outgoing.key not in self.calls:
            pull.messages.append(outgoing.report.message)
        self.calls.append(outgoing.key)

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        self._answer("land")
        pull = self.pulls[part.change.key]
        if pull.merged:
            return MergeLanded(pull.merged)
        if pull.head != part.change.commit or not pull.open:
            return NotLanded(f"{pull.url} is closed, or has another head")
        if self.undecided:
            self.undecided -= 1
            raise ReportPutOff("whether it can be merged is still looked at")
        if self.refuses:
            return NotLanded(self.refuses)
        if pull.statuses.get(f"example/{work.pipeline}") != "success":
            return NotLanded("a status of the gate is required")
        before = self.repositories.head(pull.project, pull.branch)
        if not is_tested_on(work, part.change, before):
            return NotLanded(f"{pull.branch} has moved", moved=True)
        if (path := self.meanwhile.pop(pull.project, "")) != "":
            self.push(pull.project, {path: "past the gate"})
        self.merge(pull)
        self._stirred.set()
        tree = run_git("rev-parse", f"{pull.merged}^{{tree}}", at=self.repositories.hub / pull.project)
        return MergeLanded(pull.merged, differs=tested_tree(work, part.change) not in ("", tree))

    async def conclude(self, change: Change, commit: str) -> None:
        self._answer("conclude")
        self.close(self.pulls[change.key])
        self._stirred.set()

    # --- how it does that

    def _answer(self, call: str) -> None:
        self.calls.append(call)
        if self.away:
            raise ReporterAway(self.away)

    def push(self, project: str, files: Mapping[str, str], branch: str = "master") -> None:
        """Push past the gate; a new branch begins at master."""
        work = self.repositories.work(project)
        run_git("fetch", "-q", "origin", at=work)
        run_git("checkout", "-q", "--detach", "origin/master", at=work)
        self.repositories.write(project, files)
        run_git("commit", "-q", "-m", "past the gate", at=work)
        run_git("push", "-q", "-f", "origin", f"HEAD:refs/heads/{branch}", at=work)
        self._stirred.set()

    def protect(self, project: str, *protected: str, locked: tuple[str, ...] = ()) -> None:
        """Set which of its branches are protected, and which are locked."""
        self.protections[f"{HOST}/{project}"] = Protection(frozenset(protected), frozenset(locked))
        self._stirred.set()

    def _merge(self, pull: Pull) -> str:
        work = self.repositories.work(pull.project)
        run_git("fetch", "-q", "origin", f"refs/pull/{pull.number}/head", at=work)
        run_git("fetch", "-q", "origin", at=work)
        run_git("checkout", "-q", "--detach", f"origin/{pull.branch}", at=work)
        run_git("merge", "-q", "--no-ff", "-m", f"Merge {pull.url}", pull.head, at=work)
        run_git("push", "-q", "origin", f"HEAD:refs/heads/{pull.branch}", at=work)
        return run_git("rev-parse", "HEAD", at=work)

    def _mark(self, pull: Pull) -> None:
        """Mark a pull request as merged once its branch contains its head, whoever pushed it."""
        bare = self.repositories.hub / pull.project
        if (
            pull.open
            and not self.blind
            and run_git("for-each-ref", "--contains", pull.head, f"refs/heads/{pull.branch}", at=bare)
        ):
            pull.merged, pull.open = self.repositories.head(pull.project, pull.branch), False
            pull.happened.append((EventKind.MERGED, ForgeEvent("pull_request", "closed")))

    def _heads(self, project: str) -> dict[str, str]:
        lines = run_git(
            "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/", at=self.repositories.hub / project
        )
        return dict(line.split() for line in lines.splitlines())  # type: ignore[misc]  # two words

    def _moves(self, project: str, before: Mapping[str, str] | None, now: Mapping[str, str]) -> list[TriggerEvent]:
        found = []
        for ref in sorted({*(before or {}), *now}) if before is not None else ():
            old, new = (before or {}).get(ref, ZEROS), now.get(ref, ZEROS)
            if old != new:
                branch = ref.removeprefix("refs/heads/")
                change = Change(self.name, project, branch, commit=new, old_commit=old, ref=ref)
                happening = ForgeEvent("push")
                found.append(TriggerEvent(EventKind.REF_UPDATED, change, derived(ref, old, new), happening=happening))
        return found

    def _change_state(self, pull: Pull, was: ChangeState | None) -> tuple[ChangeState, list[TriggerEvent]]:
        change = Change(
            self.name,
            f"{HOST}/{pull.project}",
            pull.branch,
            commit=pull.head,
            ref=f"refs/pull/{pull.number}/head",
            message=f"{pull.title}\n\n{pull.body}",
            title=pull.title,
            owner="ann",
            url=pull.url,
            number=str(pull.number),
            needs=was.change.needs if was is not None else (),
            ignored=was.change.ignored if was is not None else (),
            files=self._files(pull),
        )
        votes = tuple(Vote(ForgeAccount(who, "", "write"), "review", value, 1) for who, value in pull.votes.items())
        mine = tuple(ProgramStatus(US, name, state) for name, state in pull.statuses.items())
        details = Details(
            us=(US,),
            draft=pull.draft,
            votes=votes,
            statuses=mine,
            labels=tuple(sorted(pull.labels)),
            mark=str(len(pull.happened)),
        )
        known = int(was.details.mark) if was is not None and was.details is not None and was.details.mark else 0
        events = [
            TriggerEvent(kind, change, derived(pull.key, str(number)), 1, number == 0, happening=happening)
            for number, (kind, happening) in enumerate(pull.happened)
            if number >= known
        ]
        return ChangeState(change, open=pull.open, landed=bool(pull.merged), details=details), events

    def _files(self, pull: Pull) -> tuple[str, ...]:
        bare = self.repositories.hub / pull.project
        base = run_git("merge-base", f"refs/heads/{pull.branch}", pull.head, at=bare)
        return tuple(run_git("diff", "--name-only", base, pull.head, at=bare).splitlines())


def _list(value: object) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else [str(one) for one in value]  # type: ignore[attr-defined]
