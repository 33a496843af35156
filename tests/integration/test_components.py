"""Test several components of each kind on one store: they share the work, can be paused, and stop after their work."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.forge import GitForge
from headgate.adapters.metrics.figures import ProcessMetrics
from headgate.base.tasks import run_until, subject
from headgate.config.operator.model import Connection
from headgate.map.places import Map
from headgate.map.records import ComponentFacts, ComponentRecord
from headgate.ports.observer import Nobody, Observer, WorkDone
from headgate.ports.work import Load
from headgate.recipes.codec import decode
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import Membership, want
from headgate.services.merger import Merger
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.sqlite import SqliteBackend
from headgate.store.store import Store
from headgate.store.types import Backend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import FunctionRunner, Remembered
from headgate.testing.layouts import parse_tenants
from headgate.testing.repositories import Repositories
from headgate.web.itemshapes import awaited
from headgate.web.status import Configured, Status

from .conftest import PIPELINES, TENANTS

ONE_MS = 1


@dataclass(slots=True)
class Part:
    """Run one process with one component."""

    context: Context
    member: Membership
    stop: asyncio.Event
    task: asyncio.Future[None]
    runner: FunctionRunner = field(default_factory=FunctionRunner)

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not what():
                await self.context.mirror.moved(self.context.mirror.moves)

    async def began(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.runner.begun(count)

    async def want(self, state: str) -> None:
        assert await want(self.context, self.name.removeprefix(f"{self.context.map.components.path}/"), state)

    @property
    def name(self) -> str:
        assert self.member.session is not None
        return self.member.session.name

    @property
    def state(self) -> str:
        entry = self.context.mirror.get(self.name)
        return decode(entry.value, ComponentRecord).state if entry else "gone"


class Cluster:
    """Run processes on one store, created one by one."""

    def __init__(self, root: Path, repositories: Repositories, backend: Backend) -> None:
        self.root, self.repositories, self.backend = root, repositories, backend
        self.history = Remembered()
        self.parts: list[Part] = []
        self.tenants: Mapping[str, Configured] = {}
        self._clock_ms = 0
        self.observer: Observer = Nobody()

    def _context(self, name: str) -> Context:
        store = Store(self.backend)

        def now_ms() -> int:
            self._clock_ms += ONE_MS
            return self._clock_ms

        return Context(store, Mirror(store, Map().path), now_ms, ProcessSettings(name), observer=self.observer)

    async def _start(self, context: Context, member: Membership, body: object, runner: FunctionRunner) -> Part:
        stop = asyncio.Event()
        served = member.serve(body, stop)  # type: ignore[arg-type]  # a body of any of the components

        async def live() -> None:
            done = asyncio.Event()

            async def work() -> None:
                await served
                done.set()

            await run_until(done, context.mirror.run(), work())

        part = Part(context, member, stop, asyncio.ensure_future(live()), runner)
        self.parts.append(part)
        async with asyncio.timeout(DEADLINE_S):
            await member.joined.wait()
        return part

    def _engine(self, name: str) -> GitEngine:
        return GitEngine(self.root / f"git-{name}", {"local": self._at})

    @property
    def _at(self) -> GitConnection:
        return GitConnection("local", str(self.repositories.hub), "git.example")

    async def scheduler(self, name: str) -> Part:
        context = self._context(name)
        tenants = parse_tenants(TENANTS, "tenants.yaml", {"local": Connection("local", "git.example")})
        projects = {p.project: p for t in tenants.values() for p in t.projects}
        forge = GitForge(self._at, self._engine(name), projects)
        scheduler = Scheduler.of(context, TENANTS, tenants, "tenants.yaml", {"local": forge})
        recorder, self.tenants = Recorder(context, self.history), scheduler.tenants

        async def body(session: object) -> None:
            await run_until(asyncio.Event(), scheduler.run(session), recorder.run(session))  # type: ignore[arg-type]  # a session

        return await self._start(context, Membership(context, "scheduler"), body, FunctionRunner())

    async def merger(self, name: str) -> Part:
        context = self._context(name)
        merger = Merger(context, self._engine(name))
        return await self._start(context, merger.membership, merger.run, FunctionRunner())

    async def executor(
        self,
        name: str,
        builds_max: int = 4,
        zone: str = "",
        labels: tuple[str, ...] = (),
        load: Load | None = None,
        containers: bool = False,
    ) -> Part:
        context, runner = self._context(name), FunctionRunner(hold=asyncio.Event())
        executor = Executor(
            context,
            runner,
            ExecutorSettings(builds_max, zone, unzoned=False, labels=labels, containers=containers),
            load=load,
        )
        return await self._start(context, executor.membership, executor.run, runner)

    async def close(self) -> None:
        for part in self.parts:
            part.stop.set()
        for part in self.parts:
            await part.task


Make = Callable[[str], Awaitable[Cluster]]


@asynccontextmanager
async def cluster(root: Path, repositories: Repositories) -> AsyncIterator[Cluster]:
    backend = await SqliteBackend.open(root / "store.sqlite")
    made = Cluster(root, repositories, backend)
    try:
        yield made
    finally:
        await made.close()
        await backend.close()


def release(*parts: Part) -> None:
    for part in parts:
        assert part.runner.hold is not None
        part.runner.hold.set()


async def proposed(cluster: Cluster, count: int) -> None:
    for number in range(count):
        cluster.repositories.propose("code/api", f"t{number}", {f"f{number}": "x\n"})
        cluster.repositories.approve("code/api", f"t{number}")


def gate_only(repositories: Repositories, extra: str = "") -> None:
    text = PIPELINES.replace("    check:\n      jobs: [unit]\n", "") + extra
    repositories.create("gated", {"zuul.yaml": text, "jobs/unit": "#!/bin/sh\n"})


@pytest.fixture
def quiet(repositories: Repositories, monkeypatch: pytest.MonkeyPatch) -> Repositories:
    """Nothing is checked, only gated: the builds are those of approved changes."""
    gate_only(repositories)
    monkeypatch.setattr("tests.integration.test_components.TENANTS", TENANTS.replace("- config\n", "- gated\n"))
    return repositories


@pytest.mark.long
async def test_two_of_each_kind_land_changes_together(tmp_path: Path, quiet: Repositories) -> None:
    async with cluster(tmp_path, quiet) as all:
        await all.scheduler("s1"), await all.scheduler("s2"), await all.merger("m1"), await all.merger("m2")
        one, two = await all.executor("e1"), await all.executor("e2")
        await proposed(all, 6)
        await asyncio.gather(one.began(3), two.began(3))  # the least loaded takes the next
        release(one, two)
        for number in range(6):
            assert (await all.history.result_of(f"t{number}", "gate")).result == "SUCCESS"


class Seen(ProcessMetrics):
    """Record what an observer was told of every item: (kind, change)."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, list[tuple[str, str]]] = {}

    def done(self, work: WorkDone) -> None:
        self.of.setdefault(work.item, []).append((work.kind, work.change))


