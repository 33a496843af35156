"""Test that no numbers that users choose make a record too large: every change ends in every pipeline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from headgate.base.tasks import end, run_until
from headgate.config.operator.model import Connection
from headgate.gate.state.change import Change, ChangeState, EventKind
from headgate.gate.state.works import (
    BuildOutcome,
    BuildSpec,
    CatAnswer,
    CatRequest,
    MergeAnswer,
    MergerAnswer,
    MergerWork,
    RepoState,
)
from headgate.map.places import Map
from headgate.ports.forge import Sighting
from headgate.ports.work import Contact
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import Body, serve
from headgate.services.merger import Merger
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual
from headgate.testing.gate import Remembered
from headgate.testing.layouts import parse_tenants
from headgate.testing.sim import worlds
from headgate.testing.sim.doubles import SimForge, SimGit
from headgate.testing.sim.worlds import BRANCH, CONFIG, HEAD, HOST, SimProposal, SimWorld

MOST = 200
SERVED_WITHIN_S = 600.0
"""Virtual."""
JOBS_AT_ONCE = 100


@dataclass(frozen=True)
class Sizes:
    """Numbers that others choose."""

    tenants: int = 1
    pipelines: int = 1
    projects: int = 1
    branches: int = 0
    """Branches of each project, beside the branch of the changes; all of them are pushed at one moment."""
    queues: int = 1
    """Queues in each of which a change is approved at one moment."""
    jobs: int = 1
    changes: int = 1
    """Changes proposed at one moment."""
    files: int = 1
    """Dependencies of each change."""
    needs: int = 0
    """Dependencies of one further change."""
    config_bytes: int = 0
    """Size of the configuration that each change proposes."""

    @property
    def names(self) -> list[str]:
        return [f"check{n}" for n in range(self.pipelines)]

    @property
    def projects_max(self) -> int:
        """Each queue has a project of its own."""
        return max(self.projects, self.queues)

    @property
    def config(self) -> str:
        jobs = ", ".join(f"job{n}" for n in range(self.jobs))
        pipelines = "".join(
            f"- pipeline: {{name: {name}, manager: independent, trigger: {{sim: [{{event: change-proposed}}]}}}}\n"
            for name in self.names
        )
        gate = (
            "- pipeline:\n    name: gate\n    manager: dependent\n    trigger: {sim: [{event: change-approved}]}\n"
            "    require: {sim: {approved: true}}\n    success: {sim: {land: true}}\n"
            f"    supercedes: {self.names}\n"
        )
        declared = "".join(f"- job: {{name: job{n}, parent: base}}\n" for n in range(self.jobs))
        checks = "".join(f"    {name}: {{jobs: [{jobs}]}}\n" for name in self.names)
        base = "- job: {name: base, parent: null, run: jobs/x}\n"
        queues = "".join(
            f"- queue: {{name: q{n}}}\n- project: {{name: {HOST}/p{n}, queue: q{n}}}\n"
            for n in range(self.queues if self.queues > 1 else 0)
        )
        every = f"- project:\n    name: ^sim/p.*$\n    gate: {{jobs: [job0]}}\n{checks}"
        return f"{base}{declared}{pipelines}{gate}{queues}{every}"

    @property
    def tenant_file(self) -> str:
        projects = ", ".join(f"p{n}" for n in range(self.projects_max))
        return "".join(
            f"- tenant:\n    name: t{n}\n    max-dependencies: {MOST}\n"
            f"    source: {{sim: {{config-projects: [config], untrusted-projects: [{projects}]}}}}\n"
            for n in range(self.tenants)
        )


class Runner:
    """Builds that pass at once."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        self._world.tested.setdefault(worlds.tested_key(state), set()).add(spec.job.name)
        return BuildOutcome(spec.build, "SUCCESS")


