"""Test the complete gate on real repositories, with simulated jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.sql.history import SqlHistory
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.places import Map
from headgate.map.records import Finished, SemaphoreHolder, SemaphoreRecord
from headgate.ports.history import HistoryQuery
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Entry
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories

from .conftest import PIPELINES, TENANTS


async def test_a_proposed_change_is_checked_and_an_approved_one_lands(
    tmp_path: Path, repositories: Repositories
) -> None:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        before = repositories.head("code/api")
        commit = repositories.propose("code/api", "greet", {"hello": "hi\n"}, "Greet people")
        checked = await running.history.result_of("greet", "check")
        assert checked.result == "SUCCESS"
        repositories.approve("code/api", "greet")
        landed = await running.history.result_of("greet", "gate")
        assert landed.result == "SUCCESS"
        assert repositories.head("code/api") != before
        assert repositories.show("code/api", "hello") == "hi"
        assert "Build succeeded." in repositories.note("code/api", commit)


PAUSING = """
- job:
    name: serves
    run: jobs/unit
- job:
    name: uses
    run: jobs/unit
    dependencies: serves
- project:
    name: code/api
    check:
      jobs: [serves, uses]
"""
SERVICE = {"port": 8080, "certificate": "x" * 100_000}
"""More than fits into an event."""


async def test_a_job_is_paused_until_those_that_use_it_have_ended(tmp_path: Path, repositories: Repositories) -> None:
    """On an executor with one place, a paused build takes none; otherwise the jobs that use it would never start."""
    parent_data: list[object] = []

    def serves(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        parent_data.append("serves")
        return BuildOutcome(build=spec.build, result="SUCCESS", data={"zuul": {"pause": True}, **SERVICE})

    def uses(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        parent_data.append(spec.parent_data)
        return BuildOutcome(build=spec.build, result="SUCCESS")

    repositories.create("pausing", {"zuul.yaml": PIPELINES + PAUSING, "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- pausing\n")
    jobs = {"serves": serves, "uses": uses}
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants, jobs, builds_max=1) as running:
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        finished = await running.history.result_of("greet", "check")
        assert finished.result == "SUCCESS" and parent_data == ["serves", SERVICE]
        assert {b.job_name: b.result for b in finished.builds} == dict.fromkeys(("unit", *jobs), "SUCCESS")
        place = running.context.map.executor.unzoned.result_data.path
        assert not await running.context.store.list(place), "what is taken up is gone"


class Forgetful(MemoryBackend):
    """Lose the first requested result."""

    forgot = False

    async def get(self, path: str) -> Entry | None:
        if not self.forgot and path.startswith(f"{Map().executor.unzoned.result_data.path}/"):
            self.forgot = True
            return None
        return await super().get(path)


async def test_a_build_whose_data_was_lost_is_tried_again(tmp_path: Path, repositories: Repositories) -> None:
    def returns(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        return BuildOutcome(build=spec.build, result="SUCCESS", data=dict(SERVICE))

    backend = Forgetful()
    async with gate(tmp_path, repositories.hub, backend, TENANTS, {"unit": returns}) as running:
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        assert (await running.history.result_of("greet", "check")).result == "SUCCESS"
        assert backend.forgot and [spec.attempt for spec in running.runner.ran] == [1, 2]


async def test_a_playbooks_semaphore_goes_with_its_build(tmp_path: Path, repositories: Repositories) -> None:
    text = PIPELINES.replace("    run: jobs/unit\n", "    run: jobs/unit\n    semaphores: [printer]\n")
    repositories.create(
        "printing", {"zuul.yaml": f"{text}- semaphore:\n    name: printer\n", "jobs/unit": "#!/bin/sh\n"}
    )
    place = Map().semaphores("example").semaphore("printer").record
    store = Store(MemoryBackend())
    dead = SemaphoreHolder("check", "set", "unit", "a build that ended long ago")
    await store.commit([], [place.put(SemaphoreRecord((dead,)))])
    tenants = TENANTS.replace("- config\n", "- printing\n")
    async with gate(tmp_path, repositories.hub, store.backend, tenants) as running:
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        assert (await running.history.result_of("greet", "check")).result == "SUCCESS"
        entry = await store.get(place.path)
        assert entry is not None and place.decode(entry.value).holders == ()


async def test_changes_behind_a_build_that_will_fail_do_not_wait_for_its_end(
    tmp_path: Path, repositories: Repositories
) -> None:
    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        return BuildOutcome(build=spec.build, result="FAILURE" if spec.change.topic == "bad" else "SUCCESS")

    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, {"unit": unit}) as running:
        running.runner.lingering = asyncio.Event()
        repositories.propose("code/api", "bad", {"hello": "no\n"})
        repositories.approve("code/api", "bad")
        await running.runner.begun(1)
        repositories.propose("code/lib", "good", {"hello": "hi\n"})
        repositories.approve("code/lib", "good")
        async with asyncio.timeout(DEADLINE_S):
            while not (alone := [s for s in running.runner.ran if s.change.topic == "good" and s.pipeline == "gate"]):
                await running.runner.begun(len(running.runner.ran) + 1)
        assert alone and not any(f.pipeline == "gate" for f in running.history.finished.values())
        running.runner.lingering.set()
        assert (await running.history.result_of("bad", "gate")).result == "FAILURE"
        assert (await running.history.result_of("good", "gate")).result == "SUCCESS"
        assert repositories.show("code/lib", "hello") == "hi"


async def test_a_semaphore_with_resources_first_is_taken_by_the_executor(
    tmp_path: Path, repositories: Repositories
) -> None:
    """Both builds are requested, on an executor with one place; the one that waits for the semaphore takes none."""
    text = PIPELINES.replace("    run: jobs/unit\n", "    run: jobs/unit\n    semaphores: [SEMAPHORE]\n")
    text = text.replace("SEMAPHORE", "{name: printer, resources-first: true}")
    repositories.create(
        "printing", {"zuul.yaml": f"{text}- semaphore:\n    name: printer\n", "jobs/unit": "#!/bin/sh\n"}
    )
    place = Map().semaphores("example").semaphore("printer").record
    store, held = Store(MemoryBackend()), list[int]()

    tenants = TENANTS.replace("- config\n", "- printing\n")
    async with gate(tmp_path, repositories.hub, store.backend, tenants, builds_max=1) as running:
        running.runner.hold = asyncio.Event()
        for topic in ("one", "two"):
            repositories.propose("code/api", topic, {topic: "hi\n"})
        await running.runner.begun(1)
        entry = await store.get(place.path)
        assert entry is not None and [h.build for h in place.decode(entry.value).holders] == [
            spec.build for spec in running.runner.ran
        ]
        held.append(len(running.runner.ran))
        running.runner.hold.set()
        for topic in ("one", "two"):
            assert (await running.history.result_of(topic, "check")).result == "SUCCESS"
        assert held == [1]
        entry = await store.get(place.path)
        assert entry is not None and place.decode(entry.value).holders == ()


RIPPLING = """
- pipeline:
    name: again
    manager: independent
    trigger:
      zuul:
        - event: parent-change-enqueued
          pipeline: gate
    success:
      local: {}