@pytest.mark.long
async def test_every_step_of_a_change_is_reported_and_logged_under_one_name(
    tmp_path: Path, quiet: Repositories, caplog: pytest.LogCaptureFixture
) -> None:
    seen, lines = Seen(), list[tuple[str, dict[str, str]]]()

    def noted(record: logging.LogRecord) -> bool:
        lines.append((record.getMessage(), dict(subject())))
        return True

    caplog.set_level(logging.INFO, "headgate")
    caplog.handler.addFilter(noted)
    async with cluster(tmp_path, quiet) as all:
        all.observer = seen
        parts = [await all.scheduler("s"), await all.merger("m"), await all.executor("e")]
        await proposed(all, 1)
        await parts[-1].began(1)
        release(parts[-1])
        assert (await all.history.result_of("t0", "gate")).result == "SUCCESS"
    caplog.handler.removeFilter(noted)
    journeys = [steps for item, steps in seen.of.items() if item and ("land", steps[0][1]) in steps]
    assert [{kind for kind, _ in steps} for steps in journeys] == [{"merge", "build", "land"}]
    ((change,),) = ({named for _, named in steps} for steps in journeys)
    names = [about for text, about in lines if text.startswith(f"{change} ")]
    assert len(names) == 3, "it is to be tested, it passed, it leaves"
    for about in names:
        assert {"tenant", "pipeline", "change", "item", "buildset"} <= about.keys() and about["change"] == change


