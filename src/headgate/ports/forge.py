"""Define the interface between Headgate and a forge, where changes are proposed, reported on and landed.

A driver is level-triggered: `sightings` compares the forge with the known state, so the first poll finds everything
that happened while nobody polled.  Deliveries of webhooks and lines of event streams are hints, which only say where to
poll first. Headgate records reports and landings before it requests them, in order for each change, and repeats each
request until it is done; a driver must handle a repeated request like the first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from headgate.base.errors import ForgeError
from headgate.config.operator.model import Protection, TenantProject
from headgate.gate.state.change import Change, ChangeState, TriggerEvent
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.connections import ButtonOrder, Hint
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import ReporterAway, ReportPutOff, ReportRefused

__all__ = ["ButtonOrder", "Hint", "Protection", "ReportPutOff", "ReportRefused", "ReporterAway"]


class Sighting(msgspec.Struct, frozen=True):
    """Hold the result of one poll of the repositories: new states of changes, and the events that describe the
    difference.

    The two belong together: they are stored in one commit.
    """

    change_states: tuple[ChangeState, ...] = ()
    """Changes that are new or have changed; one with open=False no longer exists."""
    events: tuple[TriggerEvent, ...] = ()
    heads: dict[str, dict[str, str]] = {}
    """project -> ref -> commit, of every project whose branch heads moved."""
    refs: dict[str, dict[str, str]] = {}
    """project -> tag or other ref -> object that it names now, of the refs that moved; empty if the ref was deleted.
    The first poll of a project returns all its refs here, without events for them."""
    lingering: dict[str, frozenset[str]] = {}
    """project -> keys of closed changes whose refs still exist, of every project that was polled. Headgate remembers
    these changes, which would otherwise seem to be proposed again."""
    protections: dict[str, Protection] = {}
    """project -> what the forge says about its branches, sent with their heads or before them, for projects that are
    `is_selective`. It may be sent again unchanged. While the forge does not answer, the project is absent and its
    earlier value remains valid."""
    problems: dict[str, str] = {}
    """project -> a message about what is wrong with its repository now; empty once the problem is solved."""
    orders: tuple[tuple[str, ButtonOrder], ...] = ()
    """(key of a change, order about it); the person who gives the order may write to the project."""
    answered: tuple[str, ...] = ()
    """Ids of the hints that this poll has handled; Headgate removes them when it stores the sighting."""


@runtime_checkable
class ByProject(Protocol):
    """Give access to the known changes of one project, without reading other projects."""

    def of_project(self, project: str) -> Mapping[str, ChangeState]:
        """Return key -> change state, of the changes of a project."""
        ...


def of_project(known: Mapping[str, ChangeState], project: str) -> dict[str, ChangeState]:
    """Return the known states of the changes of a project, without reading other projects if `known` allows that."""
    # A connection may know very many changes, but a poll concerns those of one project.
    if isinstance(known, ByProject):
        return dict(known.of_project(project))
    return {key: change_state for key, change_state in known.items() if change_state.change.project == project}


class ForgeWatch(Protocol):
    """Watch a connection."""

    name: str

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """Set the projects to poll, by canonical name, from the next call of `sightings` on."""
        ...

    def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Compare the repositories with what is known (key -> change state; project -> branch -> commit; project ->
        other ref -> object that it names), and again whenever something changes there. A yielded sighting has been
        stored when the next one is requested.

        The code that stores a sighting reads the footers and completes `needs`: a driver fills `bases` and `needs` only
        with what the forge itself knows. A change state that is `untold` has landed through the gate, and an event for
        that is due.
        """
        ...

    def stir(self, hint: Hint) -> None:
        """Check soon where the hint says; `Sighting.answered` names the hint once that is done. Hints about unknown
        changes, or about projects that are not polled, are answered as well."""
        ...


class Abilities(msgspec.Struct, frozen=True):
    """State what a forge can do. Headgate neither asks nor reports what a forge cannot do."""

    lands: str = ""
    """merge: the forge merges on request; push: a merger pushes the tested commit itself, as with plain git, and the
    driver marks the change at the forge (`Shows`); empty: nothing lands there."""
    numbers: bool = True
    """Whether its changes have numbers."""
    votes: bool = False
    labels: bool = False
    statuses: bool = False
    checks: bool = False
    topics: bool = False
    hashtags: bool = False
    drafts: bool = False
    threads: bool = False
    file_comments: bool = False
    webhooks: bool = False
    any_case: bool = False
    """Whether names of projects are the same regardless of case."""
    edits: bool = False
    """Whether Headgate edits its earlier comment there. Where it cannot, an outdated comment stays."""
    protection: bool = False
    """Whether it reports which branches are protected or locked. If not, all count as protected and none as locked."""


