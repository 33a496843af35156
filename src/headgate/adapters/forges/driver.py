"""Share code among the drivers of forges with numbered changes; see `ports.forge.Forge`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol
from urllib.parse import parse_qsl

import pygit2

from headgate.adapters.forges.accounts import OnTheWeb
from headgate.adapters.forges.rest import ForgeDenied, ForgeServerError, NotThere, Rejected, Rest, expected_form
from headgate.adapters.forges.watch import Watching
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import HEADS
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import ChangeState, numbered, storable
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import Abilities, Hint, MergeLanded, Misdelivered, NotLanded, Sighting
from headgate.ports.reporter import ReporterAway, ReportPutOff

MERGES_MAX = 200
"""How many commits of a branch are searched for a merge."""

FORM_MAX_BYTES = 1 << 19
"""Largest delivery that is sent as a form: parsing one blocks all other requests, and its sender may not be verified
yet."""

AWAITED_MAX = 1_000
"""Maximum number of awaited results that are remembered at a time."""


class Tells(Protocol):
    """Report on changes."""

    async def tell(self, outgoing: OutboxMessage) -> None: ...


class Lands(Protocol):
    """Merge changes."""

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded: ...


class RestDriver(ABC):
    """Watch one forge, report to it and merge there; verifying deliveries is up to the driver."""

    can: Abilities
    page: re.Pattern[str]
    """Pattern of the path of a change's page, with the project's name and the change's number."""

    def __init__(self, account: OnTheWeb, rest: Rest, watching: Watching, teller: Tells, lander: Lands) -> None:
        self.name = account.name
        self._at, self._rest = account, rest
        self._watching, self._teller, self._lander = watching, teller, lander

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """Set the projects to watch; see `ports.forge.ForgeWatch`."""
        self._watching.look_at(projects)

    def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Yield what is new at the watched projects; see `ports.forge.ForgeWatch`."""
        return self._watching.sightings(known, heads, refs)

    def stir(self, hint: Hint) -> None:
        """Poll soon what a hint names; see `ports.forge.Forge`."""
        self._watching.stir(hint)

    def named(self, url: str) -> str:
        """Return the key of the change at a URL; see `ports.forge.Forge`."""
        found = self.page.fullmatch(self._at.below(url))
        # `int` drops leading zeros, so that each change has a single key.
        return numbered(self._at.canonical(found[1]), str(int(found[2]))) if found is not None else ""

    async def look_up(self, key: str) -> ChangeState | None:
        """Return the current state of a change from the forge; see `ports.forge.Forge`."""
        project, _, number = key.rpartition("#")
        # A name that `short` leaves unchanged belongs to another connection.
        if not number.isdecimal() or self._at.short(project) == project:
            return None
        try:
            with expected_form():
                change_state = await self.now(project, int(number))
                storable(change_state)
                return change_state
        except (NotThere, ForgeDenied):
            return None
        except Rejected as error:
            raise ReportPutOff(f"{key} cannot be looked up: {error}") from error

    @abstractmethod
    async def now(self, project: str, number: int) -> ChangeState:
        """Return the current state of a change of a project (canonical name). Raise NotThere, ForgeDenied, Rejected,
        ReporterAway."""

    async def report(self, outgoing: OutboxMessage) -> None:
        """Report to the people at a change; see `ports.forge.Forge`."""
        try:
            await self._teller.tell(outgoing)
        except ForgeServerError as error:
            raise ReportPutOff(str(error)) from error

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """Merge a change at the forge; see `ports.forge.Forge`."""
        try:
            return await self._lander.land(work, part)
        except ForgeServerError as error:
            raise ReportPutOff(str(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()


class BranchReader:
    """Read branches of one connection."""

    def __init__(self, engine: Callable[[], GitEngine], connection: str) -> None:
        self._engine, self._connection = engine, connection

    async def head(self, project: str, branch: str) -> str:
        """Return the current commit of a branch; empty if the branch does not exist. Raise ReporterAway."""
        ref = HEADS + branch
        try:
            return (await self._engine().mirror(project, self._connection).remote.refs(ref)).get(ref, "")
        except (GitError, OSError, pygit2.GitError) as error:
            raise ReporterAway(f"{project} cannot be read: {error}") from error

    async def tree(self, project: str, branch: str, commit: str) -> str:
        """Return the tree of a commit on a branch; empty if the branch no longer contains the commit. Raise
        ReporterAway."""
        mirror, head = self._engine().mirror(project, self._connection), await self.head(project, branch)
        try:
            if head and await mirror.bring({HEADS + branch: head}):
                raise ReporterAway(f"{project} cannot be read: {head} cannot be fetched")
            return "" if await mirror.missing((commit,)) else str(mirror.tree(commit).id)
        except (GitError, OSError, KeyError, pygit2.GitError) as error:
            raise ReporterAway(f"{project} cannot be read: {error}") from error

    async def merge_of(self, project: str, branch: str, commit: str) -> str:
        """Return the commit that merged `commit` into a branch; empty if the branch does not contain `commit`, or if
        the merge is more than `MERGES_MAX` commits back. Raise ReporterAway."""
        at = await self.head(project, branch)
        if not at or not await self.tree(project, branch, at):
            return ""
        mirror = self._engine().mirror(project, self._connection)
        for _ in range(MERGES_MAX):
            # Follow first parents: a merged commit is a second parent of a commit of the branch itself.
            parents = mirror.parents(at)
            if at == commit or commit in parents[1:]:
                return at
            if not parents:
                break
            at = parents[0]
        return ""


def is_form(headers: Mapping[str, str]) -> bool:
    """Return whether the JSON is a field of a form, which GitHub and Gitea offer as an alternative."""
    kind, _, _ = headers.get("content-type", "").partition(";")
    return kind.strip().lower() == "application/x-www-form-urlencoded"


def unfolded(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the JSON of a delivery: its body, or the field `payload` of a form.  Raise Misdelivered."""
    if not is_form(headers):
        return body
    advice = "set the content type of the webhook to application/json"
    if len(body) > FORM_MAX_BYTES:
        raise Misdelivered(f"the delivery is a form of more than {FORM_MAX_BYTES} bytes; {advice}", 413)
    try:
        # Without a bound on the fields, a form of half a megabyte is split into a hundred thousand pairs.
        fields = dict(parse_qsl(body.decode(), max_num_fields=8, errors="strict"))
    except ValueError as error:
        raise Misdelivered(f"the delivery is not a form: {error}; {advice}", 400) from error
    if "payload" not in fields:
        raise Misdelivered(f"the delivery is a form without the field payload; {advice}", 400)
    return fields["payload"].encode("utf-8", "replace")


class ForgePatience:
    """Limit how long each result is awaited."""

    def __init__(self, seconds: float, now_s: Callable[[], float]) -> None:
        self._seconds, self._now_s = seconds, now_s
        self._since: dict[str, float] = {}

    def lasts(self, key: str) -> bool:
        """Return whether to continue waiting; once the time is over, return False, and start again at the next call."""
        now_s = self._now_s()
        since_s = self._since.setdefault(key, now_s)
        while len(self._since) > AWAITED_MAX:
            self._since.pop(next(iter(self._since)))
        if now_s - since_s <= self._seconds:
            return True
        self.forget(key)
        return False

    def forget(self, key: str) -> None:
        """Forget how long a result has been awaited."""
        self._since.pop(key, None)
