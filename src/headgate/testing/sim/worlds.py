"""Model a world without git and processes: repositories are tuples of commits, and jobs are predicates on them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from headgate.config.forges.facts import Word
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import LandRequest, RepoState
from headgate.testing.sim.posts import SimPosts

HOST = "sim"
CONFIG, BESIDE = f"{HOST}/config", f"{HOST}/beside"
"""Projects whose files configure the first tenant, and the other one."""
PROJECTS = (f"{HOST}/a", f"{HOST}/b")
SHARED = PROJECTS[0]
"""The project that both tenants have."""
EVIL = f"{HOST}/evil"
"""Project of somebody hostile, whose changes nobody approves."""
BRANCH, HEAD = "master", "refs/heads/master"
FILE, MORE = "zuul.yaml", "more.yaml"
"""Files of configuration; only the other tenant reads the second one, of the project that both have."""
PROPOSER, PEOPLE = "ada", ("grace", "heinz")
OTHERS = ("ADA", "Grace")
"""Names whose approvals do not count: other spellings of the proposer and of one of the people."""
UNSERVED = "the service is gone"


class InvariantBroken(AssertionError):
    """Report that an invariant does not hold."""


def commits(head: str) -> list[str]:
    """Return the commits of a head, which names its whole history."""
    return head.split("+")


def merged(head: str, item: MergeItem) -> str:
    """Return the commit after merging."""
    # A head is its own history: "h+c0+c1" has c0 merged before c1. Merging what is already there changes nothing, as in
    # git.
    return head if item.commit in commits(head) else f"{head}+{item.commit}"


def tested_key(state: RepoState) -> str:
    """Return all facts that a job can see, as a key."""
    return " ".join(f"{project}={branches[BRANCH]}" for project, branches in sorted(state.merged.items()))


def tree(head: str) -> str:
    """Return the content of a head, regardless of who merged it and in which order."""
    # As a git tree: the same content has the same name, in whatever order it was merged.
    return "+".join(sorted(set(commits(head))))


@dataclass(frozen=True, slots=True)
class Harm:
    """Describe the harm that one hostile commit does to code that handles it."""

    config: str = ""
    """The project's configuration at this commit."""
    returned: Any = field(default_factory=dict)  # whatever a job writes
    """Data that its jobs return: meant to be a JSON mapping."""
    merging: Exception | None = None
    """Error that every merge of it raises."""
    running: Exception | None = None
    """Error that every run of one of its jobs raises."""
    result: str | None = "SUCCESS"
    """Result of its jobs."""


