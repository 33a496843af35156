"""Test that launchers read the machines of the configuration, and follow landed changes."""

from __future__ import annotations

from pathlib import Path

from headgate.config.machines import FlatProvider
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.lawful import LawfulBackend, Laws
from headgate.testing.repositories import Repositories, run_git

from .conftest import MACHINE_TENANTS, PIPELINES

MACHINES = """
- image: {name: debian, type: cloud}
- flavor: {name: small}
- label: {name: little, image: debian, flavor: small}
- section:
    name: west
    connection: sky
    region: west-1
    images: [{name: debian, image-id: ami-1}]
    flavors: [{name: small, instance-type: t3}]
- provider: {name: main, section: west, labels: [little]}
"""
NAME = "git.example%2Fconfig/main"


def push(repositories: Repositories, text: str) -> None:
    """Push past the gate."""
    repositories.write("config", {"zuul.yaml": text})
    run_git("commit", "-q", "-m", "Say where machines come from", at=repositories.work("config"))
    run_git("push", "-q", "origin", "master", at=repositories.work("config"))


async def provider(context: Context, image: str) -> FlatProvider | None:
    """Wait until the provider uses this image; empty: until there is no provider."""
    place = context.map.nodes.providers("example").provider(NAME).record
    with context.mirror.part(place.path) as part:
        while True:
            seen, entry = part.moves, context.mirror.get(place.path)
            found = place.decode(entry.value) if entry is not None else None
            if (found.labels[0].image["image-id"] if found is not None else "") == image:
                return found
            await part.moved(seen)


async def test_launchers_get_the_configuration(tmp_path: Path, repositories: Repositories) -> None:
    push(repositories, PIPELINES + MACHINES)
    lawful = LawfulBackend(MemoryBackend(), Laws("/zuul"), frozenset({"scheduler", "executor", "merger", "web"}))
    async with gate(tmp_path, repositories.hub, lawful, MACHINE_TENANTS, clouds={"sky": "aws"}) as running:
        found = await provider(running.context, "ami-1")
        assert found is not None and (found.connection, found.driver) == ("sky", "aws")
        assert found.settings == {"region": "west-1"} and found.labels[0].flavor["instance-type"] == "t3"
        push(repositories, PIPELINES + MACHINES.replace("ami-1", "ami-2"))
        assert await provider(running.context, "ami-2")
        push(repositories, PIPELINES)
        assert await provider(running.context, "") is None
