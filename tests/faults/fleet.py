"""Run Headgate as several processes on one store, with a network between them that can be cut."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headgate.store.types import Backend, Entry
from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.faults import Proxy
from headgate.testing.servers.program import Program, SmallDisk
from tests.e2e.copies import CopiedProgram
from tests.faults.engines import Engine
from tests.waiting import until

KINDS = ("scheduler", "scheduler", "merger", "merger", "executor", "executor", "executor")
SESSION_S = 4.0
LOOK_S = 0.2
ENDED_S = 300.0
ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}
DISK_BYTES = 64_000_000

CONFIG = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- semaphore: {name: printer, max: 2}
- job: {name: base, parent: null, abstract: true, run: jobs/unit}
- job: {name: one, semaphores: [printer]}
- job: {name: two}
- job: {name: three}
- job: {name: four}
- project:
    name: ^code/.*
    queue: integrated
    gate: {jobs: [one, two, three, four]}
"""
UNIT = "#!/bin/sh\nsleep 0.5\ntest ! -e BROKEN\n"
TENANTS = """
- tenant:
    name: example
    source:
      local:
        config-projects: [config]
        untrusted-projects: [code/api, code/lib]
"""
PROJECTS = ("code/api", "code/lib")
SETTINGS = """
[scheduler]
tenant_config = {root}/tenants.yaml
state_dir = state
[store]
url = {url}
session_timeout = {session_s}
[database]
dburi = sqlite:///{root}/history.sqlite
[connection local]
driver = git
baseurl = {root}/hub
canonical_hostname = git.example
[executor]
builds = 6
sandbox = none
load_multiplier = 1000
min_avail_mem = 0
min_avail_hdd = 0
"""
AT_WORK = ("/zuul/executor/", "/zuul/merger/", "/zuul/history/queue/", "/zuul/history/data/", "/item/")
"""Parts of paths that exist only while work is under way."""


LOCKS = {
    "scheduler": ("/zuul/locks/pipeline/example/gate",),
    "merger": ("/zuul/merger/locks",),
    "executor": ("/zuul/executor/unzoned/locks",),
}
"""Paths at which the holder of the oldest lock is at work."""


@dataclass(slots=True)
class Component:
    """Represent a process, with proxies of its own to all servers."""

    name: str
    kind: str
    program: Program
    lines: list[Proxy]
    disk: SmallDisk | None = None
    """Disk of its own; None: it uses the machine's."""

    @property
    def pid(self) -> int:
        return self.program.process.pid if self.program.process else 0

    def cut(self) -> None:
        for line in self.lines:
            line.refuse()

    def stall(self) -> None:
        for line in self.lines:
            line.stall()

    def mend(self) -> None:
        for line in self.lines:
            line.restore()
            line.cut()

    async def kill(self) -> None:
        await asyncio.to_thread(self.program.kill)

    def start(self) -> None:
        self.program.start()

    def freeze(self) -> None:
        self.program.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.program.signal(signal.SIGCONT)


@dataclass(slots=True)
class Change:
    project: str
    topic: str
    broken: bool
    commit: str = ""
    note: str = ""

    @property
    def landed(self) -> bool:
        return "Landed on master as" in self.note

    @property
    def failed(self) -> bool:
        return "FAILURE" in self.note