@dataclass
class Forge(SimForge):
    """Further branches of every project."""

    branches: int = 0
    pushed: int = 0
    """How often all of them were pushed to."""

    def more(self) -> dict[str, str]:
        """Return ref -> commit of these."""
        return {f"refs/heads/b{n}": f"b{n}-{self.pushed}" for n in range(self.branches)}

    def push(self) -> None:
        self.pushed += 1
        self.world.stir()

    def _look(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> Sighting:
        found = super()._look(known, {project: {HEAD: own[HEAD]} for project, own in heads.items()}, refs)
        moved, events, more = dict(found.heads), list(found.events), self.more()
        for project, head in self.world.heads.items():
            old = heads.get(project, more)
            if project in moved or any(old.get(ref) != commit for ref, commit in more.items()):
                moved[project] = {HEAD: head, **more}
            for ref, commit in more.items():
                if old.get(ref) != commit:
                    branch = ref.removeprefix("refs/heads/")
                    change = Change(self.name, project, branch, commit=commit, old_commit=old.get(ref, ""), ref=ref)
                    events.append(self._one_time_event(EventKind.REF_UPDATED, replace(change, files=(worlds.FILE,))))
        return replace(found, heads=moved, events=tuple(events))


def job_of(project: str, commit: str) -> str:
    """Return the name of the job that a branch beside the one of the changes has at this commit."""
    return f"of-{project.rpartition('/')[2]}-{commit}"


@dataclass
class Git(SimGit):
    """Each of them has configuration."""

    forge: Forge

    async def do(self, work: MergerWork) -> MergerAnswer:
        answer, more = await super().do(work), self.forge.more()
        if isinstance(answer, CatAnswer) and isinstance(work, CatRequest):
            names = {ref.removeprefix("refs/heads/"): commit for ref, commit in more.items()}
            wanted = {name: commit for name, commit in names.items() if not work.branches or name in work.branches}
            files = {name: {worlds.FILE: self._text(answer.project, commit)} for name, commit in wanted.items()}
            return replace(answer, branches=answer.branches | wanted, files=answer.files | files)
        if isinstance(answer, MergeAnswer) and answer.state is not None:
            heads = {project: own | more for project, own in answer.state.heads.items()}
            return replace(answer, state=replace(answer.state, heads=heads))
        return answer

    def _text(self, project: str, commit: str) -> str:
        return f"- job: {{name: {job_of(project, commit)}, parent: base}}\n" if project != CONFIG else ""


class House:
    """Run one process with all components, with these sizes."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.backend, self.history = sizes, MemoryBackend(), Remembered()
        self.world = SimWorld(random.Random(1), sizes.config, gating=("job0",))
        self.world.heads = {CONFIG: "h"} | {f"{HOST}/p{n}": "h" for n in range(sizes.projects_max)}
        self.forge = Forge(self.world, branches=sizes.branches)
        self.scheduler: Scheduler | None = None
        self._life: asyncio.Future[None] | None = None
        self._count = 0

    def start(self) -> None:
        self._life = asyncio.ensure_future(self._live())

    async def stop(self) -> None:
        if self._life is not None:
            await end(self._life)

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        store = Store(self.backend)
        context = Context(
            store, Mirror(store, Map().path), lambda: int((loop.time() + 1e6) * 1000), ProcessSettings("here")
        )
        file = self.sizes.tenant_file
        tenants = parse_tenants(file, "tenants.yaml", {"sim": Connection("sim", HOST)})
        self.scheduler = Scheduler.of(context, file, tenants, "tenants.yaml", {"sim": self.forge})
        runner = Runner(self.world)
        bodies: dict[str, Body] = {
            "scheduler": self.scheduler.run,
            "web": Recorder(context, self.history).run,
            "executor": Executor(context, runner, ExecutorSettings(JOBS_AT_ONCE)).run,
            "merger": Merger(context, Git(self.world, self.forge)).run,
        }
        stop = asyncio.Event()
        await run_until(
            stop, context.mirror.run(), *(serve(context, kind, body, stop) for kind, body in bodies.items())
        )

    def propose(self, *needs: Change, approved: bool = False) -> Change:
        self._count += 1
        topic, keys = f"t{self._count}", tuple(need.key for need in needs)
        files = tuple(f"dir{n}/file{n * self._count}" for n in range(self.sizes.files))
        project = f"{HOST}/p{self._count % self.sizes.projects_max}"
        ref = f"refs/for/{BRANCH}/{topic}"
        if self.sizes.config_bytes:
            self.world.proposals[f"c{self._count}"] = SimProposal(
                f"c{self._count}", comments_bytes=self.sizes.config_bytes
            )
            files += (worlds.FILE,)
        change = Change("sim", project, BRANCH, topic, f"c{self._count}", ref=ref, files=files, needs=keys)
        self.world.propose(change, approved=approved)
        return change

    def ends(self, pipeline: str) -> set[tuple[str, str]]:
        """Return the (tenant, change) pairs that ended there."""
        found = self.history.finished.values()
        return {(f.tenant, f.change.topic) for f in found if f.pipeline == pipeline and f.result == "SUCCESS"}

    async def until(self, done: str, wanted: dict[str, set[tuple[str, str]]]) -> None:
        try:
            async with asyncio.timeout(SERVED_WITHIN_S):
                while any(not ends <= self.ends(pipeline) for pipeline, ends in wanted.items()):
                    assert self._life is not None and not self._life.done(), self._life
                    await asyncio.sleep(1.0)
        except TimeoutError:
            missing = {name: len(ends - self.ends(name)) for name, ends in wanted.items() if ends - self.ends(name)}
            raise AssertionError(f"{done}: {missing} of {self.sizes}") from None

    async def _read(self) -> None:
        """Wait until the configuration of every branch is in force in the first tenant."""
        projects = (project for project in self.world.heads if project != CONFIG)
        wanted = {job_of(project, commit) for project in projects for commit in self.forge.more().values()}
        async with asyncio.timeout(SERVED_WITHIN_S):
            while self.scheduler is None or wanted - self.scheduler.tenants["t0"].layouts.landed.jobs.keys():
                assert self._life is not None and not self._life.done(), self._life
                await asyncio.sleep(1.0)

    async def everything(self) -> None:
        """Every change is tested everywhere while all branches move; then one of each queue lands, and leaves the
        pipelines that its pipeline supersedes."""
        self.start()
        try:
            if self.sizes.branches:
                await self._read()
                self.forge.push()
            proposed = [self.propose() for _ in range(self.sizes.changes)]
            if self.sizes.needs:
                ahead = [self.propose() for _ in range(self.sizes.needs)]
                proposed += [*ahead, self.propose(*ahead)]
            tenants = [f"t{n}" for n in range(self.sizes.tenants)]
            every = {(tenant, one.topic) for tenant in tenants for one in proposed}
            await self.until("tested", dict.fromkeys(self.sizes.names, every))
            last = {("t0", self.propose(approved=True).topic) for _ in range(self.sizes.queues)}
            await self.until("landed", {"gate": last} if self.sizes.tenants == 1 else {})
            if self.sizes.branches:
                await self._read()
            assert not self.backend.tree.under(Map().quarantine.path), "something was set aside"
        finally:
            await self.stop()


@pytest.mark.long
@pytest.mark.parametrize("config_bytes", [300_000, 1_900_000])
def test_a_large_configuration_is_tested_and_lands(config_bytes: int) -> None:
    """Within the budget, larger than any commit, and incompressible."""
    run_virtual(House(Sizes(config_bytes=config_bytes, changes=2)).everything())


def drawn(seed: int) -> Sizes:
    """One number is large, or two are of middling size."""
    chance = random.Random(seed)
    names = ["tenants", "pipelines", "projects", "branches", "queues", "jobs", "changes", "files", "needs"]
    if seed < len(names):
        return Sizes(
            **{names[seed]: {"files": 25 * MOST, "tenants": MOST // 4, "queues": MOST // 2}.get(names[seed], MOST)}
        )
    one, other = chance.sample(names, 2)
    return Sizes(**{one: chance.randrange(2, 13), other: chance.randrange(2, 13)})


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(9), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(9, 18))])
def test_no_number_that_somebody_chooses_is_too_large(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    run_virtual(House(drawn(seed)).everything())
    assert "a commit has at most" not in caplog.text and "a commit appends to at most" not in caplog.text
