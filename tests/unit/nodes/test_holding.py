"""Test failed builds that are held, in virtual time (`run_virtual`): directories stay and machines are reserved for a
while."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from msgspec.structs import replace

from headgate.base.tasks import unless
from headgate.gate.state.autohold import FORGOTTEN_S, HeldBuild, HoldRequest
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.inventory.nodes import NodeClaim
from headgate.ports.work import Contact
from headgate.services.autohold import Expiring, held_in_store, hold_requests
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import serve
from headgate.services.nodes.requester import NodeRequester
from headgate.store.types import Put
from tests.unit.nodes.test_launcher import Site, on_site
from tests.unit.nodes.test_waiting import ask


class Failing:
    """Let builds end as `result` says; `held` lists those that are held."""

    def __init__(self, result: str = "FAILURE") -> None:
        self.result, self.held, self.machines = result, set[str](), set[str]()
        self.answers: dict[str, str] = {}
        """Build -> message for people."""

    async def keep(self, builds: Collection[str], machines: Collection[str]) -> None:
        self.held, self.machines = set(builds), set(machines)

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        self.answers[spec.build] = await contact.hold(
            self.result, f"/builds/{spec.build}", ["own"] if not spec.hosts else []
        )
        return BuildOutcome(build=spec.build, result=self.result)


class At:
    """Run an executor and a scheduler's timekeeper beside the launcher of a site."""

    def __init__(self, site: Site, result: str = "FAILURE", held_max: int = 9) -> None:
        self.site, self.runner, self.stop = site, Failing(result), asyncio.Event()
        asking = NodeRequester(site.context, lambda: site.tenants)
        self.executor = Executor(
            site.context, self.runner, ExecutorSettings(4, held_max=held_max), nodes=asking, keeper=self.runner
        )

    async def __aenter__(self) -> At:
        self.works = [
            asyncio.ensure_future(unless(self.stop, self.executor.membership.serve(self.executor.run, self.stop))),
            asyncio.ensure_future(serve(self.site.context, "scheduler", Expiring(self.site.context).run, self.stop)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await asyncio.gather(*self.works)

    async def wants(self, id: str = "1", *, count: int = 1, job: str = "j", expiration_s: int = 600) -> None:
        request = HoldRequest(id, "t", "p", job, ".*", count, expiration_s, "to look at it")
        await self.site.store.commit([], [self.site.context.map.hold_requests(id).record.put(request)])
        await asyncio.sleep(1)

    @property
    def builds(self) -> list[HeldBuild]:
        requests = hold_requests(self.site.context.map, self.site.context.mirror)
        return [build for request in requests for build in request.builds]


def states(claims: list[NodeClaim]) -> list[tuple[str, str]]:
    return [(claim.name, claim.state) for claim in claims]


@on_site
async def test_a_failed_build_is_held_with_its_machine_until_its_time_is_over(site: Site) -> None:
    async with At(site) as at:
        await site.machine("m1", image="debian")
        await at.wants(expiration_s=600)
        await ask(site.context, "b1", "debian")
        await asyncio.sleep(60)
        (held,) = at.builds
        assert (held.build, held.executor, held.directory, held.machines) == ("b1", "host", "/builds/b1", ("m1",))
        assert at.runner.held == {"b1"} and await held_in_store(site.context) == {"b1"}
        assert "to look at it" in at.runner.answers["b1"] and "m1" in at.runner.answers["b1"]
        assert states(site.claims) == [("m1", "ready")] and "clean m1" not in site.provider.calls
        await ask(site.context, "b2", "debian")  # other requests for the machine wait
        await asyncio.sleep(60)
        assert "b2" not in at.runner.answers and states(site.claims) == [("m1", "ready")]
        await asyncio.sleep(600)
        assert at.builds == [replace(held, over=True)]
        assert at.runner.held == set() and at.runner.answers["b2"] == ""
        assert site.provider.calls.index("clean m1") < site.provider.calls.index("prepare m1", 1)


@on_site
async def test_a_held_build_is_released_when_its_hold_request_is_deleted(site: Site) -> None:
    async with At(site) as at:
        await site.machine("m1", image="debian")
        await at.wants()
        await ask(site.context, "b1", "debian")
        await asyncio.sleep(10)
        assert at.runner.held == {"b1"} and states(site.claims) == [("m1", "ready")]
        await site.store.commit([], [site.context.map.hold_requests("1").record.delete()])
        await asyncio.sleep(10)
        assert at.runner.held == set() and site.claims == []


@on_site
async def test_successful_or_unrequested_builds_are_not_held(site: Site) -> None:
    for result in ("SUCCESS", "CANCELED", "NODE_FAILURE", "MERGE_CONFLICT"):
        async with At(site, result) as at:
            await at.wants()
            await ask(site.context, f"b-{result}")
            assert at.builds == [] and at.runner.answers == {f"b-{result}": ""} and at.runner.held == set()
    async with At(site) as at:
        await at.wants(job="another")
        await ask(site.context, "b5")
        assert at.builds == [] and at.runner.answers == {"b5": ""}


@on_site
async def test_as_many_are_held_as_requested_and_as_the_executor_allows(site: Site) -> None:
    async with At(site, held_max=2) as at:
        await at.wants("1", count=1)
        for number in range(2):
            await ask(site.context, f"b{number}")
        assert [build.build for build in at.builds] == ["b0"] and at.runner.answers["b1"] == ""
        await at.wants("2", count=5)
        for number in range(2, 5):
            await ask(site.context, f"b{number}")
        assert [build.build for build in at.builds] == ["b0", "b2"]
        assert "held_builds_max" in at.runner.answers["b4"] and at.runner.held == {"b0", "b2"}
        assert at.runner.machines == {"own"}, "machines of the executor's own are given to nobody"


@on_site
async def test_a_restarted_executor_knows_which_builds_are_held(site: Site) -> None:
    async with At(site) as at:
        await site.machine("m1", image="debian")
        await at.wants()
        await ask(site.context, "b1", "debian")
        await asyncio.sleep(10)
    await asyncio.sleep(100)
    assert states(site.claims) == [("m1", "ready")]
    async with At(site) as again:
        await asyncio.sleep(1)
        assert again.runner.held == {"b1"}
        await asyncio.sleep(600)
        assert again.runner.held == set() and site.claims == []


@on_site
async def test_a_damaged_request_keeps_nobody_from_holding(site: Site) -> None:
    async with At(site) as at:
        await at.wants("2")
        await site.store.commit([], [Put(site.context.map.hold_requests("1").record.path, b"{")])
        await ask(site.context, "b1")
        assert [build.build for build in at.builds] == ["b1"] and at.runner.held == {"b1"}
        await site.store.commit([], [site.context.map.hold_requests("1").record.delete()])


@on_site
async def test_a_request_that_is_over_is_forgotten_a_day_later(site: Site) -> None:
    async with At(site) as at:
        old = HeldBuild("b1", "host", "/builds/b1", 100_000 - FORGOTTEN_S * 1_000)
        request = HoldRequest("1", "t", "p", "j", ".*", 1, 1, builds=(old,), expired_ms=1)
        await site.store.commit([], [site.context.map.hold_requests("1").record.put(request)])
        await asyncio.sleep(60)
        assert at.builds == [replace(old, over=True)]
        await asyncio.sleep(60)
        assert hold_requests(site.context.map, site.context.mirror) == []
