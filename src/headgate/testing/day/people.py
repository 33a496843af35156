"""Act as the people of a day: push to its repositories, wait for its builds, approve and give up, as planned."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import NamedTuple

import pygit2

from headgate.base.tasks import end
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.work import Contact
from headgate.testing.day.plan import CONFIG, DayPlan, DayProject, DayProposal, central, own

PROJECT_FILE = ".zuul.d/project.yaml"
FILE = pygit2.enums.FileMode.BLOB
MINUTES = {"lint": 5, "build-docs": 8, "publish": 4, "promote": 2, "release": 10, "unit": 15, "functional": 60,
           "upgrade": 75}  # fmt: skip
"""Name of a job, or its last word -> its planned duration."""
OTHER_MINUTES = 25
"""Duration of jobs that projects share."""
TRIES_MAX = 20
"""Limit on the attempts of one change in one pipeline: a day that needs more does not end."""
TAGGED = 50
"""Number of landings per tagged release."""
_ME = pygit2.Signature("Ada", "ada@example.org", 1_700_000_000, 0)
_HEAD = "refs/heads/master"


class DayHub:
    """Act as the git server of a day.

    Refs are written as a git server writes them at the end of a push, without a process for each push: the day measures
    Headgate alone.
    """

    def __init__(self, root: Path, plan: DayPlan) -> None:
        """Make all repositories below `root`, bare; no daily jobs run until `schedule` is called."""
        self.root, self._plan = root, plan
        self._open: dict[str, pygit2.Repository] = {}
        self._needed = plan.needed
        self._begin(CONFIG, {"zuul.yaml": central()}, ("master",))
        for project in plan.projects:
            branches = ("master", "stable/2026") if project.stable else ("master",)
            self._begin(project.name, {PROJECT_FILE: own(project)}, branches)

    def schedule(self, periodic: str) -> None:
        """Push to the configuration when the daily jobs run; `periodic` is a line of cron."""
        repository = pygit2.Repository(str(self.root / CONFIG))
        commit = _commit(
            repository, {"zuul.yaml": central(periodic)}, [repository.references[_HEAD].peel(pygit2.Commit).id]
        )
        repository.references.create(_HEAD, commit, force=True)

    def propose(self, proposal: DayProposal, patchset: int = 1) -> None:
        """Push the change, based on the head of its branch."""
        repository = self._of(proposal.project)
        head = repository.references[f"refs/heads/{proposal.branch}"].target
        path, text = self._work(proposal, patchset)
        index = pygit2.Index()
        index.read_tree(repository[head].peel(pygit2.Tree))
        index.add(pygit2.IndexEntry(path, repository.create_blob(text.encode()), FILE))
        message = proposal.message(patchset, self._needed.get(proposal.number))
        commit = repository.create_commit(None, _ME, _ME, message, index.write_tree(repository), [head])
        repository.references.create(self._ref("for", proposal), commit, force=True)

    def approve(self, proposal: DayProposal) -> None:
        repository = self._of(proposal.project)
        commit = repository.references[self._ref("for", proposal)].target
        repository.references.create(self._ref("approved", proposal), commit, force=True)

    def recheck(self, proposal: DayProposal) -> None:
        """Ask for another test, unless the change has landed in the meantime."""
        repository = self._of(proposal.project)
        proposed = repository.references.get(self._ref("for", proposal))
        if proposed is not None:
            repository.references.create(self._ref("recheck", proposal), proposed.target, force=True)

    def abandon(self, proposal: DayProposal) -> None:
        self._of(proposal.project).references.delete(self._ref("for", proposal))

    def tag(self, project: DayProject, name: str) -> None:
        repository = self._of(project)
        repository.references.create(f"refs/tags/{name}", repository.references["refs/heads/master"].target)

    def has(self, proposal: DayProposal) -> bool:
        """Return whether the branch contains the change."""
        repository = self._of(proposal.project)
        head = repository.references[f"refs/heads/{proposal.branch}"].peel(pygit2.Commit)
        return self._work(proposal, 1)[0] in head.tree

    @staticmethod
    def _work(proposal: DayProposal, patchset: int) -> tuple[str, str]:
        """Return the file of a change, and its content."""
        if proposal.kind == "jobs":
            return f".zuul.d/t{proposal.number}.yaml", _job_of(proposal, patchset)
        return f"{'doc' if proposal.kind == 'docs' else 'src'}/{proposal.topic}", f"{proposal.topic} {patchset}\n"

    @staticmethod
    def _ref(kind: str, proposal: DayProposal) -> str:
        return f"refs/{kind}/{proposal.branch}/{proposal.topic}"

    def _of(self, project: DayProject) -> pygit2.Repository:
        """Return the repository, with objects and refs that others have written in the meantime."""
        found = self._open.get(project.name)
        if found is None:
            found = self._open[project.name] = pygit2.Repository(str(self.root / project.name))
        return found

    def _begin(self, name: str, files: dict[str, str], branches: tuple[str, ...]) -> None:
        repository = pygit2.init_repository(str(self.root / name), bare=True, initial_head="master")
        commit = _commit(repository, files, [])
        for branch in branches:
            repository.references.create(f"refs/heads/{branch}", commit)


def _commit(repository: pygit2.Repository, files: dict[str, str], parents: list[pygit2.Oid]) -> pygit2.Oid:
    """Return a new commit of exactly these files; no ref has it yet."""
    index = pygit2.Index()
    for path, text in files.items():
        index.add(pygit2.IndexEntry(path, repository.create_blob(text.encode()), FILE))
    return repository.create_commit(None, _ME, _ME, "Configure", index.write_tree(repository), parents)


def _job_of(proposal: DayProposal, patchset: int) -> str:
    """Return a job that is the change's alone, in a file of its own, so that no two changes conflict."""
    name = f"{proposal.project.name.rpartition('/')[2]}-{proposal.topic}"
    job = f"- job: {{name: {name}, parent: base, run: playbooks/new.yaml, vars: {{patchset: {patchset}}}}}\n"
    return f"{job}- project: {{check: {{jobs: [{name}]}}, gate: {{jobs: [{name}]}}}}\n"


