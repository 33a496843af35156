"""Record a store as a release leaves it in the middle of its work, and the world around it.

`python -m tests.sim.recorded FILE`, run with the code of a release, writes the fixture of that release.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.ids import drawn_from
from headgate.base.tasks import end, run_until
from headgate.config.operator.model import Connection, Tenant
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.places import Map
from headgate.ports.work import Contact
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import Body, serve
from headgate.services.merger import Merger
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.memory import MemoryBackend, Tree
from headgate.store.store import Store
from headgate.store.types import Entry
from headgate.testing.clock import run_virtual
from headgate.testing.gate import Remembered
from headgate.testing.layouts import parse_tenants
from headgate.testing.sim.doubles import SimForge, SimGit, SimRunner
from headgate.testing.sim.worlds import BRANCH, HOST, SimProposal, SimWorld

TENANTS = """
- global-semaphore: {name: one, max: 1}
- tenant:
    name: t
    semaphores: [one]
    source: {sim: {config-projects: [config], untrusted-projects: [a, d]}}
- tenant:
    name: v
    semaphores: [one]
    source: {sim: {config-projects: [beside], untrusted-projects: [b]}}
"""
CONFIG = """
- job: {name: base, parent: null, run: jobs/x}
- job: {name: unit, semaphore: one}
- job: {name: quick}
- job: {name: serves}
- job: {name: uses, dependencies: [serves]}
- job: {name: tells, type: reporter}
- pipeline:
    name: check
    manager: independent
    trigger: {sim: [{event: change-proposed}]}
    success: {sim: {}}
    failure: {sim: {}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {sim: [{event: change-approved}]}
    require: {sim: {approved: true}}
    success: {sim: {land: true}}
    failure: {sim: {}}
    window: 3
    window-floor: 2
- pipeline:
    name: post
    manager: supercedent
    trigger: {sim: [{event: ref-updated}]}
- project:
    name: ^.*$
    queue: shared
    check: {jobs: [quick]}
    gate: {jobs: [quick, serves, uses, unit, tells]}
    post: {jobs: [quick]}
"""
BUSY_S = 60.0
"""Virtual time by which everything is done that is not held."""


@dataclass(slots=True)
class HeldRunner:
    """Run builds as the simulator does; builds for which `held` returns True never end."""

    inner: SimRunner
    held: Callable[[BuildSpec], bool]

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        if self.held(spec):
            await cancel.wait()
            return BuildOutcome(build=spec.build, result="CANCELED")
        return await self.inner.run(spec, state, cancel, contact)


def parsed() -> dict[str, Tenant]:
    return parse_tenants(TENANTS, "tenants.yaml", {"sim": Connection("sim", HOST)})


@dataclass(slots=True)
class Office:
    """Run one process that serves both tenants."""

    world: SimWorld
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    history: Remembered = field(default_factory=Remembered)

    async def work(self, held: Callable[[BuildSpec], bool], begun_s: float = 1e6) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        store = Store(self.backend)
        context = Context(
            store, Mirror(store, Map().path), lambda: int((loop.time() + begun_s) * 1000), ProcessSettings("here")
        )
        scheduler = Scheduler.of(context, TENANTS, parsed(), "tenants.yaml", {"sim": SimForge(self.world)})
        bodies: dict[str, Body] = {
            "scheduler": scheduler.run,
            "web": Recorder(context, self.history).run,
            "executor": Executor(context, HeldRunner(SimRunner(self.world, flaky=0.0), held), ExecutorSettings(20)).run,
            "merger": Merger(context, SimGit(self.world)).run,
        }
        stop = asyncio.Event()
        await run_until(
            stop, context.mirror.run(), *(serve(context, kind, body, stop) for kind, body in bodies.items())
        )


def world() -> SimWorld:
    made = SimWorld(
        random.Random(1),
        CONFIG,
        CONFIG,
        gating=("quick", "serves", "uses", "unit"),
        pipelines={"check": "t", "gate": "t", "post": "t"},
        served=("uses",),
        returned={"much": "x" * 2_000, "zuul": {"artifacts": [{"name": "one", "url": "one.tar"}]}},
    )
    made.heads[f"{HOST}/d"] = "h"
    return made


def change(project: str, topic: str, *needs: Change) -> Change:
    keys = tuple(one.key for one in needs)
    ref = f"refs/for/{BRANCH}/{topic}"
    return Change("sim", f"{HOST}/{project}", BRANCH, topic, commit=f"c-{topic}", ref=ref, files=("x",), needs=keys)


def held(spec: BuildSpec) -> bool:
    """Return whether a build never ends: the reporter's job, a job that needs a paused job (in each tenant), the job
    with the semaphore, a job of check, and one after a push."""
    return (spec.job.name, spec.change.topic) in {
        ("tells", "landed"),
        ("uses", "second"),
        ("quick", "in-check"),
        ("uses", "elsewhere"),
        ("unit", "third"),
    } or (spec.pipeline, spec.job.name) == ("post", "quick")


async def _played(office: Office) -> None:
    """Play until one change has landed and its reporter's job runs, another has a paused build beside a running one,
    others wait for it, for the semaphore and outside of the window, and one fails behind it."""
    world = office.world
    life = asyncio.ensure_future(office.work(held))
    world.propose(change("a", "landed"), approved=True)
    await asyncio.sleep(BUSY_S)
    world.conflicting.add(frozenset(["c-bad"]))
    second = change("a", "second")
    world.propose(second, approved=True)
    world.proposals["c-third"] = SimProposal("c-third")
    third = replace(change("d", "third"), files=("x", "zuul.yaml"))
    for one in (change("d", "behind", second), change("a", "bad"), third, change("a", "outside")):
        world.propose(one, approved=True)
    world.propose(change("a", "in-check"), approved=False)
    world.propose(change("b", "elsewhere"), approved=True)
    await asyncio.sleep(BUSY_S)
    world.push_past_the_gate(f"{HOST}/d")
    await asyncio.sleep(BUSY_S)
    await end(life)


def written(office: Office) -> str:
    """Return what outlives the process, the entries without a lease and the world, as JSON."""
    tree, around = office.backend.tree, office.world
    lasting = (entry for _, entry in sorted(tree.entries.items()) if entry.lease is None)
    entries = [[entry.path, entry.version, entry.born, _text(entry.value)] for entry in lasting]
    plain = {
        "heads": around.heads,
        "foreign": around.foreign,
        "tested": {key: sorted(jobs) for key, jobs in around.tested.items()},
        "conflicting": [sorted(commits) for commits in around.conflicting],
        "landed": [one.topic for one in around.landed],
        "proposals": sorted(around.proposals),
        "open": [json.loads(msgspec.json.encode(change_state)) for change_state in around.open.values()],
    }
    found = {"revision": tree.revision, "appended": dict(tree.appended), "world": plain, "entries": entries}
    return json.dumps(found, indent=0, sort_keys=True) + "\n"


def _text(value: bytes) -> Any:
    """Return the text itself, or a list with its base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return [base64.b64encode(value).decode()]


def read(path: Path) -> Office:
    """Return the recorded world."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    entries = [
        Entry(path, value.encode() if isinstance(value, str) else base64.b64decode(value[0]), version, born, None)
        for path, version, born, value in found["entries"]
    ]
    made, plain = world(), found["world"]
    made.heads, made.foreign = plain["heads"], plain["foreign"]
    made.tested = {key: set(jobs) for key, jobs in plain["tested"].items()}
    made.conflicting = {frozenset(commits) for commits in plain["conflicting"]}
    made.proposals = {commit: SimProposal(commit) for commit in plain["proposals"]}
    for change_state in msgspec.convert(plain["open"], list[ChangeState]):
        made.propose(change_state.change, approved=bool(change_state.approved))
    return Office(made, MemoryBackend(Tree(entries, found["appended"], found["revision"])))


if __name__ == "__main__":
    with drawn_from(random.Random("release").getrandbits):
        office = Office(world())
        run_virtual(_played(office))
    Path(sys.argv[1]).write_bytes(gzip.compress(written(office).encode(), mtime=0))