@dataclass(slots=True)
class Fleet:
    root: Path
    engine: Engine
    repositories: Repositories
    components: list[Component] = field(default_factory=list)
    rounds: int = 0
    no_disk: str = ""
    """Reason for which no component has a disk of its own."""

    def of(self, kind: str) -> list[Component]:
        return [component for component in self.components if component.kind == kind]

    async def propose(self, name: str, count: int) -> list[Change]:
        """Propose and approve changes that build on each other's results; two in thirty are broken."""
        changes = []
        self.rounds += 1
        for number in range(count):
            topic = f"{name}-{self.rounds}-{number}"
            changes.append(Change(PROJECTS[number % 2], topic, broken=number % 15 == 7))
        await asyncio.gather(*(asyncio.to_thread(self._push, changes, project) for project in PROJECTS))
        return changes

    def _push(self, changes: Sequence[Change], project: str) -> None:
        """Push the changes of one project, then approve them."""
        mine = [change for change in changes if change.project == project]
        for change in mine:
            files = {f"{change.topic}.txt": "x\n", **({"BROKEN": "x\n"} if change.broken else {})}
            change.commit = self.repositories.propose(project, change.topic, files)
        for change in mine:
            self.repositories.approve(project, change.topic)

    async def ended(self, changes: Sequence[Change], count: int | None = None) -> None:
        """Wait until results are reported for this many changes, or for all."""
        noted: dict[str, bytes] = {}
        wanted = len(changes) if count is None else count

        async def reported() -> bool:
            moved = {project: self._notes(project) for project in PROJECTS}
            for change in changes:
                if not change.note and moved[change.project] != noted.get(change.project):
                    note = await asyncio.to_thread(self.repositories.note, change.project, change.commit)
                    change.note = note.partition("Headgate (gate):")[2]
            noted.update(moved)
            self._look_alive()
            return sum(bool(change.note) for change in changes) >= wanted

        await until(f"{wanted} changes have ended", reported, ENDED_S, LOOK_S)

    def _notes(self, project: str) -> bytes:
        """Return a value that changes with every note, read without a process."""
        ref = self.repositories.hub / project / "refs/notes/headgate"
        return ref.read_bytes() if ref.exists() else b""

    def _look_alive(self) -> None:
        for component in self.components:
            process = component.program.process
            code = process.poll() if process else None
            if code is not None and code != -signal.SIGKILL:
                raise AssertionError(f"{component.name} ended by itself ({code}):\n{self.log(component)}")

    def log(self, component: Component) -> str:
        return component.program.log.read_text(errors="replace")[-4_000:]

    def merges(self, project: str) -> list[str]:
        log = run_git("log", "--first-parent", "--format=%s", "master", at=self.repositories.hub / project)
        return [line for line in log.splitlines() if line.startswith("Merge ")]

    async def busy(self, kind: str) -> Component:
        """Return a component of this kind that holds a lock for its work; if there is none, any of the kind."""
        backend = await self.engine.open()
        try:
            held = [entry.value.decode() for place in LOCKS[kind] for entry in (await backend.list(place))[:1]]
            records = {entry.path: entry.value for entry in await backend.list(f"/zuul/components/{kind}")}
        finally:
            await backend.close()
        pids = [json.loads(record)["pid"] for name, record in records.items() if any(name in by for by in held)]
        return next((one for one in self.of(kind) if one.pid in pids), self.of(kind)[0])

    async def at_rest(self) -> None:
        """Wait until no remains of the work are left: no request, lock, item, holder, event, directory."""
        self.left = []
        backend = await self.engine.open()
        try:
            await until("nothing is left", partial(self._is_at_rest, backend), every_s=LOOK_S)
        finally:
            await backend.close()

    async def _is_at_rest(self, backend: Backend) -> bool:
        if left := [*left_over(await backend.list("/zuul")), *self.directories()]:
            self.left = left
        return not left

    left: list[str] = field(default_factory=list)
    """What `at_rest` found last."""

    def directories(self) -> list[str]:
        """Return the work directories of builds."""
        states = [one.disk.path if one.disk else one.program.directory / "state" for one in self.of("executor")]
        return [str(path) for state in states for path in state.glob("builds/*")]

    async def accepts(self, component: Component, accepting: bool) -> str:
        """Wait until a component accepts work, or does not; return the reason."""
        backend = await self.engine.open()

        async def found() -> list[str]:
            records = [json.loads(entry.value) for entry in await backend.list(f"/zuul/components/{component.kind}")]
            data = [record["data"] for record in records if record["pid"] == component.pid]
            return [str(one["why"]) for one in data if one["accepting"] is accepting]

        try:
            return (await until(f"{component.name} accepts work: {accepting}", found, every_s=LOOK_S))[0]
        finally:
            await backend.close()


def left_over(entries: Sequence[Entry]) -> list[str]:
    found = [entry.path for entry in entries if any(place in entry.path for place in AT_WORK)]
    found += [e.path for e in entries if e.path.startswith("/zuul/events/") and "/election" not in e.path]
    found += [e.path for e in entries if e.path.startswith("/zuul/semaphores/") and b'"holders":[]' not in e.value]
    return found


@asynccontextmanager
async def fleet(root: Path, engine: Engine) -> AsyncIterator[Fleet]:
    """Run two schedulers, two mergers and three executors, each a process."""
    repositories = Repositories(root)
    repositories.create("config", {"zuul.yaml": CONFIG, "jobs/unit": UNIT})
    for project in PROJECTS:
        repositories.create(project, {"README": "x\n"})
    (root / "tenants.yaml").write_text(TENANTS)
    found = Fleet(root, engine, repositories)
    try:
        for number, kind in enumerate(KINDS):
            found.components.append(await _component(root, engine, f"{kind}{number}", kind))
        _on_small_disk(found)
        for component in found.components:
            component.start()
        yield found
    finally:
        for component in found.components:
            component.thaw()
            await component.kill()
            for line in component.lines:
                await line.stop()
            if component.disk:
                component.disk.close()


def _on_small_disk(fleet: Fleet) -> None:
    """Give the last component a small disk."""
    component = fleet.components[-1]
    program = component.program
    try:
        disk = SmallDisk(program.directory / "disk", program.directory / "state", DISK_BYTES)
    except RuntimeError as error:
        fleet.no_disk = f"no small disk can be made here: {str(error).strip().splitlines()[-1]}"
        return
    component.disk, component.program = disk, Program(disk.inside(program.command), program.directory, ENVIRONMENT)


async def _component(root: Path, engine: Engine, name: str, kind: str) -> Component:
    lines = [Proxy("127.0.0.1", port) for port in engine.ports]
    for line in lines:
        await line.start()
    url = engine.url([line.port for line in lines])
    directory = root / "processes" / name
    directory.mkdir(parents=True)
    settings = SETTINGS.format(root=root, url=url, session_s=SESSION_S)
    (directory / "headgate.conf").write_text(settings)
    command = [str(Path(sys.executable).with_name("headgate")), kind, "--config", str(directory / "headgate.conf")]
    return Component(name, kind, CopiedProgram(command, directory, ENVIRONMENT), lines)
