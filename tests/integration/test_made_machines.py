"""Test a job that requests machines by labels of providers: they are made, passed to the job, and removed again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.config.freeze.resources import flattened_nodesets
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.inventory.places import InventoryMap
from headgate.ports.clouds import Cloud, MachineSpec, Made, State
from headgate.ports.clouds import MachinePending as Pending
from headgate.services.configuration import Tenants
from headgate.services.context import Context
from headgate.services.inventory.inventory import Inventory
from headgate.services.membership import serve
from headgate.services.nodes.accounts import CloudAccount
from headgate.services.nodes.launcher import Launcher
from headgate.services.nodes.machines.maker import MachineMaker
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.lawful import LawfulBackend, Laws
from headgate.testing.nodes.doubles import CloudFaults, Sky
from headgate.testing.repositories import Repositories
from headgate.web.itemshapes import awaited

from .conftest import MACHINE_TENANTS, PIPELINES
from .test_providers import MACHINES, push

EVERYBODY = frozenset({"scheduler", "executor", "merger", "web", "launcher"})
NODESETS = """
- nodeset:
    name: bare
    nodes: [{name: box, label: little}, {name: space, label: little}]
"""


class Quick(Sky):
    """Make machines at once; every second one is not a host and has a secret."""

    tags: Mapping[str, str] = {}
    """Of the last machine."""

    async def advance(self, wanted: MachineSpec, state: State) -> Pending | Made:
        self.tags = wanted.tags
        made = await super().advance(wanted, state)
        if isinstance(made, Made) and int(made.external_id.rpartition("-")[2]) % 2 == 0:
            return Made(made.external_id, made.state, None, {}, {"namespace": made.external_id}, {"token": "t0psecret"})
        return made


def sky(**faults: float) -> Quick:
    return Quick(random.Random(1), CloudFaults(slow_s=0.0, boot_s=0.0, **faults))


async def seal(plain: bytes) -> Sealed:
    return Sealed("headgate", "nodes", box=plain[::-1].decode())


async def scan(host: Mapping[str, Any]) -> str:
    return "ssh-ed25519 AAAA"


@asynccontextmanager
async def launching(running: Gate, cloud: Cloud) -> AsyncIterator[None]:
    """Provide a launcher beside the gate."""
    context, stop = running.context, asyncio.Event()
    inventory = Inventory(Store(MemoryBackend()), InventoryMap(), context.now_ms)
    await inventory.begin()
    tenants: Tenants = lambda: {name: one.tenant for name, one in running.scheduler.tenants.items()}  # noqa: E731

    def making(guard: At) -> MachineMaker:
        return MachineMaker(context, tenants, {"sky": CloudAccount("sky", cloud, 0)}, scan, seal, guard)

    launcher = Launcher(context, inventory, tenants, {}, making=making)
    journal = asyncio.ensure_future(inventory.journal.run())
    serving = asyncio.ensure_future(serve(context, "launcher", launcher.run, stop))
    try:
        yield
    finally:
        stop.set()
        journal.cancel()
        await asyncio.gather(serving, journal, return_exceptions=True)


async def none_left(context: Context) -> None:
    """Wait until no machine is recorded any more."""
    place = context.map.nodes.made
    async with asyncio.timeout(DEADLINE_S):
        with context.mirror.part(place.path) as part:
            while context.mirror.under(place.path):
                await part.moved(part.moves)


def configured(repositories: Repositories) -> str:
    job = PIPELINES.replace("    run: jobs/unit\n", "    run: jobs/unit\n    nodeset: bare\n")
    repositories.write("config", {"zuul.yaml": job + MACHINES + NODESETS})
    return MACHINE_TENANTS.replace("label, section", "label, nodeset, section")


async def built(root: Path, repositories: Repositories, labels: str = "[little]") -> tuple[BuildSpec, Quick]:
    """Return a passed build, and the cloud of its machines after no machine is recorded any more. `labels`: those of
    the provider."""
    tenants, cloud, seen = configured(repositories), sky(), list[BuildSpec]()

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        seen.append(spec)
        return BuildOutcome(build=spec.build, result="SUCCESS")

    push(
        repositories,
        (repositories.work("config") / "zuul.yaml").read_text().replace("labels: [little]", f"labels: {labels}"),
    )
    backend = LawfulBackend(MemoryBackend(), Laws("/zuul"), EVERYBODY)
    async with (
        gate(root, repositories.hub, backend, tenants, {"unit": unit}, clouds={"sky": "aws"}) as running,
        launching(running, cloud),
    ):
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        assert (await running.history.result_of("greet", "check")).result == "SUCCESS"
        await none_left(running.context)
    (spec,) = seen
    return spec, cloud


@pytest.mark.long
async def test_a_build_has_the_machines_that_are_made_for_it(tmp_path: Path, repositories: Repositories) -> None:
    spec, cloud = await built(tmp_path, repositories)
    ((name, host),) = spec.hosts.items()
    other = next(one for one in ("box", "space") if one != name)
    assert host["ansible_host"] == "i-1" and host["headgate_host_key"] == "ssh-ed25519 AAAA"
    assert (host["nodepool"]["label"], host["nodepool"]["az"]) == ("little", "one")
    assert host["zuul_node"] == {"uuid": host["headgate_machine"], "reuse": False}
    assert spec.zuul["resources"] == {other: {"namespace": "i-2"}}
    assert [node.name for node in spec.job.nodeset.nodes] == [(name,)], "what is not a host is in no inventory"
    assert list(spec.node_secrets) == [other] and "t0psecret" not in str(spec.node_secrets)
    assert not cloud.instances


@pytest.mark.long
async def test_two_nodes_of_a_label_with_slots_are_one_machine(tmp_path: Path, repositories: Repositories) -> None:
    tags = "{of: '{pipeline_name} {buildset_uuid} {zuul_event_id} {job_uuid} {unknown}.'}"
    spec, cloud = await built(tmp_path, repositories, labels=f"[{{name: little, slots: 2, tags: {tags}}}]")
    box, space = spec.hosts["box"], spec.hosts["space"]
    assert box["ansible_host"] == space["ansible_host"] == "i-1" and cloud.made == 1
    assert (box["nodepool"]["slot"], space["nodepool"]["slot"]) == (0, 1)
    assert box["headgate_machine"] != space["headgate_machine"]
    assert cloud.tags["of"] == f"check {spec.buildset} {spec.zuul['event_id']} {spec.build} ." and spec.zuul["event_id"]
    assert not cloud.instances


async def test_the_reason_why_a_build_waits_is_reported_and_a_cancelled_one_leaves(
    tmp_path: Path, repositories: Repositories
) -> None:
    tenants, cloud = configured(repositories), sky()
    cloud.most = cloud.others = 4
    push(repositories, (repositories.work("config") / "zuul.yaml").read_text())
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants, {}, clouds={"sky": "aws"}) as running:
        context = running.context
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        async with launching(running, cloud), asyncio.timeout(DEADLINE_S):
            while not any("instances are in use" in why for why in awaited(context).values()):
                await context.mirror.moved(context.mirror.moves)
            (why,) = awaited(context).values()
            text = "nodes: little, little (1 of 1 in line): limited by the account of main: 0 of 0 instances are in use"
            assert why.startswith(f"{text} (since "), why
            repositories.abandon("code/api", "greet")
            while context.mirror.under(context.map.nodes.waits.path) or awaited(context):
                await context.mirror.moved(context.mirror.moves)
    assert not cloud.instances


async def test_the_message_of_the_cloud_is_reported(tmp_path: Path, repositories: Repositories) -> None:
    tenants, cloud = configured(repositories), sky(refused=1.0)
    text = (repositories.work("config") / "zuul.yaml").read_text()
    push(repositories, text.replace("section: west, labels", "section: west, launch-attempts: 1, labels"))
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants, {}, clouds={"sky": "aws"}) as running:
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        async with launching(running, cloud):
            ended = await running.history.result_of("greet", "check")
            (build,) = ended.builds
            assert build.result == "NODE_FAILURE" and "little at main: no host was found for it" in (build.error or "")
            await none_left(running.context)


@pytest.mark.long
async def test_a_nodeset_that_is_too_large_to_be_written_down_fails_and_others_are_served(
    tmp_path: Path, repositories: Repositories
) -> None:
    """Test it in a tenant without limits on nodesets."""
    tenants = configured(repositories).replace("name: example\n", "name: example\n    max-nodes-per-job: -1\n")
    text = (repositories.work("config") / "zuul.yaml").read_text()
    many = ", ".join(f"box{number}" for number in range(150))
    text = text.replace("{name: box, label: little}, {name: space", f"{{name: [{many}], label: little}}, {{name: space")
    push(repositories, text)
    cloud = sky()
    cloud.most = 500

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        return BuildOutcome(build=spec.build, result="SUCCESS")

    async with (
        gate(tmp_path, repositories.hub, MemoryBackend(), tenants, {"unit": unit}, clouds={"sky": "aws"}) as running,
        launching(running, cloud),
    ):
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        (build,) = (await running.history.result_of("greet", "check")).builds
        assert build.result == "NODE_FAILURE"
        assert "its 151 machines cannot be recorded in one commit" in (build.error or "")
        push(repositories, text.replace(f"[{many}]", "box"))
        tenant = running.scheduler.tenants["example"]
        await running.until(lambda: len(flattened_nodesets(tenant.layouts.landed, "bare")[0].nodes[0].name) == 1)
        repositories.propose("code/api", "again", {"hello": "hi\n"})
        assert (await running.history.result_of("again", "check")).result == "SUCCESS"
