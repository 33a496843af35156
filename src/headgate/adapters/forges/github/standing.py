"""What is known of a change, made of a pull request: with its files, who may do what, and the rules in force."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

import pygit2
from msgspec.structs import replace

from headgate.adapters.forges.github.client import Client
from headgate.adapters.forges.github.happenings import Mark, events, marked
from headgate.adapters.forges.github.pull import Pull
from headgate.adapters.forges.github.rules import BYPASSES, lacking, rule_book
from headgate.adapters.forges.rest import Denied, Key, NotThere, Rejected
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.looking.names import HEADS
from headgate.adapters.git.objects.series import few, files
from headgate.base.texts import line
from headgate.config.forges.facts import Details, Happening, Vote
from headgate.gate.change import Change, Standing, TriggerEvent

MESSAGE_MAX_CHARS, FOOTERS_MAX_CHARS = 16_000, 4_000
"""Of a longer message the middle is left out."""
LABELS_MAX, STATUSES_MAX, TITLE_MAX = 100, 500, 500
FRESH_S = 600.0
"""For so long what somebody may do, and whether we may bypass a ruleset, is taken as it was."""
KNOWN_MAX = 4_096


class Stands:
    """Makes standings of one GitHub."""

    def __init__(self, client: Client, engine: Callable[[], GitEngine], now_s: Callable[[], float] = time.time) -> None:
        self._client, self._engine, self._now_s = client, engine, now_s
        self._permissions: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        """owner/name and login -> until when, and what."""
        self._bypasses: OrderedDict[tuple[str, int], tuple[float, bool]] = OrderedDict()

    async def of(
        self,
        key: Key,
        project: str,
        pull: Pull,
        was: Standing | None,
        us: Collection[str],
        heads: Mapping[str, str],
        *,
        first: bool,
    ) -> tuple[Standing, list[TriggerEvent]]:
        """Return the standing of a pull request of `project` (canonical name), and what happened since `was`.

        `heads`: ref -> commit of its branches.  Raise ReporterAway, Denied, Rejected, NotThere."""
        same = was is not None and was.change.commit == pull.head and was.change.branch == pull.base
        paths = was.change.files if was is not None and same else None
        if paths is None and pull.state == "OPEN":
            paths = await self._files(project, pull, heads)
        change = Change(
            connection=self._client.account.name,
            project=project,
            branch=pull.base,
            commit=pull.head,
            ref=f"refs/pull/{pull.number}/head",
            message=_cut(pull.message.replace("\0", "\ufffd")),
            owner=pull.author.name,
            url=pull.url,
            files=paths,
            number=str(pull.number),
            base=pull.base_commit,
            title=line(pull.title, TITLE_MAX),
        )
        if was is not None and same:
            change = replace(change, needs=was.change.needs, unresolved=was.change.unresolved)
        details = await self._details(key, pull, us, Mark.of(was.details.mark if was and was.details else ""))
        approved = pull.head if pull.decision == "APPROVED" else ""
        now = Standing(change, pull.state == "OPEN", approved, pull.state == "MERGED", details=details)
        at_ms = int(self._now_s() * 1000)
        told = list(events(now, was, pull, frozenset(us), at_ms, first=first))
        return now, [await self._with_permission(key, pull.project, event) for event in told]

    async def _files(self, project: str, pull: Pull, heads: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return what it changes, as git says, which knows no limit; None: that cannot be told yet."""
        head = heads.get(HEADS + pull.base, "")
        if not head:
            return None
        try:
            mirror = self._engine().mirror(project, self._client.account.name)
            if await mirror.bring({f"refs/pull/{pull.number}/head": pull.head, HEADS + pull.base: head}):
                return None
            return few((await files(mirror, head, {pull.head}))[pull.head])
        except (GitError, OSError, pygit2.GitError):
            return None  # who merges it asks again

    async def _details(self, key: Key, pull: Pull, us: Collection[str], mark: Mark) -> Details:
        votes = tuple([await self._vote(key, pull, vote) for vote in pull.votes])
        rules = None
        if pull.state == "OPEN":
            bypassed = {id for id in lacking(pull, us) if await self._bypasses_ruleset(key, pull.project, id)}
            rules = rule_book(pull, us, bypassed)
        return Details(
            us=tuple(us),
            state=pull.state,
            draft=pull.draft,
            votes=votes,
            approved=pull.decision == "APPROVED" if pull.decision else None,
            statuses=tuple(one.status for one in pull.reports[:STATUSES_MAX]),
            labels=pull.labels[:LABELS_MAX],
            unresolved=pull.unresolved,
            mergeable=pull.mergeable,
            rules=rules,
            mark=marked(pull, mark).text,
        )

    # --- who may do what

    async def _vote(self, key: Key, pull: Pull, vote: Vote) -> Vote:
        pushes = {one.who.name: one.pushes for one in (*pull.reviews, *pull.opinions)}.get(vote.who.name, False)
        may = await self.permission(key, pull.project, vote.who.name) if pushes else "read"
        return replace(vote, who=replace(vote.who, permission=may or "write"))

    async def _with_permission(self, key: Key, project: str, event: TriggerEvent) -> TriggerEvent:
        said = event.happening
        if said is None or said.who is None or not said.who.name:
            return event
        who = replace(said.who, permission=await self.permission(key, project, said.who.name))
        votes = tuple(replace(vote, who=who) if vote.who.name == who.name else vote for vote in said.votes)
        happening: Happening = replace(said, who=who, votes=votes)
        return replace(event, happening=happening)

    async def permission(self, key: Key, project: str, login: str) -> str:
        """Return read, write, admin or none; empty: that is not known."""
        now_s = self._now_s()
        until_s, known = self._permissions.get((project, login), (0.0, ""))
        if until_s > now_s:
            return known
        try:
            answer = await self._client.get(key, f"/repos/{project}/collaborators/{login}/permission")
            known = str(answer.said["permission"])
        except NotThere:
            known = "none"
        except (Denied, Rejected):
            known = ""
        self._permissions[project, login] = (now_s + FRESH_S, known)
        while len(self._permissions) > KNOWN_MAX:
            self._permissions.popitem(last=False)
        return known

    async def _bypasses_ruleset(self, key: Key, project: str, id: int) -> bool:
        now_s = self._now_s()
        until_s, known = self._bypasses.get((project, id), (0.0, False))
        if until_s > now_s:
            return known
        try:
            answer = await self._client.get(key, f"/repos/{project}/rulesets/{id}")
            known = answer.said.get("current_user_can_bypass") in BYPASSES
        except (NotThere, Denied, Rejected):
            known = False
        self._bypasses[project, id] = (now_s + FRESH_S, known)
        while len(self._bypasses) > KNOWN_MAX:
            self._bypasses.popitem(last=False)
        return known

    def forget_rules(self) -> None:
        """Ask anew whether rulesets may be bypassed: somebody changed them."""
        self._bypasses.clear()


def _cut(message: str) -> str:
    """Return what fits: what is told of a change is stored many times over; its footers are at the end."""
    if len(message) <= MESSAGE_MAX_CHARS:
        return message
    return f"{message[: MESSAGE_MAX_CHARS - FOOTERS_MAX_CHARS]}\n[…]\n{message[-FOOTERS_MAX_CHARS:]}"
