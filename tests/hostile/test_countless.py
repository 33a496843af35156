"""Test proposals with as many jobs, dependencies, provided names and semaphores as they may have, or more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob, JobDependency, JobSemaphore
from headgate.gate.builds.graph import HANDED_MAX_BYTES, parents, skipped
from headgate.gate.builds.provisions import Offer, ProvidingJob, Required
from headgate.gate.builds.reuse import BuildInputs
from headgate.gate.builds.start import TOO_MUCH, run
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import Trees
from headgate.gate.state.model import Build, BuildSet, Item, Queue
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import RepoState
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play
from headgate.web.itemshapes import Moment, NoEstimates, PipelineShaper

from .arena import ATTACKER, Arena

JOBS = 200


class Followed(dict[str, list[tuple[str, bool]]]):
    """Count the dependencies that are followed."""

    count = 0

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self.count += len(found)
        return found


def test_dependencies_of_skipped_jobs_are_followed_a_constant_number_of_times() -> None:
    """Each job depends on the twenty before it, and the first one has failed. As one job still waits, every turn finds
    out again which jobs never run."""
    names = [f"j{number}" for number in range(JOBS)]
    needs = {name: names[max(0, number - 20) : number] for number, name in enumerate(names)}
    jobs = [FrozenJob(name=name, dependencies=tuple(map(JobDependency, needs[name]))) for name in names]
    graph = FrozenGraph(tuple(jobs))
    graph.__dict__["needed_by"] = followed = Followed(graph.needed_by)
    ended = {"j0": Build("j0", "j0", result="FAILURE")}
    assert skipped(BuildSet("b", graph=graph, builds=ended)).keys() == {*names} - {"j0"}
    ended |= {name: Build(name, name, result="SKIPPED") for name in names[1:-1]}
    assert skipped(BuildSet("b", graph=graph, builds=ended)).keys() == {names[-1]}
    assert followed.count <= 4 * sum(map(len, needs.values()))


def test_the_jobs_before_a_job_are_found_once_for_all_jobs() -> None:
    """Two hundred jobs depend on each other, and as many on the last of them; all those wait, and each asks several
    times in every turn which jobs were before it."""
    names = [f"j{number}" for number in range(JOBS)]
    needs = {name: names[:number] for number, name in enumerate(names)}
    needs |= {f"k{number}": names[-1:] for number in range(JOBS)}
    asked = list[str]()

    class Graph(FrozenGraph, frozen=True, dict=True):
        def needs(self, job: FrozenJob) -> Iterable[JobDependency]:
            asked.append(job.name)
            return super().needs(job)

    jobs = [FrozenJob(name=name, dependencies=tuple(map(JobDependency, of))) for name, of in needs.items()]
    buildset = BuildSet("b", graph=Graph(tuple(jobs)))
    for job in (*jobs, *jobs):
        found = parents(buildset, job)
        assert found == ({*names} if job.name.startswith("k") else {*names[: names.index(job.name)]})
    assert len(asked) == len(jobs)


class Names(tuple[str, ...]):
    """Count how often the names that jobs provide are read."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        Names.reads += 1
        return super().__iter__()


def test_each_job_ahead_is_read_once_for_all_jobs_that_require_something_of_it() -> None:
    """Every job of both changes provides something to every job of the other, and all wait for one place."""
    one = JobSemaphore("one")
    jobs = (FrozenJob(name=f"j{n}", provides=Names(("x",)), requires=("x",), semaphores=(one,)) for n in range(JOBS))
    play = Play(manager="independent", layout=PlayLayout(tuple(jobs)))
    for change in (play.change("A"), play.change("B", "A")):
        play.propose(change)
    play.merges()
    assert play.builds == [("A", "j0")]
    Names.reads = 0
    play.propose(play.change("C"))
    assert 0 < Names.reads <= 10 * JOBS, "a turn decides a few times"


def test_messages_of_changes_ahead_are_not_encoded_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs have failed before, and wait for a place. Each turn compares what they would run on with what they
    failed on."""
    jobs = tuple(FrozenJob(name=f"j{number}", semaphores=(JobSemaphore("one"),)) for number in range(JOBS))
    play = Play(manager="independent", layout=PlayLayout(jobs))
    play.pipeline, play.held = replace(play.pipeline, rerun_only_failed=True), {"one": 1}
    failed = {job.name: Build(job.name, job.name, result="FAILURE") for job in jobs}
    play.past = BuildSet("b", graph=FrozenGraph(jobs), builds=failed)
    message = "x" * 16_000
    for below, topic in pairwise(("", "A", "B", "C", "D", "E")):
        play.propose(replace(play.change(topic, *filter(None, [below])), message=message))
    play.merges("E")
    hashed, sha256 = list[int](), hashlib.sha256

    def counted(data: bytes = b"", **more: Any) -> Any:
        hashed.append(len(data))
        return sha256(data, **more)

    monkeypatch.setattr(hashlib, "sha256", counted)
    play.propose(play.change("F"))
    assert len(hashed) > JOBS and sum(hashed) < JOBS * len(message)


def test_inputs_of_jobs_that_wait_are_not_digested_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred jobs whose results may be reused wait for one place, while others end one after the other."""
    digested, digest = list[str](), BuildInputs.digest

    def counted(inputs: BuildInputs) -> str:
        digested.append(inputs.job.name)
        return digest(inputs)

    monkeypatch.setattr(BuildInputs, "digest", counted)
    first, last = FrozenJob(name="first"), FrozenJob(name="last")
    steps = [FrozenJob(name=f"n{number}", noop=True) for number in range(20)]
    steps = [replace(job, dependencies=(JobDependency(before.name),)) for before, job in pairwise([first, *steps])]
    waits = [FrozenJob(name=f"j{n}", reuse=True, semaphores=(JobSemaphore("one"),)) for n in range(JOBS)]
    play = Play(manager="independent", layout=PlayLayout((first, last, *steps, *waits)))
    play.held = {"one": 1}
    play.propose(play.change("A"))
    play.merges()
    play.passes("A", "first")
    play.passes("A", "last")
    for topic in ("B", "C", "D"):
        play.propose(play.change(topic))
    assert play.item("A").buildset and not play.builds, "the others still wait"
    assert sorted(digested) == sorted(job.name for job in waits)


