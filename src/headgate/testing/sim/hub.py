"""Imitate a forge in memory: pull requests, actions of people, and deliveries that are lost, late or doubled.

It survives every process.  Like a real forge, it decides on its own about every request.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, ProgramStatus, Rule, Vote
from headgate.gate.state.change import Change, ChangeState, EventKind, numbered
from headgate.gate.state.works import Landing, LandRequest
from headgate.testing.sim.judge import Notes
from headgate.testing.sim.worlds import BRANCH, HEAD, HOST, PROJECTS, InvariantBroken, SimWorld

NAME, US, CHECK, GATE = "hub", "gatekeeper", "t/check", "t/gate"
PASSED, FAILED = "success", "failure"
_URL = re.compile(rf"https://{HOST}/(?P<name>[ab])/pull/(?P<number>\d+)")


@dataclass(slots=True)
class SimPull:
    """Represent one pull request."""

    project: str
    number: int
    head: str
    body: str = ""
    open: bool = True
    merged: str = ""
    """Head of the branch after the merge; empty: it is not merged."""
    labels: set[str] = field(default_factory=set)
    approval: int = 0
    """Id of the review that approves its head; 0: there is none."""
    undecided: int = 0
    """Number of further answers that leave open whether it can be merged."""
    happened: list[tuple[EventKind, ForgeEvent]] = field(default_factory=list)
    """All its events, in order."""
    remarks: list[tuple[str, int]] = field(default_factory=list)
    """Heads that somebody wants to have checked again, each with the number of its earlier checks; cleared once it is
    closed.
    """
    reported: set[str] = field(default_factory=set)
    """Keys of the reports that were posted."""

    @property
    def key(self) -> str:
        return numbered(self.project, str(self.number))

    @property
    def url(self) -> str:
        return f"https://{self.project}/pull/{self.number}"


@dataclass(frozen=True, slots=True)
class SimDelivery:
    """Represent what the forge sends about an event."""

    id: str
    project: str
    number: int
    """Number of the pull request; 0: the delivery concerns a branch."""


def named(url: str) -> str:
    """Return the key of the change at an address."""
    found = _URL.fullmatch(url)
    return numbered(f"{HOST}/{found['name']}", found["number"]) if found else ""


@dataclass(slots=True)
class Gestures:
    """Act on the forge; `world` has its branches."""

    world: SimWorld
    chance: random.Random
    faithful: bool = False
    """Whether every delivery arrives exactly once, immediately and in order."""
    dismisses: bool = True
    """Whether a push dismisses approvals."""
    pulls: dict[str, SimPull] = field(default_factory=dict)
    statuses: dict[tuple[str, str], str] = field(default_factory=dict)
    """Commit and context -> state."""
    mail: asyncio.Queue[SimDelivery] = field(default_factory=asyncio.Queue)
    notes: Notes = field(default_factory=Notes)
    """The gate's record of its actions."""
    ours: dict[str, str] = field(default_factory=dict)
    """Key of a change -> the commit of it that the gate has merged."""
    meddles: Callable[[SimPull], None] = lambda pull: None
    """Changes a pull request, as people might, at the very moment when the gate has it merged."""
    away_until_s: float = 0.0
    """Time until which the forge is unreachable, or its rate limit is used up."""
    calls: int = 0
    _ids: int = 0

    def propose(self, project: str, head: str, body: str = "") -> SimPull:
        pull = SimPull(project, 1 + sum(one.project == project for one in self.pulls.values()), head, body)
        self.pulls[pull.key] = pull
        self.world.proposed[head] = pull.key
        self._moved(pull)
        return self._tell(pull, EventKind.PROPOSED, ForgeEvent("pull_request", "opened"))

    def push(self, pull: SimPull, head: str) -> None:
        """Push another head, which nobody has approved if reviews do not outlive a push."""
        pull.head, pull.approval = head, 0 if self.dismisses else pull.approval
        pull.remarks.clear()
        self.world.proposed[head] = pull.key
        self._moved(pull)
        self._tell(pull, EventKind.PROPOSED, ForgeEvent("pull_request", "changed"))

    def approve(self, pull: SimPull) -> None:
        self._ids += 1
        pull.approval = self._ids
        self._tell(pull, EventKind.STIRRED, ForgeEvent("pull_request_review", "submitted", state="approved"))

    def disapprove(self, pull: SimPull) -> None:
        pull.approval = 0
        self._tell(pull, EventKind.STIRRED, ForgeEvent("pull_request_review", "dismissed", state="dismissed"))

    def label(self, pull: SimPull, label: str, *, off: bool = False) -> None:
        (pull.labels.discard if off else pull.labels.add)(label)
        action, added, removed = ("unlabeled", (), (label,)) if off else ("labeled", (label,), ())
        event = ForgeEvent("pull_request", action, added=added, removed=removed)
        self._tell(pull, EventKind.STIRRED, event)

    def comment(self, pull: SimPull, text: str) -> None:
        pull.remarks.append((pull.head, self.checks(pull.head)))
        self._tell(pull, EventKind.STIRRED, ForgeEvent("pull_request", "comment", comments=(text,)))

    def close(self, pull: SimPull) -> None:
        pull.open = False
        pull.remarks.clear()
        self._tell(pull, EventKind.ABANDONED, ForgeEvent("pull_request", "closed"))

    def reopen(self, pull: SimPull) -> None:
        pull.open = True
        self._moved(pull)
        self._tell(pull, EventKind.PROPOSED, ForgeEvent("pull_request", "reopened"))

    def merge(self, pull: SimPull) -> None:
        """Merge the head unconditionally: a person with the button, or the gate."""
        self.world.heads[pull.project] += f"+{pull.head}"
        pull.open, pull.merged = False, self.world.heads[pull.project]
        self._tell(pull, EventKind.MERGED, ForgeEvent("pull_request", "closed"))
        self._branch_moved(pull.project)

    def push_past_the_gate(self, project: str) -> None:
        self.world.foreign += 1
        self.world.heads[project] += f"+foreign{self.world.foreign}"
        self._branch_moved(project)

    def _moved(self, pull: SimPull) -> None:
        # Forges compute whether something can be merged in the background, and answer "unknown" until then.
        pull.undecided = self.chance.randrange(3)

    def _branch_moved(self, project: str) -> None:
        for pull in self.pulls.values():
            if pull.project == project and pull.open:
                self._moved(pull)
        self._send(project, 0)

    def _tell(self, pull: SimPull, kind: EventKind, happening: ForgeEvent) -> SimPull:
        pull.happened.append((kind, happening))
        self._send(pull.project, pull.number)
        return pull

    def _send(self, project: str, number: int) -> None:
        """Send a delivery that may be lost, doubled or late, and so come in another order."""
        self._ids += 1
        delivery, loop = SimDelivery(f"d{self._ids}", project, number), asyncio.get_running_loop()
        chance = self.chance.random()
        # Lost in 30 %, doubled in 20 %.
        for _ in range(1 if self.faithful else 0 if chance < 0.3 else 2 if chance < 0.5 else 1):
            late_s = 0.0 if self.faithful or self.chance.random() < 0.5 else self.chance.random() * 20.0
            loop.call_later(late_s, self.mail.put_nowait, delivery)

    def checks(self, commit: str) -> int:
        """Return how often the check of a commit has ended."""
        ended = (one for one in self.notes.finished_in("check") if one.change.commit == commit)
        return sum(one.result in ("SUCCESS", "FAILURE") for one in ended)