class DayMachines:
    """Run builds that take `minute_s` seconds for each planned minute."""

    def __init__(self, plan: DayPlan, minute_s: float) -> None:
        self._proposals = {one.topic: one for one in plan.proposals}
        self._minute_s, self._failed = minute_s, set[str]()
        self.ran = 0

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        """Wait as long as the job takes, or until the build is cancelled."""
        start_ms = _now_ms()
        self.ran += 1
        try:
            async with asyncio.timeout(self._lasts_s(spec)):
                await cancel.wait()
            result = "CANCELED"
        except TimeoutError:
            result = self.ends(spec)
        return BuildOutcome(build=spec.build, result=result, start_ms=start_ms, end_ms=_now_ms())

    def ends(self, spec: BuildSpec) -> str:
        """Return the result of a build that is not cancelled."""
        proposal, topic = self._proposals.get(spec.change.topic), spec.change.topic
        if proposal is None or not spec.job.name.endswith("-unit"):
            return "SUCCESS"
        if proposal.fails and "Patchset 1." in spec.change.message:
            return "FAILURE"
        if proposal.flaky and spec.pipeline == "gate" and topic not in self._failed:
            self._failed.add(topic)
            return "FAILURE"
        return "SUCCESS"

    def _lasts_s(self, spec: BuildSpec) -> float:
        kind = spec.job.name if spec.job.name in MINUTES else spec.job.name.rpartition("-")[2]
        drawn = random.Random(f"{spec.change.topic} {spec.job.name}").uniform(0.7, 1.3)
        return MINUTES.get(kind, OTHER_MINUTES) * self._minute_s * drawn


def _now_ms() -> int:
    return int(time.time() * 1000)


class DayOutcome(NamedTuple):
    """Record what a pipeline decided about a change."""

    topic: str
    pipeline: str
    result: str


