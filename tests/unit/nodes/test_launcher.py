"""Test answers to requests for nodes, by examples in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.base.tasks import run_until
from headgate.config.machines import FlatLabel, FlatProvider
from headgate.config.model import FrozenJob, Node, Nodeset
from headgate.config.operator.model import Label, Tenant
from headgate.gate.state.change import Change, Occasion
from headgate.gate.state.works import BuildSpec, RepoState
from headgate.inventory.choice import choose
from headgate.inventory.model import ADMIN, Caller, Object, Partition
from headgate.map.check import check
from headgate.map.inventory.nodes import NodeClaim
from headgate.map.inventory.places import InventoryMap
from headgate.map.places import Map
from headgate.map.trees import trees
from headgate.ports.clouds import Machine, MachineUnusable
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.inventory.draft import Create, Remove, Update
from headgate.services.inventory.inventory import Inventory
from headgate.services.membership import serve
from headgate.services.nodes.launcher import Launcher
from headgate.services.nodes.requester import NodeRequester, NoNodes
from headgate.store.memory import MemoryBackend
from headgate.store.store import GuardLost, Session, Store
from headgate.store.types import Delete
from headgate.testing.clock import run_virtual

SITES = {"east": "a" * 32, "west": "b" * 32}
LABELS = {
    "debian": Label("image=debian", project="*"),
    "fast": Label("tag:fast", project="lab"),
    "west": Label("image=debian", "west", "*"),
    "broken": Label("a==b 'c", project="*"),
}
TENANT = Tenant("t", (), labels=LABELS, max_nodes_per_project=3)
ROOT = Caller("root", "lab", SITES["east"], frozenset({ADMIN}))


class Fake:
    """Imitate a provider; `down` are machines that cannot be prepared, `stuck` those that cannot be cleaned."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.stuck: set[str] = set()
        self.silent: set[str] = set()
        """Machines that do not answer probes."""
        self.calls: list[str] = []
        self.probed: list[tuple[str, float]] = []
        """Probed machines and times."""
        self.slow: set[str] = set()
        self.probing = self.most = 0

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        self.calls.append(f"prepare {machine.name}")
        if machine.name in self.down:
            raise MachineUnusable(f"{machine.name} is down")
        return {"ansible_host": machine.properties["address"]}

    async def clean(self, machine: Machine) -> None:
        self.calls.append(f"clean {machine.name}")
        if machine.name in self.stuck:
            raise MachineUnusable(f"{machine.name} is stuck")

    async def probe(self, machine: Machine) -> None:
        self.probed.append((machine.name, asyncio.get_running_loop().time()))
        self.probing += 1
        self.most = max(self.most, self.probing)
        await asyncio.sleep(10.0 * (machine.name in self.slow))
        self.probing -= 1
        if machine.name in self.silent:
            raise MachineUnusable(f"{machine.name} does not answer")