- pipeline:
    name: afresh
    manager: independent
    trigger:
      zuul:
        - event: project-change-merged
    success:
      local: {}

- project:
    name: ^code/.*
    again:
      jobs: [unit]
    afresh:
      jobs: [unit]
"""


@pytest.mark.long
async def test_events_of_one_change_start_tests_of_others(tmp_path: Path, repositories: Repositories) -> None:
    repositories.create("rippling", {"zuul.yaml": PIPELINES + RIPPLING, "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- rippling\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants) as running:
        repositories.propose("code/lib", "base", {"base": "x\n"})
        repositories.propose("code/lib", "open", {"open": "x\n"})
        repositories.propose("code/api", "user", {"user": "x\n"}, "Use it\n\nDepends-On: code/lib/master/base")
        for topic in ("base", "open", "user"):
            await running.history.result_of(topic, "check")
        assert {one.pipeline for one in running.history.finished.values()} == {"check"}
        repositories.approve("code/lib", "base")
        assert (await running.history.result_of("user", "again")).result == "SUCCESS"
        assert (await running.history.result_of("open", "afresh")).result == "SUCCESS"
        ended = {(one.pipeline, one.change.topic) for one in running.history.finished.values()}
        assert not ended & {("again", "open"), ("again", "base"), ("afresh", "base"), ("afresh", "user")}


PROVIDING = """
- job:
    name: image
    run: jobs/unit
    provides: images
- job:
    name: deploy
    run: jobs/unit
    requires: images
- project:
    name: code/api
    check:
      jobs: [image, deploy]
"""


class RecordingHistory(SqlHistory):
    """Return what is recorded."""

    def __init__(self, dburi: str) -> None:
        super().__init__(dburi)
        self.topics: asyncio.Queue[str] = asyncio.Queue()

    async def record(self, finished: Finished) -> None:
        await super().record(finished)
        self.topics.put_nowait(finished.change.topic)


@pytest.mark.long
async def test_artifacts_of_a_needed_change_are_those_of_its_last_test(
    tmp_path: Path, repositories: Repositories
) -> None:
    def image(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        if spec.change.topic == "broken":
            return BuildOutcome(build=spec.build, result="FAILURE")
        made = [{"name": "image", "url": f"http://images/{spec.change.topic}"}]
        return BuildOutcome(build=spec.build, result="SUCCESS", data={"zuul": {"artifacts": made}})

    repositories.create("providing", {"zuul.yaml": PIPELINES + PROVIDING, "jobs/unit": "#!/bin/sh\n"})
    tenants, history = TENANTS.replace("- config\n", "- providing\n"), RecordingHistory(f"sqlite:///{tmp_path}/history")
    async with gate(
        tmp_path, repositories.hub, MemoryBackend(), tenants, {"image": image}, recording=history, history=history
    ) as running:

        async def checked(topic: str, needs: str = "") -> dict[str, str | None]:
            message = f"{topic}\n\nDepends-On: code/api/master/{needs}" if needs else topic
            repositories.propose("code/api", topic, {topic: "x\n"}, message)
            async with asyncio.timeout(DEADLINE_S):
                while await history.topics.get() != topic:
                    pass
            found = await history.buildsets("example", HistoryQuery({"change": (topic,)}))
            buildset = await history.buildset("example", found[0].uuid)
            assert buildset is not None and buildset.builds is not None
            return {build.job_name: build.result for build in buildset.builds}

        assert set((await checked("base")).values()) == {"SUCCESS"}
        assert set((await checked("user", "base")).values()) == {"SUCCESS"}
        (deploy,) = (s for s in running.runner.ran if (s.change.topic, s.job.name) == ("user", "deploy"))
        assert [one["url"] for one in deploy.zuul["artifacts"]] == ["http://images/base"]
        await checked("broken")
        assert (await checked("after", "broken"))["deploy"] == "FAILURE"
    history.close()