class DayPeople:
    """Act as the people of a day. `day` returns once each change has landed or was given up."""

    def __init__(self, hub: DayHub, plan: DayPlan, day_s: float, patience_s: float) -> None:
        """Set up a day of `day_s` seconds; `patience_s`: how long people take at most to approve what passed."""
        self._hub, self._plan, self._day_s, self._patience_s = hub, plan, day_s, patience_s
        self._of = {one.topic: one for one in plan.proposals}
        self._needed = plan.needed
        self._patchset = Counter[str]()
        self._tries = Counter[tuple[str, str]]()
        self._landing = {topic: asyncio.Event() for topic in self._of}
        self._approving = {topic: asyncio.Event() for topic in self._of}
        self._over, self._errands = asyncio.Event(), set[asyncio.Task[None]]()
        self.landed, self.abandoned = list[str](), list[str]()
        self.proposed_s, self.approved_s = dict[str, float](), dict[str, float]()
        """When each change was first proposed and approved, in seconds of the clock."""

    async def day(self) -> None:
        """Play the day. Raise RuntimeError if a change neither enters nor gets a reason why not."""
        coming, over = asyncio.ensure_future(self._come()), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({coming, over}, return_when=asyncio.FIRST_COMPLETED)
            while not self._over.is_set():
                await coming
                await asyncio.wait({over, *self._errands}, return_when=asyncio.FIRST_COMPLETED)
                for errand in [one for one in self._errands if one.done()]:
                    self._errands.remove(errand)
                    await errand
        finally:
            await end(coming, over, *self._errands)

    def tell(self, ended: DayOutcome) -> None:
        """Have the owner of the change react to the result. Raise RuntimeError for a change that fails repeatedly."""
        proposal = self._of.get(ended.topic)
        if proposal is None or ended.pipeline not in ("check", "gate"):
            return
        self._tries[ended.topic, ended.pipeline] += 1
        if self._tries[ended.topic, ended.pipeline] > TRIES_MAX:
            raise RuntimeError(f"{proposal} does not get through {ended.pipeline}: {ended.result}")
        if ended.pipeline == "gate" and ended.result == "SUCCESS":
            self._has_landed(proposal)
        elif ended.pipeline == "gate":
            self._errand(self._again(proposal))
        elif ended.result == "SUCCESS":
            self._errand(self._judge(proposal))
        elif not self._landing[ended.topic].is_set() and ended.topic not in self.abandoned:
            mended = proposal.fails and self._patchset[ended.topic] == 1
            self._propose(proposal) if mended else self._hub.recheck(proposal)

    @property
    def open(self) -> list[str]:
        """Return the changes that are neither landed nor given up."""
        return sorted(self._of.keys() - set(self.landed) - set(self.abandoned))

    async def _come(self) -> None:
        began = time.monotonic()
        for proposal in self._plan.proposals:
            await asyncio.sleep(max(0.0, began + proposal.at * self._day_s - time.monotonic()))
            self._propose(proposal)

    def _propose(self, proposal: DayProposal) -> None:
        self._patchset[proposal.topic] += 1
        self.proposed_s.setdefault(proposal.topic, time.time())
        self._hub.propose(proposal, self._patchset[proposal.topic])

    async def _judge(self, proposal: DayProposal) -> None:
        """Approve a change that passed, or abandon it. A change that needs another one is approved after that one has
        been approved or has landed."""
        topic = proposal.topic
        if self._approving[topic].is_set() or topic in self.abandoned:
            return
        await asyncio.sleep(proposal.later * self._patience_s)
        if proposal.abandoned:
            self.abandoned.append(topic)
            self._hub.abandon(proposal)
            return self._look()
        if (needed := self._needed.get(proposal.number)) is not None:
            # In one queue the gate lands both in order; across queues the needed change has to have landed.
            await (self._approving if _beside(proposal, needed) else self._landing)[needed.topic].wait()
        if not self._approving[topic].is_set():
            self.approved_s[topic] = time.time()
            self._hub.approve(proposal)
            self._approving[topic].set()

    async def _again(self, proposal: DayProposal) -> None:
        """Have a change that failed in the gate tested again, once what it needs has landed."""
        if (needed := self._needed.get(proposal.number)) is not None:
            await self._landing[needed.topic].wait()
        self._hub.recheck(proposal)

    def _has_landed(self, proposal: DayProposal) -> None:
        self.landed.append(proposal.topic)
        self._landing[proposal.topic].set()
        if len(self.landed) % TAGGED == 0:
            self._hub.tag(proposal.project, f"{proposal.number}.0.0")
        self._look()

    def _look(self) -> None:
        if not self.open:
            self._over.set()

    def _errand(self, work: Coroutine[object, object, None]) -> None:
        self._errands.add(asyncio.ensure_future(work))


def _beside(one: DayProposal, other: DayProposal) -> bool:
    """Return whether the projects of the two share a queue of the gate."""
    return one.project is other.project or (one.project.queue != "" and one.project.queue == other.project.queue)