@pytest.mark.long
async def test_a_paused_executor_takes_nothing_until_it_is_unpaused(tmp_path: Path, quiet: Repositories) -> None:
    async with cluster(tmp_path, quiet) as all:
        await all.scheduler("s"), await all.merger("m")
        one, two = await all.executor("e1"), await all.executor("e2", builds_max=1)
        await one.want("paused")
        await one.until(lambda: one.state == "paused")
        await proposed(all, 2)
        await two.began(1)
        assert not one.runner.ran
        await one.want("running")
        await one.began(1)
        release(one, two)
        assert (await all.history.result_of("t1", "gate")).result == "SUCCESS"


@pytest.mark.long
@pytest.mark.parametrize("by", ["state", "signal"])
async def test_a_stopping_executor_ends_its_builds_first(tmp_path: Path, quiet: Repositories, by: str) -> None:
    async with cluster(tmp_path, quiet) as all:
        await all.scheduler("s"), await all.merger("m")
        one = await all.executor("e1", builds_max=1)
        await proposed(all, 2)
        await one.began(1)
        if by == "state":
            await one.want("stopped")
        else:
            one.member.want("stopped")
        await one.until(lambda: one.state == "stopping")
        assert not one.task.done()
        two = await all.executor("e2")
        await two.began(1)
        release(one, two)
        await asyncio.wait_for(asyncio.shield(one.task), DEADLINE_S)
        for number in range(2):
            assert (await all.history.result_of(f"t{number}", "gate")).result == "SUCCESS"
        assert len(one.runner.ran) == 1


@pytest.mark.long
async def test_a_stopped_executor_hands_its_builds_back(tmp_path: Path, quiet: Repositories) -> None:
    async with cluster(tmp_path, quiet) as all:
        await all.scheduler("s"), await all.merger("m")
        one = await all.executor("e1")
        await proposed(all, 2)
        await one.began(2)
        one.stop.set()
        await asyncio.wait_for(asyncio.shield(one.task), DEADLINE_S)
        two = await all.executor("e2")
        release(two)
        for number in range(2):
            assert (await all.history.result_of(f"t{number}", "gate")).result == "SUCCESS"
        assert {spec.build for spec in two.runner.ran} == {spec.build for spec in one.runner.ran}


@pytest.mark.long
async def test_a_paused_scheduler_hands_over_its_pipelines(tmp_path: Path, quiet: Repositories) -> None:
    async with cluster(tmp_path, quiet) as all:
        one, two = await all.scheduler("s1"), await all.scheduler("s2")
        await all.merger("m")
        executor = await all.executor("e")
        release(executor)
        await one.want("paused")
        await one.until(lambda: one.state == "paused")
        await proposed(all, 1)
        assert (await all.history.result_of("t0", "gate")).result == "SUCCESS"
        await two.want("paused")
        await one.want("stopped")
        await asyncio.wait_for(asyncio.shield(one.task), DEADLINE_S)
        await two.want("running")
        all.repositories.propose("code/lib", "later", {"x": "1\n"})
        all.repositories.approve("code/lib", "later")
        assert (await all.history.result_of("later", "gate")).result == "SUCCESS"


@dataclass(slots=True)
class Overloaded:
    heavy: bool = True

    def refuses(self, running: int) -> str:
        return "the load average is 40.0, above 10.0" if self.heavy else ""