class Ignored(NamedTuple):
    """Represent a genuine delivery that carries nothing of interest."""

    why: str


class Unsure(NamedTuple):
    """Represent a delivery that cannot be verified before the project's secret has been fetched from the forge."""

    ask: Callable[[], Awaitable[None]]
    """Fetches the secret from the forge, and never raises; afterwards the same delivery can be verified or refused."""


class Misdelivered(ForgeError):
    """Report that this is not a delivery from the forge: it is unsigned, wrongly signed, or malformed."""

    def __init__(self, why: str, status: int = 401) -> None:
        """Take the reason (`why`): the operator of the forge sees it in the answer, so it must not reveal secrets."""
        super().__init__(why)
        self.status = status
        """HTTP status of the answer: 401 for a wrong signature, 400 for a wrong form."""


class MergeLanded(msgspec.Struct, frozen=True):
    """Report that the change is merged."""

    commit: str = ""
    """Head of the branch after the merge; empty when it is the tested commit."""
    differs: bool = False
    """Whether the tree differs from the tested one: people are alarmed, and everything based on it is tested again."""


class NotLanded(msgspec.Struct, frozen=True):
    """Report that the forge refuses to merge the change."""

    why: str
    """Human-readable reason in the forge's words, with what to do."""
    moved: bool = False
    """Whether the only reason is that the branch has moved since the test; the change is then tested again."""


class Hears(Protocol):
    """Accept webhook deliveries, which say where something may have happened."""

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored | Unsure:
        """Verify a delivery, without a request to the forge, and return its hint. `headers`: names in lower case. Raise
        Misdelivered."""
        ...


class Forge(ForgeWatch, Hears, Protocol):
    """Connect to a forge, where changes are proposed, reported on and landed.

    Methods that call the forge raise ReporterAway while it does not answer, or, with the time to wait, while the budget
    of requests is used up. They raise ReportPutOff if only this request has to wait.
    """

    can: Abilities

    def named(self, url: str) -> str:
        """Return the key of the change that has this URL, whether or not the change exists, without a request to the
        forge; empty if it is not the URL of a change here. People write these URLs, so trailing parts and old forms
        are accepted."""
        ...

    async def look_up(self, key: str) -> ChangeState | None:
        """Fetch the current state of a change from the forge, even in a project that no tenant watches; return None if
        there is no such change."""
        ...

    async def report(self, outgoing: OutboxMessage) -> None:
        """Report at the change, as the message's `how` says: votes, statuses, labels, text. A report with a repeated
        key is made once, as far as the forge allows. Raise ReportRefused if the forge will never accept it."""
        ...

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """Merge one change at a forge that merges itself: only the patchset that was tested, into a branch whose head
        is one on which it was tested (`is_tested_on`). Then compare the merged tree with the tested one
        (`tested_tree`). Return MergeLanded also for a change that has already been merged. Raise ReportPutOff, and be
        called again, while the forge has not decided whether the change can be merged."""
        ...


@runtime_checkable
class Shows(Protocol):
    """Declare what a forge offers in addition if changes land by a push."""

    async def conclude(self, change: Change, commit: str) -> None:
        """End a change that has landed as `commit` by a push but is still open: mark it as merged if the forge allows
        that, otherwise close it. Called after the landing was reported. Raise ReporterAway, ReportPutOff,
        ReportRefused."""
        ...


def is_tested_on(work: LandRequest, change: Change, head: str) -> bool:
    """Return whether the branch of the change may have this head as the change lands: what the change was tested on, or
    what the queue has landed since.  Any head is accepted if it is not known what the change was tested on."""
    base = work.state.heads.get(change.project, {}).get(f"refs/heads/{change.branch}", "")
    return not base or head == base or head in work.after


def tested_tree(work: LandRequest, change: Change) -> str:
    """Return the tree that the branch must have after the landing; empty if it is unknown, or if the branch has it only
    after later steps."""
    # Later steps still add to this branch, so the tested tree appears only with the last of them.
    more = any((one.change.project, one.change.branch) == (change.project, change.branch) for one in work.later)
    return "" if more else work.state.trees.get(change.project, {}).get(change.branch, "")


def merge_mode(work: LandRequest, change: Change) -> str:
    """Return the merge mode of the test: merge, squash-merge, cherry-pick, rebase."""
    own = (one.mode for one in work.state.chain if (one.project, one.commit) == (change.project, change.commit))
    return next(own, "merge")
