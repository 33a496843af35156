"""Test the places of the contract in one run of the complete gate: every declared place must be used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from headgate.base.ids import fresh
from headgate.config.model import FrozenJob
from headgate.gate.state.change import Change
from headgate.gate.state.management import Dequeue
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.check import check
from headgate.map.records import ForPipeline
from headgate.recipes.calls import call
from headgate.services.membership import Membership
from headgate.services.orders import ask
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.memory import MemoryBackend
from headgate.store.types import Backend
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.backends import RecordingBackend
from headgate.testing.gate import gate
from headgate.testing.lawful import LawfulBackend, Laws
from headgate.testing.repositories import Repositories
from headgate.testing.servers.databases import Etcd, ZooKeeper, chroot

from .conftest import PIPELINES, TENANTS

EVERYBODY = frozenset({"scheduler", "executor", "merger", "web", "fingergw"})
"""In this one process."""
UNUSED = {
    "/mozilla": "the workers of queues have a test of their own",
    "/runm": "the inventory has a test of its own",
    "/zuul/executor/zones": "no executor has a zone here",
    "/zuul/nodepool": "no launcher takes part",
}
"""Prefixes of places that this run does not need, and why."""


@pytest.fixture(params=["memory", "zookeeper", "etcd"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    found: Backend
    if request.param == "zookeeper":
        server: ZooKeeper = request.getfixturevalue("zookeeper_server")
        found = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{server.port}{await chroot(server)}")
    else:
        etcd: Etcd = request.getfixturevalue("etcd_server")
        found = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd.port}/{fresh()}")
    yield found
    await found.close()


@pytest.mark.long
async def test_every_place_the_gate_needs_is_written_and_reads_back(
    tmp_path: Path, repositories: Repositories, backend: Backend
) -> None:
    semaphore = "    semaphores: [printer]\n- semaphore:\n    name: printer\n"
    text = PIPELINES.replace("    run: jobs/unit\n", "    run: jobs/unit\n" + semaphore)
    repositories.create("semaphored", {"zuul.yaml": text, "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- semaphored\n")
    recording = RecordingBackend(backend)
    lawful = LawfulBackend(recording, Laws("/zuul"), EVERYBODY)
    jobs = {
        "unit": lambda spec, state: BuildOutcome(
            build=spec.build, result="SUCCESS", data={"much": "x" * 20_000}, image="d@sha256:1"
        )
    }
    async with gate(tmp_path, repositories.hub, lawful, tenants, jobs) as running:
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        await running.history.result_of("greet", "check")
        repositories.approve("code/api", "greet")
        landed = await running.history.result_of("greet", "gate")
        assert [build.image for build in landed.builds] == ["d@sha256:1"]
        store, stop = running.context.store, asyncio.Event()
        finger = Membership(running.context, "fingergw")
        serving = asyncio.ensure_future(finger.serve(lambda _: forever(), stop))
        await finger.joined.wait()
        stop.set()
        await serving
        async with store.session("somebody") as session:
            work = Dequeue("git.example/code/api/master/none")
            stream = running.context.map.events.tenant("example").management.stream
            for pipeline, why in (("gate", "not in the pipeline"), ("none", "no pipeline")):
                reply = await ask(running.context, session, stream, partial(ForPipeline, pipeline, work))
                assert why in reply.text
            one = Change("local", "git.example/code/api", "master")
            alone = BuildSpec("b", "", "example", "check", "i", FrozenJob("unit"), one, state=RepoState())
            answer = await call(running.context.builds, session, msgspec.json.encode(alone), precedence=1, meta={})
            assert msgspec.json.decode(answer, type=BuildOutcome).result == "SUCCESS"
    findings = check(recording.seen.values())
    assert findings.good, findings.text()
    unused = [p for p in findings.unused if not p.startswith(tuple(UNUSED))]
    assert not unused, findings.text(every=True)


async def forever() -> None:
    await asyncio.Event().wait()
