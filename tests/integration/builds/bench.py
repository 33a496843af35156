"""Provide scripts, a runner, and builds as real processes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from headgate.adapters.process.joblog import follow
from headgate.adapters.process.network.sockets import ReadLog
from headgate.adapters.process.processes import processes_of
from headgate.adapters.process.runner import ProcessRunner, RunnerSettings
from headgate.adapters.process.variables import project
from headgate.base.ids import fresh
from headgate.config.model import FrozenJob, Playbook
from headgate.gate.state.change import Change
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.secrets import Secrets
from headgate.ports.work import CheckedOut
from headgate.testing.clock import DEADLINE_S

PROJECT = "h/code"


class Copies:
    """Check out by copying a directory."""

    def __init__(self, source: Path) -> None:
        self.source = source

    async def branches(self, state: RepoState, project: str) -> Collection[str]:
        return ("master",)

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True, files: bool = True
    ) -> CheckedOut:
        if not files:
            (dest / ".git").mkdir(parents=True)
            return CheckedOut("1" * 40)
        shutil.copytree(self.source, dest, symlinks=True, dirs_exist_ok=True)
        return CheckedOut("1" * 40)


Pause = Callable[[dict[str, Any]], Awaitable[None]]


class Alone:
    """Imitate `ports.work.Contact` for a build that shares no semaphores, or (`busy`) never gets any."""

    def __init__(self, pause: Pause | None = None, *, busy: bool = False) -> None:
        self._pause, self._busy, self.held = pause, busy, list[str]()
        self.failing = asyncio.Event()
        self.commands_begun = 0

    async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
        assert self._pause is not None, "no job here pauses"
        await self._pause(data)

    def begun(self) -> None:
        self.commands_begun += 1

    def fails(self) -> None:
        assert not self.failing.is_set(), "it is said once"
        self.failing.set()

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        return ""

    @asynccontextmanager
    async def holding(self, semaphores: Sequence[str], cancel: asyncio.Event, limit_s: float) -> AsyncIterator[bool]:
        if self._busy:
            with suppress(TimeoutError):
                await asyncio.wait_for(cancel.wait(), limit_s)
        self.held += semaphores
        yield not self._busy
        self.held = [name for name in self.held if name not in semaphores]


class Bench:
    """`id` is that of the last started build."""

    opened: ClassVar[list[Bench]] = []
    """Closed at the end of the test."""

    def __init__(
        self,
        root: Path,
        sandbox: str = "none",
        *,
        disk: Path | None = None,
        keys: Secrets | None = None,
        read_log: ReadLog | None = None,
        copying: type[Copies] = Copies,
        **settings: Any,
    ) -> None:
        self.id = ""
        self.source = root / "source"
        self.source.mkdir()
        (self.source / "README").write_text("x\n")
        here = RunnerSettings(sandbox=sandbox, **settings)
        self.copies = copying(self.source)
        self.runner = ProcessRunner(
            (disk or root) / "builds", root / "logs", self.copies, here, keys, read_log=read_log
        )
        self.opened.append(self)

    def script(self, name: str, text: str) -> Playbook:
        """Add a file to the repository: a playbook by its name, else a shell script."""
        file = self.source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if name.endswith((".yaml", ".yml")) else f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return Playbook(PROJECT, "local", "master", name)

    def start(
        self,
        cancel: asyncio.Event | None = None,
        *,
        attempt: int = 1,
        spec: dict[str, Any] | None = None,
        contact: Alone | None = None,
        **job: Any,
    ) -> asyncio.Task[BuildOutcome]:
        self.id = fresh()
        change = Change("local", PROJECT, "master", "topic", "1" * 40, ref="refs/for/master/topic")
        variables = {"pipeline": "gate", "job": "job", "build": self.id, "project": project(PROJECT), "ref": change.ref}
        frozen = FrozenJob(name="job", **job)
        work = BuildSpec(
            self.id, "set", "t", "gate", "i", frozen, change, attempt, **{"zuul": variables, **(spec or {})}
        )
        return asyncio.ensure_future(self.runner.run(work, RepoState(), cancel or asyncio.Event(), contact or Alone()))

    async def build(self, **job: Any) -> BuildOutcome:
        async with asyncio.timeout(DEADLINE_S):
            return await self.start(**job)

    async def says(self, text: str) -> None:
        """Wait until the log of the last build contains this."""
        found = b""
        async with asyncio.timeout(DEADLINE_S):
            async for chunk in follow(self._log, lambda: False):
                found += chunk
                if text.encode() in found:
                    return

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self.runner.log_root / self.id / "job-output.txt"

    @property
    def work(self) -> Path:
        return self.runner.root / self.id / "work"

    def log_json(self, name: str) -> Any:
        """Return JSON that the last build left among its logs."""
        return json.loads((self.runner.log_root / self.id / name).read_text())


def end_of(build: str) -> bool:
    """Wait for every process of the build to end; return False if some do not."""
    for _ in range(3):  # processes that start meanwhile are found in the next round
        left = list[psutil.Process]()
        for pid in processes_of(build):
            with suppress(psutil.NoSuchProcess):
                left.append(psutil.Process(pid))
        if not left:
            return True
        psutil.wait_procs(left, timeout=DEADLINE_S)
    return False