@dataclass(slots=True)
class SimForgeHub(Gestures):
    """Imitate the forge: what it reports, and what it does on request."""

    def change_state(self, pull: SimPull, known: int) -> tuple[ChangeState, list[tuple[int, EventKind, ForgeEvent]]]:
        """Return the state of a pull request, and its events after the first `known`."""
        pull.undecided, waits = max(0, pull.undecided - 1), pull.undecided > 0
        change = Change(
            NAME,
            pull.project,
            BRANCH,
            commit=pull.head,
            ref=f"refs/pull/{pull.number}/head",
            message=f"Change\n\n{pull.body}",
            url=pull.url,
            number=str(pull.number),
            files=("x",),
        )
        person = ForgeAccount("bob", permission="write")
        votes = (Vote(person, "review", "approved", pull.approval),) if pull.approval else ()
        found = ((name, self.statuses.get((pull.head, name))) for name in (CHECK, GATE))
        statuses = tuple(ProgramStatus(US, name, state) for name, state in found if state)
        missing = () if self.statuses.get((pull.head, GATE)) == PASSED else (GATE,)
        details = Details(
            us=(US,),
            state="MERGED" if pull.merged else "OPEN" if pull.open else "CLOSED",
            votes=votes,
            statuses=statuses,
            labels=tuple(sorted(pull.labels)),
            mergeable=None if waits else True,
            rules=(
                Rule("needs an approving review", None if waits else bool(pull.approval)),
                Rule("needs its status", not missing, missing=missing),
            ),
            mark=str(len(pull.happened)),
        )
        now = ChangeState(change, pull.open, landed=bool(pull.merged), details=details)
        return now, [(n, *one) for n, one in enumerate(pull.happened) if n >= known]

    # --- what it is asked to do

    def refuses(self, pull: SimPull, wanted: str) -> str:
        """Return why the forge refuses to merge this head now; empty: it merges."""
        if not pull.open:
            return f"{pull.key} is closed"
        if wanted and pull.head != wanted:
            return f"{pull.key} has another head"
        if not pull.approval:
            return f"{pull.key} needs an approving review"
        return ""

    def land(self, pull: SimPull, work: LandRequest, part: Landing) -> str:
        """Merge for the gate and return the new head of the branch. Raise InvariantBroken for an untested state."""
        if pull.head != part.change.commit:
            raise InvariantBroken(f"{pull.key} lands as {pull.head}, and {part.change.commit} was tested")
        if self.statuses.get((pull.head, GATE)) != PASSED:
            raise InvariantBroken(f"{pull.key} is to land before it has its status")
        # Merged before the checks: the branch has what the forge makes of it, and that is compared with what was
        # tested.
        self.merge(pull)
        head, tested = self.world.heads[pull.project], work.state.merged.get(pull.project, {}).get(BRANCH)
        if head != tested:
            raise InvariantBroken(f"{pull.key} lands as {head}, and {tested} was tested")
        if not any(self._holds(key) and pull.project in key for key in self.world.tested):
            raise InvariantBroken(f"{pull.key} lands as {head}, but no test ever passed on that")
        before = [one for one in self.needs(pull) if not one.merged]
        if before:
            raise InvariantBroken(f"{pull.key} lands before {[one.key for one in before]}, which it needs")
        self.ours[pull.key] = part.change.commit
        return head

    def _holds(self, tested: str) -> bool:
        """Return whether the tested state is the current one; of some projects, jobs may have seen less."""
        pairs = (pair.split("=") for pair in tested.split())
        return all(f"{self.world.heads[project]}+".startswith(f"{head}+") for project, head in pairs)

    def needs(self, pull: SimPull) -> Iterator[SimPull]:
        """Yield the pull requests that its footers name."""
        for line in pull.body.splitlines():
            key = named(line.removeprefix("Depends-On: "))
            if key in self.pulls:
                yield self.pulls[key]

    # --- how it should end

    def as_it_is(self, pull: SimPull) -> tuple[ChangeState, object]:
        """Return the state of a pull request without a call, so that nothing changes."""
        before = pull.undecided
        found = self.change_state(pull, len(pull.happened))
        pull.undecided = before
        return found

    def fails(self, commit: str) -> bool:
        """Return whether the jobs of a head fail whatever is beneath it."""
        return frozenset({commit}) in self.world.conflicting

    def is_ready(self, pull: SimPull) -> bool:
        """Return whether a gate with complete information admits the pull request and everything that it needs."""
        fit = pull.open and bool(pull.approval) and "gate" in pull.labels
        return fit and all(one.merged or self.is_ready(one) for one in self.needs(pull))

    def heads(self) -> dict[str, dict[str, str]]:
        """Return project -> ref -> commit."""
        return {project: {HEAD: self.world.heads[project]} for project in PROJECTS}