class Site:
    def __init__(self) -> None:
        self.backend, self.tenants, self.provider = MemoryBackend(), {"t": TENANT}, Fake()
        self.store, self.stop = Store(self.backend), asyncio.Event()
        now = asyncio.get_running_loop().time
        self.context = Context(
            self.store, Mirror(self.store, "/zuul"), lambda: int(now() * 1000), ProcessSettings("host")
        )
        self.inventory = Inventory(self.store, InventoryMap(), lambda: 0)
        self.launcher = Launcher(self.context, self.inventory, lambda: self.tenants, {"static": self.provider})

    async def machine(self, name: str, *tags: str, site: str = "east", **properties: str) -> None:
        described = {"provider": "lab", "address": f"{name}.lab", **properties}
        one = Object(SITES[site], "runm.machine", "lab", _uuid(name), name, described, tags)
        await self.inventory.apply(replace(ROOT, partition=SITES[site]), [Create(one)])

    @asynccontextmanager
    async def build(
        self, *labels: str, project: str = "p", zone: str = "", **job: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Return the hosts of the build. Raise NoNodes."""
        spec = a_build(*labels, project=project, **job)
        asking = NodeRequester(self.context, lambda: self.tenants, zone=zone)
        async with self.store.session("executor") as session, asking.take(session, spec, asyncio.Event()) as ready:
            assert ready is not None
            yield ready.hosts

    @property
    def claims(self) -> list[NodeClaim]:
        places = self.context.map.nodes.claims
        found = [places(e.path.rpartition("/")[2]).record.decode(e.value) for e in self.backend.tree.under(places.path)]
        return sorted(found, key=lambda one: one.name)

    async def quiet(self) -> None:
        mirror = self.context.mirror
        while mirror.under(self.context.map.nodes.path):
            await mirror.moved(mirror.moves)


def _uuid(name: str) -> str:
    return name.encode().hex().ljust(32, "0")


def a_build(
    *labels: str,
    project: str = "p",
    build: str = "b",
    state: RepoState | None = None,
    started_by: str = "",
    **job: Any,
) -> BuildSpec:
    nodes = tuple(Node((f"n{number}",), label) for number, label in enumerate(labels))
    occasion = Occasion("lab", "runm.machine", _uuid(started_by), "1.1", started_by) if started_by else None
    change = Change(connection="c", project=project, branch="m", occasion=occasion)
    frozen = FrozenJob(name="j", nodeset=Nodeset(nodes=nodes), **job)
    return BuildSpec(
        build=build, buildset="s", tenant="t", pipeline="p", item="i", job=frozen, change=change, state=state
    )


def on_site(story: Callable[[Site], Awaitable[None]]) -> Callable[[], None]:
    """Run in virtual time, on a site with a provider and two partitions; in the end everything is on the map."""

    async def main() -> None:
        site = Site()
        await site.inventory.begin()
        for name, uuid in SITES.items():
            await site.inventory.admin.create_partition(ROOT, Partition(uuid, name))
            provider = Object(uuid, "runm.provider", "", _uuid(name), "lab", {"kind": "static"})
            await site.inventory.apply(replace(ROOT, partition=uuid), [Create(provider)])
        works = (
            site.context.mirror.run(),
            site.inventory.journal.run(),
            serve(site.context, "launcher", site.launcher.run, site.stop),
        )
        running = asyncio.ensure_future(run_until(site.stop, *works))
        try:
            async with asyncio.timeout(1_000):
                await story(site)
        finally:
            site.stop.set()
            await running
        assert check(site.backend.tree.under(""), trees()).good

    def test() -> None:
        run_virtual(main())

    return test


@on_site
async def test_a_label_that_no_provider_has_any_more_is_not_the_executors_own_machine(site: Site) -> None:
    site.tenants = {"t": Tenant("t", ())}
    async with site.build("large") as hosts:
        assert hosts == {}, "who has neither labels nor providers uses what the runner has"
    provider = FlatProvider("p/one", "sky", "sky", (FlatLabel("small", {"name": "small"}, {}, {}),))
    place = site.context.map.nodes.providers("t").provider(provider.name).record
    (entry,) = await site.store.commit([], [place.put(provider)])
    assert entry is not None
    await site.context.mirror.reached(entry.path, entry.version)
    with pytest.raises(NoNodes, match=r"no label 'large'$"):
        async with site.build("large"):
            pass
    asking = NodeRequester(site.context, lambda: site.tenants, own={"large"})
    async with (
        site.store.session("executor") as session,
        asking.take(session, a_build("large"), asyncio.Event()) as ready,
    ):
        assert ready is not None and ready.hosts == {}, "the runner has machines of that label in its file"
    await site.store.commit([], [place.delete()])
    await site.context.mirror.gone(place.path)


@on_site
async def test_a_build_has_the_nodes_it_asks_for(site: Site) -> None:
    await site.machine("m1", image="debian")
    await site.machine("m2", "fast")
    async with site.build("debian", "fast") as hosts:
        reached = {name: (host["ansible_host"], host["headgate_machine"]) for name, host in hosts.items()}
        assert reached == {"n0": ("m1.lab", "m1"), "n1": ("m2.lab", "m2")}
        assert [(c.name, c.state, c.node, c.project) for c in site.claims] == [
            ("m1", "ready", "n0", "p"), ("m2", "ready", "n1", "p"),
        ]  # fmt: skip
    await site.quiet()
    assert sorted(site.provider.calls) == ["clean m1", "clean m2", "prepare m1", "prepare m2"]


@on_site
async def test_a_machine_serves_one_build_at_a_time_in_order(site: Site) -> None:
    await site.machine("m1", image="debian")
    order: list[str] = []

    async def one(name: str) -> None:
        async with site.build("debian"):
            assert len(site.claims) == 1
            order.append(name)
            await asyncio.sleep(5)
            order.append(name)

    await asyncio.gather(one("a"), one("b"), one("c"))
    assert order == ["a", "a", "b", "b", "c", "c"]
    await site.quiet()
    assert site.provider.calls == ["prepare m1", "clean m1"] * 3


@on_site
async def test_a_new_machine_is_used_immediately(site: Site) -> None:
    await site.machine("m1", image="debian")
    async with site.build("debian"):
        waiting = asyncio.ensure_future(_once(site, "debian"))
        await asyncio.sleep(30)
        assert not waiting.done()
        await site.machine("m2", image="debian")
        assert await waiting == ["m2"]


async def _once(site: Site, *labels: str, **settings: Any) -> list[str]:
    async with site.build(*labels, **settings) as hosts:
        return [host["headgate_machine"] for host in hosts.values()]


@on_site
async def test_a_project_has_no_more_than_its_quota(site: Site) -> None:
    for number in range(5):
        await site.machine(f"m{number}", image="debian")
    async with site.build("debian", "debian"):
        more = asyncio.ensure_future(_once(site, "debian", "debian"))
        assert await _once(site, "debian", "debian", project="other")
        await asyncio.sleep(30)
        assert not more.done()
    assert len(await more) == 2


@on_site
async def test_a_large_request_is_not_starved_by_small_ones(site: Site) -> None:
    await site.machine("m1", image="debian")
    await site.machine("m2", image="debian")
    async with site.build("debian"):
        large = asyncio.ensure_future(_once(site, "debian", "debian"))
        await asyncio.sleep(1)
        small = asyncio.ensure_future(_once(site, "debian", project="other"))
        await asyncio.sleep(30)
        assert not large.done() and not small.done()
    assert len(await large) == 2
    await small


@on_site
async def test_zones_are_partitions(site: Site) -> None:
    await site.machine("e", image="debian")
    await site.machine("w", image="debian", site="west")
    assert await _once(site, "west") == ["w"]
    assert await _once(site, "debian", zone="east") == ["e"]
    assert await _once(site, "debian", zone="west") == ["w"]


@on_site
async def test_a_request_that_can_never_be_served_is_refused_with_the_reason(site: Site) -> None:
    await site.machine("m1", image="debian")
    for labels, why in (
        (["debian", "debian"], "too few machines for 2 nodes of debian"),
        (["none"], "no label 'none'; it has debian"),
        (["debian"] * 4, "4 nodes are requested, but project p may have only 3"),
        (["broken"], "close the quotes"),
    ):
        with pytest.raises(NoNodes, match=why):
            await _once(site, *labels)
    with pytest.raises(NoNodes, match="no partition 'nowhere'"):
        await _once(site, "debian", zone="nowhere")
    await site.quiet()


@on_site
async def test_a_triggering_label_is_the_machine_that_started_the_item_and_no_other(site: Site) -> None:
    own = Label("image=debian", project="*", triggering=True)
    site.tenants["t"] = replace(TENANT, labels={**LABELS, "own": own})
    for name in ("m1", "m2", "m3"):
        await site.machine(name, image="debian")
    await site.machine("other", image="arch")
    for name in ("m2", "m3", "m1"):
        assert await _once(site, "own", started_by=name) == [name]
    for name in ("", "other", "gone"):  # nobody's, one that does not fit, one that is deleted
        with pytest.raises(NoNodes, match="this item was not started by a machine with label own"):
            await _once(site, "own", started_by=name)
    await site.quiet()


@on_site
async def test_the_next_nodeset_is_tried(site: Site) -> None:
    await site.machine("m2", "fast")
    second = Nodeset(nodes=(Node(("other",), "fast"),))
    async with site.build("debian", nodeset_alternatives=(second,)) as hosts:
        assert list(hosts) == ["other"]


@on_site
async def test_machines_that_are_down_are_left_alone_for_a_while(site: Site) -> None:
    await site.machine("m1", image="debian")
    await site.machine("m2", image="debian")
    site.provider.down.add("m1")
    assert await _once(site, "debian") == ["m2"]
    site.provider.down.add("m2")
    with pytest.raises(NoNodes, match="is down"):
        await _once(site, "debian")
    site.provider.down.clear()
    assert await _once(site, "debian")


@on_site
async def test_a_machine_that_is_not_clean_is_given_to_nobody(site: Site) -> None:
    await site.machine("m1", image="debian")
    site.provider.stuck.add("m1")
    await _once(site, "debian")
    waiting = asyncio.ensure_future(_once(site, "debian"))
    await asyncio.sleep(300)
    assert not waiting.done() and [c.state for c in site.claims] == ["ready"]
    site.provider.stuck.clear()
    assert await waiting == ["m1"]


@on_site
async def test_a_machine_deleted_meanwhile_is_cleaned(site: Site) -> None:
    await site.machine("m1", image="debian")
    async with site.build("debian"):
        await site.inventory.apply(ROOT, [Remove(_uuid("m1"))])
    await site.quiet()
    assert site.provider.calls[-1] == "clean m1"


@on_site
async def test_a_machine_that_no_longer_matches_is_not_used(site: Site) -> None:
    await site.machine("m1", image="debian")
    await site.inventory.apply(ROOT, [Update(_uuid("m1"), set_properties={"image": "none"})])
    with pytest.raises(NoNodes):
        await _once(site, "debian")


@on_site
async def test_local_slots_are_as_many_as_the_provider_says(site: Site) -> None:
    site.tenants = {"t": replace(TENANT, labels={"slot": Label("slot tag:here", project="*")})}
    site.launcher.providers = {**site.launcher.providers, "local": Here()}
    local = Object(
        SITES["east"], "runm.provider", "", "c" * 32, "me", {"kind": "local", "slots": "2", "host": "host"}, ("here",)
    )
    await site.inventory.apply(ROOT, [Create(local)])
    assert sorted(await _once(site, "slot", "slot")) == ["me-1", "me-2"]
    await site.inventory.apply(ROOT, [Update("c" * 32, set_properties={"slots": "1"})])
    with pytest.raises(NoNodes, match="too few"):
        await _once(site, "slot", "slot")
    await site.inventory.apply(ROOT, [Update("c" * 32, set_properties={"host": "elsewhere"})])
    with pytest.raises(NoNodes, match="too few"):
        await _once(site, "slot")


class Here:
    async def prepare(self, machine: Machine) -> dict[str, Any]:
        return {"ansible_connection": "local"}

    async def clean(self, machine: Machine) -> None:
        return None

    async def probe(self, machine: Machine) -> None:
        return None


@on_site
async def test_a_launcher_that_lost_its_lock_claims_nothing(site: Site) -> None:
    """A launcher that has lost its lock claims nothing."""
    await site.machine("m1", image="debian")
    lost: list[GuardLost] = []

    async def second(session: Session) -> None:
        try:
            await site.launcher.run(session)
        except GuardLost as error:
            lost.append(error)
            raise

    works = serve(site.context, "launcher", second, site.stop)
    other = asyncio.ensure_future(run_until(site.stop, works))
    await asyncio.sleep(1)
    (holder, *_) = site.backend.tree.under(Map().nodepool.path)
    await site.store.commit([], [Delete(holder.path)])
    assert await _once(site, "debian") == ["m1"]
    site.stop.set()
    await other


def test_an_executor_of_a_zone_has_the_labels_of_its_partition() -> None:
    context = Context(Store(MemoryBackend()), Mirror(Store(MemoryBackend()), "/zuul"), lambda: 0)
    assert NodeRequester(context, lambda: {"t": TENANT}, zone="west").labels() == {"west"}
    assert NodeRequester(context, lambda: {"t": TENANT}).labels() == set()


@pytest.mark.parametrize(
    ("wanted", "taken", "chosen"),
    [
        ([["a"]], [], ["a"]),
        ([["a", "b"], ["a"]], [], ["b", "a"]),
        ([["a", "b"], ["a", "b"], ["a", "c"]], [], ["b", "a", "c"]),
        ([["a"], ["a"]], [], None),
        ([["a", "b"]], ["a"], ["b"]),
        ([["a"]], ["a"], None),
        ([], [], []),
    ],
)
def test_nodes_give_way_to_one_another(wanted: list[list[str]], taken: list[str], chosen: list[str] | None) -> None:
    assert choose(wanted, taken) == chosen