@pytest.mark.long
async def test_an_overloaded_executor_says_so_and_others_do_the_work(tmp_path: Path, quiet: Repositories) -> None:
    async with cluster(tmp_path, quiet) as all:
        await all.scheduler("s"), await all.merger("m")
        one, two = await all.executor("e1", load=Overloaded()), await all.executor("e2")
        release(one, two)
        await proposed(all, 2)
        for number in range(2):
            assert (await all.history.result_of(f"t{number}", "gate")).result == "SUCCESS"
        assert not one.runner.ran and len(two.runner.ran) == 2

        def is_refusing() -> bool:
            entry = one.context.mirror.get(one.name)
            data = decode(entry.value, ComponentRecord).data if entry else ComponentFacts()
            return not data.accepting and "load average" in data.why

        await one.until(is_refusing)


@pytest.fixture
def labelled(repositories: Repositories, monkeypatch: pytest.MonkeyPatch) -> Repositories:
    """One of the two jobs needs a machine with the label `arm`."""
    job = "- job: {name: onarm, run: jobs/unit, nodeset: {nodes: [{name: n, label: arm}]}}\n"
    text = PIPELINES.replace("    check:\n      jobs: [unit]\n", "").replace("jobs: [unit]", "jobs: [unit, onarm]")
    repositories.create("gated", {"zuul.yaml": text + job, "jobs/unit": "#!/bin/sh\n"})
    monkeypatch.setattr("tests.integration.test_components.TENANTS", TENANTS.replace("- config\n", "- gated\n"))
    return repositories


@pytest.mark.long
async def test_while_a_zone_has_no_executor_no_other_executor_does_its_work(
    tmp_path: Path, labelled: Repositories
) -> None:
    async with cluster(tmp_path, labelled) as all:
        await all.scheduler("s"), await all.merger("m")
        here, far = await all.executor("e1"), await all.executor("e2", zone="lab", labels=("arm", "big"))
        release(here, far)
        zone = here.context.map.executor.zones("lab")
        await here.until(lambda: here.context.mirror.get(zone.labels.path) is not None)
        far.stop.set()
        await here.until(lambda: here.context.mirror.get(far.name) is None)
        await proposed(all, 1)
        await here.until(lambda: [spec.job.name for spec in here.runner.ran] == ["unit"])
        await here.until(lambda: len(here.context.zone("lab").open(here.context.mirror)) == 1)
        other = await all.executor("e3", zone="lab", labels=("arm",))
        release(other)
        assert (await all.history.result_of("t0", "gate")).result == "SUCCESS"
        assert [spec.job.name for spec in other.runner.ran] == ["onarm"]
        assert [spec.job.name for spec in here.runner.ran] == ["unit"]
        await here.context.store.commit([], [zone.labels.delete()])
        await here.until(lambda: stored_labels(here) == ("arm",))  # those of the running ones, and no others


def stored_labels(part: Part) -> tuple[str, ...]:
    labels = part.context.map.executor.zones("lab").labels
    entry = part.context.mirror.get(labels.path)
    return labels.decode(entry.value).labels if entry is not None else ()


async def test_builds_go_to_the_zone_whose_machines_have_their_labels(tmp_path: Path, labelled: Repositories) -> None:
    async with cluster(tmp_path, labelled) as all:
        await all.scheduler("s"), await all.merger("m")
        here, far = await all.executor("e1"), await all.executor("e2", zone="lab", labels=("arm", "big"))
        release(here, far)
        await here.until(lambda: far.context.mirror.get(far.name) is not None)
        await proposed(all, 1)
        assert (await all.history.result_of("t0", "gate")).result == "SUCCESS"
        assert [spec.job.name for spec in here.runner.ran] == ["unit"]
        assert [spec.job.name for spec in far.runner.ran] == ["onarm"]


