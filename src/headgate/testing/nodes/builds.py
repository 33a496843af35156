"""Builds that want machines, as pipelines ask for them, and what came of each: for the simulators of machines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence

from headgate.base.tasks import end
from headgate.config.model import FrozenJob, Node, Nodeset
from headgate.gate.change import Change
from headgate.gate.work import BuildEnded, BuildSpec, RepoState
from headgate.map.places import Map
from headgate.recipes.codec import decode, encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.nodes.zones import zone_of
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
    """Ask for them as a pipeline would, of executors of the zone that has their machines, at most so long after each
    other."""
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
    """Return those of all, each answered once.  Raise MachineInvariantBroken."""
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
