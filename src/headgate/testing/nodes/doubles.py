"""Model the surroundings of simulated machines: builds that need them, and a cloud that makes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.base.tasks import end
from headgate.config.model import FrozenJob, Node, Nodeset
from headgate.gate.state.change import Change
from headgate.gate.state.works import BuildEnded, BuildSpec, RepoState
from headgate.map.places import Map
from headgate.ports import clouds
from headgate.recipes.codec import decode, encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.nodes.requester import zone_of
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store


class MachineInvariantBroken(AssertionError):
    """Report that a promise about machines does not hold."""


def wanted(number: int, project: str, labels: Sequence[str], tenant: str = "t") -> BuildSpec:
    """Return a build of the project whose nodes have these labels."""
    nodes = tuple(Node((f"n{place}",), label) for place, label in enumerate(labels))
    return BuildSpec(
        build=f"{project}-{number}",
        buildset="s",
        tenant=tenant,
        pipeline="p",
        item="i",
        job=FrozenJob(name="j", nodeset=Nodeset(nodes=nodes)),
        change=Change(connection="sim", project=project, branch="m", topic="t", commit="c", ref="r"),
        state=RepoState(),
    )


async def ask(backend: MemoryBackend, builds: Iterable[BuildSpec], chance: random.Random, apart_s: float = 0.0) -> None:
    """Request builds as a pipeline would, from executors of the zone that has their machines; between two of them pass
    `apart_s` at most."""
    store = Store(backend)
    context = Context(store, Mirror(store, Map().path), lambda: 0)
    following = asyncio.ensure_future(context.mirror.run())
    try:
        await context.mirror.ready()
        for spec in builds:
            meta = {"tenant": spec.tenant, "pipeline": spec.pipeline, "buildset": spec.buildset, "job": spec.build}
            request = Request(id=spec.build, precedence=chance.choice((100, 200)), meta=meta)
            zone = zone_of(spec.job, context, spec.tenant)
            await store.commit([], context.zone(zone).submit(request, encode(spec)))
            if apart_s:
                await asyncio.sleep(chance.random() * apart_s)
    finally:
        await end(following)


def results(backend: MemoryBackend, builds: Mapping[str, BuildSpec]) -> dict[str, str]:
    """Return build -> result. Raise MachineInvariantBroken unless each build is answered exactly once."""
    tenants = sorted({spec.tenant for spec in builds.values()})
    streams = [Map().events.tenant(tenant).pipelines("p").result.stream for tenant in tenants]
    ended = [decode(entry.value, BuildEnded) for one in streams for entry in backend.tree.under(one.data)]
    found = {one.outcome.build: one.outcome.result or "" for one in ended}
    # Both: a build that is answered twice is as wrong as one that is never answered.
    if len(ended) != len(builds) or found.keys() != builds.keys():
        raise MachineInvariantBroken(
            f"of {sorted(builds)} these were answered: {sorted(one.outcome.build for one in ended)}"
        )
    return found


@dataclass(slots=True)
class Instance:
    """Represent a machine in the account."""

    id: str
    tags: dict[str, str]
    ready_s: float
    listed_s: float
    """Time from which lists contain the machine."""
    broken: bool = False


@dataclass(slots=True)
class CloudFaults:
    """Set how often each fault occurs."""

    lost: float = 0.0
    """Chance that a call takes effect and its answer is lost."""
    away: float = 0.0
    throttled: float = 0.0
    broken: float = 0.0
    """Chance that a machine comes up in error."""
    refused: float = 0.0
    late_s: float = 0.0
    """Longest time for which a new machine is missing in lists."""
    secret: bool = False
    """Whether the limits of the account cannot be read."""
    slow_s: float = 1.0
    """Longest duration of a call."""
    boot_s: float = 60.0
    """Longest time until a machine has started."""


@dataclass(slots=True)
class Sky:
    """Implement `ports.clouds.Cloud` for one account, whose machines are `instances`."""

    chance: random.Random
    faults: CloudFaults
    most: int = 5
    others: int = 0
    """Machines in the account that are not ours."""
    name: str = "i"
    instances: dict[str, Instance] = field(default_factory=dict)
    made: int = 0
    calls: int = 0

    async def uses(self, wanted: clouds.MachineSpec) -> clouds.Amounts:
        """Return the resources that one machine takes."""
        await self._call()
        if "flavor" in wanted.flavor:
            raise clouds.LaunchFailed(f"there is no flavor {wanted.flavor['flavor']}")
        return {"instances": 1}

    async def advance(self, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending | clouds.Made:
        """Make the machine, or report its progress; a machine of this node that exists already is used."""
        await self._call()
        now_s = asyncio.get_running_loop().time()
        # Even if it is not listed yet, as with the token of a call: a node is made once.
        own = next((one for one in self.instances.values() if one.tags[clouds.NODE_TAG] == wanted.node), None)
        if own is None and state:
            raise clouds.LaunchFailed("the machine is gone")
        if own is None:
            if self.chance.random() < self.faults.refused:
                raise clouds.LaunchFailed("no host was found for it")
            if len(self.instances) + self.others >= self.most:
                raise clouds.OverQuota("instances")
            self.made += 1
            own = Instance(
                f"{self.name}-{self.made}",
                dict(wanted.tags),
                now_s + self.chance.random() * self.faults.boot_s,
                now_s + self.chance.random() * self.faults.late_s,
                self.chance.random() < self.faults.broken,
            )
            self.instances[own.id] = own
        self._lose()
        if now_s < own.ready_s:
            return clouds.MachinePending({"id": own.id}, "the instance is pending")
        if own.broken:
            raise clouds.LaunchFailed("the instance is in error")
        return clouds.Made(own.id, {"id": own.id}, {"ansible_host": own.id, "ansible_connection": "ssh"}, {"az": "one"})

    async def remove(self, wanted: clouds.MachineSpec, state: clouds.State) -> bool:
        """Delete the machine of the node, from the state or from the list."""
        await self._call()
        now_s = asyncio.get_running_loop().time()
        for one in list(self.instances.values()):
            listed = one.tags[clouds.NODE_TAG] == wanted.node and one.listed_s <= now_s
            if listed or one.id == state.get("id"):
                del self.instances[one.id]
                self._lose()
                return False
        return True

    async def resources(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        """Return the machines that are listed by now."""
        await self._call()
        now_s = asyncio.get_running_loop().time()
        listed = [one for one in self.instances.values() if one.listed_s <= now_s]
        # Without tags: they count against the limit, and a launcher that deletes one trips the assertion in `delete`.
        strange = [clouds.Resource(f"s-{number}", "instance", {}, {"instances": 1}) for number in range(self.others)]
        return [clouds.Resource(one.id, "instance", one.tags, {"instances": 1}) for one in listed] + strange

    async def delete(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        """Delete resources that nobody needs; foreign ones stay."""
        await self._call()
        assert resource.tags.get(clouds.SYSTEM_TAG), "not ours"
        self.instances.pop(resource.id, None)

    async def limits(self, provider: Mapping[str, Any]) -> clouds.Amounts:
        """Return the limit on machines."""
        await self._call()
        if self.faults.secret:
            raise clouds.CloudUnavailable("the limits are secret")
        return {"instances": self.most}

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    async def _call(self) -> None:
        self.calls += 1
        await asyncio.sleep(self.chance.random() * self.faults.slow_s)
        if self.chance.random() < self.faults.away:
            raise clouds.CloudUnavailable("no answer")
        if self.chance.random() < self.faults.throttled:
            raise clouds.CloudUnavailable("slower, please", 5.0)

    def _lose(self) -> None:
        """Perform the call, and lose its answer."""
        if self.chance.random() < self.faults.lost:
            raise clouds.CloudUnavailable("the answer was lost")