@pytest.fixture
def imaged(repositories: Repositories, monkeypatch: pytest.MonkeyPatch) -> Repositories:
    """One of the two jobs names an image; a third does, too, but its only program is trusted."""
    pipelines = PIPELINES.replace("    check:\n      jobs: [unit]\n", "").replace(
        "jobs: [unit]", "jobs: [unit, trusted]"
    )
    trusted = "- job: {name: trusted, run: jobs/unit, image: debian.example/debian:13}\n"
    repositories.create("gated", {"zuul.yaml": pipelines + trusted, "jobs/unit": "#!/bin/sh\n"})
    own = """
- job: {name: boxed, run: jobs/boxed, image: debian.example/debian:13}
- job: {name: played, run: jobs/played.yaml, image: debian.example/debian:13}
- project: {gate: {jobs: [boxed, played]}}
"""
    books = {"jobs/boxed": "#!/bin/sh\n", "jobs/played.yaml": "- hosts: all\n  tasks: []\n"}
    repositories.create("code/boxed", {".zuul.yaml": own, **books})
    tenants = TENANTS.replace("- config\n", "- gated\n").replace("- code/lib\n", "- code/boxed\n")
    monkeypatch.setattr("tests.integration.test_components.TENANTS", tenants)
    return repositories


@pytest.mark.long
async def test_a_job_that_names_an_image_waits_for_an_executor_that_runs_containers(
    tmp_path: Path, imaged: Repositories
) -> None:
    async with cluster(tmp_path, imaged) as all:
        scheduler, _ = await all.scheduler("s"), await all.merger("m")
        plain = await all.executor("e1")
        release(plain)
        for topic in ("left", "kept"):
            all.repositories.propose("code/boxed", topic, {topic: "x\n"})
            all.repositories.approve("code/boxed", topic)

        def open_jobs() -> list[str]:
            return sorted(one.request.meta["job"] for one in plain.context.builds.open(plain.context.mirror))

        await plain.until(lambda: open_jobs() == ["boxed", "boxed", "played", "played"])
        wanted = "an executor that runs containers, for the image debian.example/debian:13: none is running"
        assert set(awaited(scheduler.context).values()) == {wanted}
        all.repositories.abandon("code/boxed", "left")
        await plain.until(lambda: open_jobs() == ["boxed", "played"])
        boxes = await all.executor("e2", containers=True)
        release(boxes)
        assert (await all.history.result_of("kept", "gate")).result == "SUCCESS"
        assert {spec.job.name for spec in boxes.runner.ran} >= {"boxed", "played"}, "a program and a playbook"
        assert {spec.job.name for spec in plain.runner.ran} >= {"unit", "trusted"}
        assert not {"boxed", "played"} & {spec.job.name for spec in plain.runner.ran}


@pytest.mark.long
async def test_a_merger_whose_git_is_broken_rejects_nothing(
    tmp_path: Path, quiet: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = broken_git(tmp_path / "bin", monkeypatch)
    async with cluster(tmp_path, quiet) as all:
        scheduler = await all.scheduler("s")
        await all.merger("m")
        release(await all.executor("e"))
        await proposed(all, 2)
        status = Status(scheduler.context, all.tenants)
        await scheduler.until(lambda: bool(status.of("example").problems))
        (problem,) = status.of("example").problems
        assert problem.project == "code/api" and "cannot be processed here: usage: git merge-tree" in problem.text
        broken.unlink()
        for number in range(2):
            assert (await all.history.result_of(f"t{number}", "gate")).result == "SUCCESS"
        await scheduler.until(lambda: not status.of("example").problems)


def broken_git(at: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a git first on the path that cannot merge until the returned file is gone."""
    at.mkdir()
    broken, real = at / "broken", shutil.which("git")
    broken.touch()
    broke = f'case "$*" in *merge-tree*) test -e {broken} && echo "usage: git merge-tree" >&2 && exit 129;; esac'
    (at / "git").write_text(f'#!/bin/sh\n{broke}\nexec {real} "$@"\n')
    (at / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{at}:{os.environ['PATH']}")
    return broken
