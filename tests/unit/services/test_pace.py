"""Test that an executor starts no more builds at once than it has processors, and that no build blocks the start of
others."""

from __future__ import annotations

import asyncio

import pytest

from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.work import Contact
from headgate.recipes.codec import encode
from headgate.recipes.requestforms import Request
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.nodes.requester import NodeRequester
from headgate.services.worker import BEGINNING_S, LATELY_S, REST_MAX_S, Pace
from tests.unit.nodes.test_launcher import Site, a_build, on_site


class Runner:
    """Start builds, and report their start on request; they never end."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.contacts: dict[str, Contact] = {}

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        self.began.append(spec.build)
        self.contacts[spec.build] = contact
        await cancel.wait()
        return BuildOutcome(build=spec.build, result="CANCELED")


async def ask(site: Site, *builds: str, label: str = "", project: str = "") -> None:
    """Submit builds, urgent ones first; each belongs to a separate project by default."""
    for number, build in enumerate(builds):
        meta = {"tenant": "t", "pipeline": "p", "buildset": "s", "job": build, "project": project or build}
        spec = a_build(*([label] if label else []), build=build, state=RepoState())
        request = Request(id=build, precedence=200 + number, meta=meta)
        await site.context.store.commit([], site.context.builds.submit(request, encode(spec)))


def serving(site: Site, runner: Runner, beginning_max: int) -> asyncio.Future[None]:
    executor = Executor(
        site.context,
        runner,
        ExecutorSettings(9, beginning_max=beginning_max),
        nodes=NodeRequester(site.context, lambda: site.tenants),
    )
    return asyncio.ensure_future(executor.membership.serve(executor.run, site.stop))


SOON_S = BEGINNING_S / 10


@on_site
async def test_the_next_build_starts_once_the_previous_one_has_started(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=2)
    await ask(site, "a", "b", "c", "d")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b"]
    runner.contacts["b"].begun()
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b", "c"]
    runner.contacts["b"].begun()  # reported again, by its next command
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b", "c"]
    working.cancel()


@on_site
async def test_a_project_may_use_half_of_the_concurrent_starts(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=2)
    await ask(site, "a1", "a2", "a3", project="a")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a1"]
    await ask(site, "b1", project="b")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a1", "b1"], "it waits for nothing that another project begins"
    runner.contacts["a1"].begun()
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a1", "b1", "a2"]
    await asyncio.sleep(BEGINNING_S)
    assert runner.began == ["a1", "b1", "a2", "a3"]
    working.cancel()


@on_site
async def test_a_build_that_never_reports_its_start_delays_others_by_a_moment(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=1)
    await ask(site, "a", "b", "c")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a"]
    await asyncio.sleep(BEGINNING_S)
    assert runner.began == ["a", "b"]
    await asyncio.sleep(BEGINNING_S)
    assert runner.began == ["a", "b", "c"]
    working.cancel()


@on_site
async def test_builds_that_wait_for_machines_keep_no_other_from_starting(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=1)
    await ask(site, "w1", "w2", "w3", label="debian")
    await ask(site, "a")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a"]
    working.cancel()


@on_site
async def test_without_a_limit_all_builds_start_immediately(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=0)
    await ask(site, "a", "b", "c", "d")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b", "c", "d"]
    working.cancel()


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def begin(pace: Pace, clock: Clock, project: str, took_s: float) -> float:
    """Start one piece of work as soon as possible, and return the seconds that it waited."""
    waited = 0.0
    while (wait_s := pace.wait_s(project) or pace.wait_s()) > 0:
        clock.now_s += wait_s
        waited += wait_s
    pace.begins("request", project)
    clock.now_s += took_s
    assert pace.begun("request")
    assert not pace.begun("request")
    return waited


def test_a_tenant_that_is_alone_never_rests() -> None:
    clock = Clock()
    pace = Pace(2, clock)
    assert [begin(pace, clock, "a", 0.1) for _ in range(20)] == [0.0] * 20


def test_a_tenant_that_starts_more_than_its_share_pauses_for_the_others() -> None:
    clock = Clock()
    pace = Pace(2, clock)
    for _ in range(5):
        begin(pace, clock, "flood", 0.1)
    assert [begin(pace, clock, name, 0.1) for name in ("b", "c")] == [0.0, 0.0]
    begin(pace, clock, "flood", 0.1)
    assert begin(pace, clock, "flood", 0.1) == pytest.approx(0.2)
    assert begin(pace, clock, "b", 0.1) == 0.0
    begin(pace, clock, "flood", 0.9)
    assert begin(pace, clock, "flood", 0.1) == pytest.approx(REST_MAX_S)
    clock.now_s += LATELY_S
    assert [begin(pace, clock, "flood", 0.1) for _ in range(3)] == [0.0] * 3


def test_projects_that_begin_as_much_as_each_other_hardly_wait() -> None:
    clock = Clock()
    pace = Pace(2, clock)
    begin(pace, clock, "a", 0.1)
    begin(pace, clock, "b", 0.1)
    waits = [begin(pace, clock, name, 0.1) for _ in range(10) for name in ("a", "b")]
    assert sum(waits) <= 0.1 + 1e-9
