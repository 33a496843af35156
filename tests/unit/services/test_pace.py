"""No more builds begin at once than the machine has processors for, and none keeps others from beginning for long."""

from __future__ import annotations

import asyncio

from headgate.gate.work import BuildOutcome, BuildSpec, RepoState
from headgate.ports.runner import Contact
from headgate.recipes.codec import encode
from headgate.recipes.requests import Request
from headgate.services.executor import Executor
from headgate.services.nodes.asking import Asking
from headgate.services.worker import BEGINNING_S
from tests.unit.nodes.test_launcher import Site, a_build, on_site


class Runner:
    """Builds begin at once, and say so when they are told to; they never end."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.contacts: dict[str, Contact] = {}

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        self.began.append(spec.build)
        self.contacts[spec.build] = contact
        await cancel.wait()
        return BuildOutcome(build=spec.build, result="CANCELED")


async def ask(site: Site, *builds: str, label: str = "", project: str = "") -> None:
    """Submit them, the urgent ones first; each is of a project of its own unless that is said."""
    for number, build in enumerate(builds):
        meta = {"tenant": "t", "pipeline": "p", "buildset": "s", "job": build, "project": project or build}
        spec = a_build(*([label] if label else []), build=build, state=RepoState())
        request = Request(id=build, precedence=200 + number, meta=meta)
        await site.context.store.commit([], site.context.builds.submit(request, encode(spec)))


def serving(site: Site, runner: Runner, beginning_max: int) -> asyncio.Future[None]:
    executor = Executor(
        site.context,
        runner,
        builds_max=9,
        nodes=Asking(site.context, lambda: site.tenants),
        beginning_max=beginning_max,
    )
    return asyncio.ensure_future(executor.membership.serve(executor.run, site.stop))


SOON_S = BEGINNING_S / 10


@on_site
async def test_the_next_build_begins_once_the_one_before_has_begun(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=2)
    await ask(site, "a", "b", "c", "d")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b"]
    runner.contacts["b"].begun()
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b", "c"]
    runner.contacts["b"].begun()  # said again, by its next command
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b", "c"]
    working.cancel()


@on_site
async def test_a_project_has_half_of_what_may_begin_at_once(site: Site) -> None:
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
async def test_a_build_that_never_says_that_it_has_begun_delays_others_by_a_moment(site: Site) -> None:
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
async def test_builds_that_wait_for_machines_keep_none_from_beginning(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=1)
    await ask(site, "w1", "w2", "w3", label="debian")
    await ask(site, "a")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a"]
    working.cancel()


@on_site
async def test_without_a_bound_all_begin_at_once(site: Site) -> None:
    runner = Runner()
    working = serving(site, runner, beginning_max=0)
    await ask(site, "a", "b", "c", "d")
    await asyncio.sleep(SOON_S)
    assert runner.began == ["a", "b", "c", "d"]
    working.cancel()