@dataclass(slots=True)
class SimWorld:
    """Hold the truth that outlives every process: the heads of branches, which changes are open, what was tested."""

    chance: random.Random
    config: str
    """Configuration of the config project, without the additions of its pushes."""
    beside: str = ""
    """Configuration of the other tenant's config project; empty: there is no other tenant."""
    gating: tuple[str, ...] = ("unit",)
    """Jobs that every change of the gate must pass."""
    pipelines: Mapping[str, str] = field(default_factory=lambda: {"gate": "t"})
    """pipeline -> tenant"""
    heads: dict[str, str] = field(default_factory=lambda: dict.fromkeys((*PROJECTS, CONFIG, BESIDE, EVIL), "h"))
    """project -> head of its one branch"""
    open: dict[str, ChangeState] = field(default_factory=dict)
    conflicting: set[frozenset[str]] = field(default_factory=set)
    """Commits whose jobs fail together, and single ones that fail alone."""
    unmergeable: set[frozenset[str]] = field(default_factory=set)
    proposals: dict[str, SimProposal] = field(default_factory=dict)
    """commit -> what it adds to its project's configuration"""
    tested: dict[str, set[str]] = field(default_factory=dict)
    """Key of a tested state, from `tested_key` -> jobs that passed on it."""
    reusing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Jobs that set `reuse` -> the projects that each requires."""
    given: set[tuple[str, str, str]] = field(default_factory=set)
    """Pipeline, job and inputs of each passed build of a job with `reuse`."""
    reused: int = 0
    """Number of builds whose result was reused."""
    carried: int = 0
    """Number of builds that were carried over a reset."""
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a build passes."""
    several: bool = False
    """Whether two people must approve, neither of whom proposed it, and nobody may object."""
    circular: bool = False
    """Whether people make changes that need each other."""
    moving: bool = False
    """Whether pipelines come and go."""
    gone: frozenset[str] = frozenset()
    """Pipelines that no tenant has at present."""
    seen: dict[str, str] = field(default_factory=dict)
    """project -> its head when its configuration was last read"""
    announced: bool = False
    """Whether a job runs for each change once it has landed."""
    served: tuple[str, ...] = ()
    """Jobs that need a paused job to run alongside them."""
    returned: dict[str, str] = field(default_factory=dict)
    """Data that every job returns."""
    serving: set[str] = field(default_factory=set)
    """Buildset and commit of each item whose paused build is running."""
    failed: dict[str, set[str]] = field(default_factory=dict)
    """Build that failed -> the other commits that it ran on."""
    proposed: dict[str, str] = field(default_factory=dict)
    """commit -> key of the change"""
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """project -> ref -> the object that it names"""
    tagged: list[tuple[str, str]] = field(default_factory=list)
    """Ref and commit of every pushed tag."""
    posts: SimPosts = field(default_factory=SimPosts)
    events_made: int = 0
    """Number of events for merged changes and tags so far; it makes their ids unique."""
    landed: list[Change] = field(default_factory=list)
    owed: dict[str, str] = field(default_factory=dict)
    """Key of a change -> its commit, of those that must follow because a part of their circle has landed."""
    landed_by: dict[str, str] = field(default_factory=dict)
    """commit of a change -> the buildset that landed it"""
    stirred: list[asyncio.Event] = field(default_factory=list)
    broken: InvariantBroken | None = None
    """The first broken invariant that was found."""
    foreign: int = 0
    """Number of pushes by others, past the gate."""
    shut: frozenset[str] | None = None
    """Changes whose push had begun when the gate was closed, once that is confirmed; None: it is open."""
    closed: int = 0
    """Number of times that the gate was closed."""
    harms: dict[str, Harm] = field(default_factory=dict)
    """Commit of a hostile change -> the harm that it does."""

    def stir(self) -> None:
        for event in self.stirred:
            event.set()

    def propose(self, change: Change, *, approved: bool) -> None:
        self.proposed[change.commit] = change.key
        change_state = ChangeState(change, approved=change.commit if approved else "")
        self.open[change.key] = self._by_people(change_state, approved=approved) if self.several else change_state
        self.stir()

    def _by_people(self, change_state: ChangeState, *, approved: bool) -> ChangeState:
        """Return the change state with approvals and vetoes. People who do not count always approve. Of the two who
        count, both approve if the change is `approved` or somebody objects; otherwise at most one does."""
        change, objected = change_state.change, not approved and self.chance.random() < 0.3
        whose = [*OTHERS, *(PEOPLE if approved or objected else PEOPLE[: self.chance.randrange(2)])]

        def word(kind: str, who: str) -> Word:
            return Word(who, change.commit, f"refs/{kind}/{who}/{change.branch}/{change.topic}")

        vetoes = (word("vetoes", "tony"),) if objected else ()
        approvals = tuple(word("approvals", who) for who in whose)
        return replace(change_state, approved="", approvals=approvals, vetoes=vetoes, proposers=(PROPOSER,))

    def is_approved(self, change_state: ChangeState) -> bool:
        """Return whether all required people have approved this patchset; if several are required, nobody may
        object."""
        if not self.several:
            return change_state.is_approved
        words = {word.who for word in change_state.approvals if word.commit == change_state.change.commit}
        return words >= set(PEOPLE) and not change_state.vetoes

    def withdraw(self, key: str) -> None:
        del self.open[key]
        self.stir()

    def push_past_the_gate(self, project: str) -> None:
        """Push to a project past the gate.  In the config project the push changes nothing that counts, but everybody's
        layout; in another one it changes what one tenant reads."""
        self.foreign += 1
        self.heads[project] += f"+foreign{self.foreign}"
        self.stir()

    def configure(self, config: str, gone: Collection[str]) -> None:
        """Push this configuration to the config project, past the gate; `gone` names the pipelines it no longer has."""
        self.config, self.gone = config, frozenset(gone)
        self.push_past_the_gate(CONFIG)

    def tag(self, project: str, ref: str, commit: str) -> None:
        self.tags.setdefault(project, {})[ref] = commit
        self.tagged.append((ref, commit))
        self.stir()

    def files(self, project: str, head: str, paths: Iterable[str] = (FILE, MORE)) -> dict[str, str]:
        """Return the project's configuration at a commit, from those of the paths that exist."""
        if project == CONFIG:
            texts = {FILE: f"{self.config}# {head}\n"}
        elif project == BESIDE:
            texts = {FILE: self.beside}
        elif project == EVIL:
            texts = {FILE: self.harms[commits(head)[-1]].config if commits(head)[-1] in self.harms else ""}
        else:
            proposed = "".join(self.proposals[commit].text for commit in commits(head) if commit in self.proposals)
            texts = {FILE: proposed, MORE: "".join(f"# {commit}\n" for commit in commits(head) if "foreign" in commit)}
        return {path: texts[path] for path in paths if texts.get(path)}

    def differing(self, project: str, before: str, after: str) -> tuple[str, ...]:
        """Return the paths that differ between two commits of a project."""
        old, new = self.files(project, before), self.files(project, after)
        return tuple(path for path in (FILE, MORE) if old.get(path) != new.get(path)) or ("x",)

    def jobs(self, head: str) -> set[str]:
        """Return the jobs that gate a change of a project whose landing makes this the head."""
        added = {f"extra-{commit}" for commit in commits(head) if commit in self.proposals}
        return {*self.gating, *added}

    def handed(self, job: str, project: str, state: RepoState) -> dict[str, str]:
        """Map each project that the job receives to its head."""
        every = dict.fromkeys((project, *self.reusing[job]))
        return {one: state.merged.get(one, {}).get(BRANCH) or state.heads[one][HEAD] for one in every}

    def passes(self, pipeline: str, job: str, project: str, state: RepoState) -> None:
        """Record that a build of a job passed."""
        self.passing.set()
        if job in self.reusing:
            self.given.add((pipeline, job, _trees_of(self.handed(job, project, state))))
        else:
            self.tested.setdefault(tested_key(state), set()).add(job)

    def _untested(self, change: Change, head: str, state: RepoState) -> set[str]:
        """Return jobs that never passed on exactly the inputs that they have when the change lands."""
        jobs, own = self.jobs(head), change.project
        missing = jobs - self.reusing.keys() - self.tested.get(tested_key(state), set())
        for job in jobs & self.reusing.keys():
            if ("gate", job, _trees_of({**self.handed(job, own, state), own: head})) not in self.given:
                missing.add(job)
        return missing

    def land(self, work: LandRequest) -> None:
        """Perform one step of a landing.  Raise InvariantBroken if a change is not approved now or was not tested, if
        it lands before a change it needs or while the gate is closed, if its configuration is wrong, or if what goes
        together with it cannot land."""
        rest = self._rest(work)
        together = {*(part.change.key for part in work.parts), *rest}
        for part in work.parts:
            self._may_land(part.change, part.commit, work.state, together)
        for key, commit in rest.items() if not work.rest else ():
            if key not in self.open or self.open[key].approved != commit or self.open[key].change.commit != commit:
                raise InvariantBroken(
                    f"{sorted(together - rest.keys())} lands though {key}, which goes together with it, cannot"
                )
        for part in work.parts:
            self.heads[part.change.project] = part.commit
            self.landed.append(part.change)
            self.landed_by[part.change.commit] = work.buildset
            self.owed.pop(part.change.key, None)
            self.withdraw(part.change.key)
        # A circle lands in several steps where a forge merges one change at a time; what is left is an alarm at the
        # end.
        self.owed |= rest

    def _rest(self, work: LandRequest) -> dict[str, str]:
        """Return the changes that were tested together with the landing ones and have not landed: key -> commit. They
        are derived from the merged state, not from the gate's own records."""
        of = next(item.item for item in work.state.chain if item.commit == work.change.commit)
        landed = {change.commit for change in (*self.landed, *(part.change for part in work.parts))}
        commits = [item.commit for item in work.state.chain if item.item == of and item.commit not in landed]
        return {self.proposed[commit]: commit for commit in commits}

    def _may_land(self, change: Change, head: str, state: RepoState, together: set[str]) -> None:
        change_state = self.open[change.key]
        if not self.is_approved(change_state) or change_state.change.commit != change.commit:
            raise InvariantBroken(f"{change.key} lands though nobody has approved it")
        if self.shut is not None and change.id not in self.shut:
            raise InvariantBroken(f"{change.key} lands though the gate is closed")
        if lacking := [key for key in change_state.change.needs if key in self.open and key not in together]:
            raise InvariantBroken(f"{change.key} lands before {lacking}, which it needs")
        proposal = self.proposals.get(change.commit)
        beside = {self.open[key].change.commit for key in together if key in self.open}
        if proposal is not None and not self._stands(proposal, beside):
            raise InvariantBroken(f"{change.key} lands with a configuration that is wrong")
        if missing := self._untested(change, head, state):
            raise InvariantBroken(f"{change.key} lands as {head} but {sorted(missing)} never passed on it")

    def _stands(self, proposal: SimProposal, beside: set[str]) -> bool:
        """Return whether the configuration can take effect, with the commits `beside` that land together with it."""
        available = beside | {commit for head in self.heads.values() for commit in commits(head)}
        return not proposal.wrong and (not proposal.parent or proposal.parent in available)


def _trees_of(heads: Mapping[str, str]) -> str:
    return " ".join(f"{project}={tree(head)}" for project, head in sorted(heads.items()))


@dataclass(frozen=True, slots=True)
class SimProposal:
    """Represent a job that a commit adds to its project's gate."""

    commit: str
    wrong: bool = False
    """Whether it can never take effect."""
    parent: str = ""
    """The commit whose job this one inherits from."""
    comments_bytes: int = 0
    """Size of the comments above it, which do not compress."""

    @property
    def text(self) -> str:
        parent = "nowhere" if self.wrong else f"extra-{self.parent}" if self.parent else "base"
        name = f"extra-{self.commit}"
        # Random, since a store that compresses would make repeated text small.
        noise = random.Random(self.commit).randbytes(self.comments_bytes // 2).hex()
        comments = "".join(f"# {noise[i : i + 100]}\n" for i in range(0, len(noise), 100))
        return f"{comments}- job: {{name: {name}, parent: {parent}}}\n- project: {{gate: {{jobs: [{name}]}}}}\n"