class Jobs(tuple[FrozenJob, ...]):
    """Count how often the jobs are read."""

    reads = 0

    def __iter__(self) -> Iterator[FrozenJob]:
        Jobs.reads += 1
        return super().__iter__()


def test_a_status_reads_the_jobs_ahead_once_for_all_jobs_that_wait() -> None:
    """The last job of the change ahead holds back the change behind, and all jobs of both wait."""
    jobs = Jobs(FrozenJob(name=f"j{number}", hold_following_changes=number == JOBS - 1) for number in range(JOBS))
    first = Item("i0", Change("git", "git.example/p", "master", "A"), buildset=BuildSet("s0", graph=FrozenGraph(jobs)))
    behind = BuildSet("s1", ahead="s0", graph=FrozenGraph(tuple(jobs)))
    second = Item("i1", Change("git", "git.example/p", "master", "B"), buildset=behind)
    now = Moment({}, {}, {}, NoEstimates(), 0, "")
    Jobs.reads = 0
    (queue,) = PipelineShaper("t", "gate").queues([Queue("q", "p", (first, second), window=0)], now, (), lambda _: None)
    told = [job.waiting_status for head in queue.heads for item in head for job in item.jobs]
    assert told == [None] * JOBS + ["a job of a change ahead (hold-following-changes)"] * JOBS
    assert 0 < Jobs.reads <= 10


@pytest.mark.parametrize("kind", ["data", "artifacts", "secret", "given", "inputs"])
def test_data_of_all_jobs_before_is_not_encoded_for_a_job_that_receives_too_much(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred jobs have returned a large text each, under a name of its own, and each job after them receives all
    of it."""
    text = "x" * (100_000 if kind == "secret" else 250_000)
    artifact = {"name": "x", "url": "https://x.example/", "metadata": {"text": text}}
    artifacts: dict[str, object] = {"zuul": {"artifacts": [artifact]}}
    names = [f"j{number}" for number in range(JOBS)]
    builds = {name: Build(name, name, result="SUCCESS") for name in names}
    for name, build in builds.items():
        match kind:
            case "data" | "inputs":
                builds[name] = replace(build, data={name: text})
            case "secret":
                builds[name] = replace(build, secret=Sealed(box=text))
            case "artifacts":
                builds[name] = replace(build, data=artifacts)
    offer = Offer()
    if kind == "given":
        ahead, job = Item("a", Change("git", "p", "master", "B")), FrozenJob(name="image")
        image = Build("image", "image", result="SUCCESS", data=artifacts)
        assert image.returned.artifacts
        offer.providers += [ProvidingJob(number, ahead, job, image) for number in range(JOBS)]
    assert all(build.returned is build.returned for build in builds.values()), "each build checks its data once"
    after = FrozenJob(name="after", dependencies=tuple(map(JobDependency, names)), reuse=kind == "inputs")
    graph = FrozenGraph((*(FrozenJob(name=name) for name in names), after))
    play = Play(manager="independent")
    item = Item("i", play.change("A"))
    master = {"p": {"master": "x"}}
    state = RepoState(heads={"p": {"refs/heads/master": "x"}}, merged=master, trees=master, known=Trees(master, master))
    buildset = BuildSet("b", graph=graph, builds=builds, state=state)
    encoded, encode = list[int](), msgspec.json.encode

    def counted(value: object, **how: Any) -> bytes:
        found = encode(value, **how)
        encoded.append(len(found))
        return found

    monkeypatch.setattr(msgspec.json, "encode", counted)
    build = run(item, buildset, after, 1, play.world, [], given=Required(False, "", (offer,)).artifacts)
    assert (build.result, build.error, bool(build.inputs)) == ("FAILURE", TOO_MUCH, kind == "inputs")
    assert HANDED_MAX_BYTES < sum(encoded) < 10 * HANDED_MAX_BYTES


def holding(count: int) -> str:
    names = ", ".join(f"s{number}" for number in range(count))
    jobs = "".join(f"- job: {{name: {job}, run: jobs/unit, semaphores: [{names}]}}\n" for job in ("one", "two"))
    return f"{jobs}- project: {{check: {{jobs: [one, two]}}}}\n"


def test_a_job_with_more_semaphores_than_one_commit_can_free_stops_nobody(tmp_path: Path) -> None:
    settings, files = "item_semaphores_max = 300\n", {"jobs/unit": "#!/bin/sh\nexit 0\n"}
    with Arena(tmp_path, scheduler=settings, files=files) as arena:
        many = arena.propose(ATTACKER, "many", {"zuul.yaml": holding(300)})
        more = arena.propose(ATTACKER, "more", {"zuul.yaml": holding(301)})
        arena.neighbours_land()
        assert "more than 300 semaphores" in arena.note_section(ATTACKER, more, "check")
        told = arena.note_section(ATTACKER, many, "check")
        assert told.startswith("Build succeeded.") and "- two " in told
        arena.neighbours_land()
