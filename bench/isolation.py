"""Measure the cost of isolating a build: an empty executable job, with and without isolation."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headgate.adapters.process.network.networks import NetworkChoice
from headgate.adapters.process.runner import ProcessRunner, RunnerSettings
from headgate.base.ids import fresh
from headgate.config.model import FrozenJob, Playbook
from headgate.gate.state.change import Change
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildSpec, RepoState
from headgate.ports.work import CheckedOut

BUILDS = 20
PROJECT = "h/code"
WALLS = {
    "none": RunnerSettings(sandbox="none"),
    "bubblewrap, a user of its own, this machine's network": RunnerSettings(network=NetworkChoice("host", "host")),
    "bubblewrap, a user and a network of its own": RunnerSettings(),
}


class Empty:
    """Check out a repository with a job that does nothing."""

    async def branches(self, state: RepoState, project: str) -> Collection[str]:
        return ("master",)

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True, files: bool = True
    ) -> CheckedOut:
        dest.mkdir(parents=True)
        (dest / "job").write_text("#!/bin/sh\n")
        (dest / "job").chmod(0o755)
        return CheckedOut("1" * 40)


class Alone:
    """Represent a build that shares nothing with others, and that nobody watches or holds."""

    async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
        raise NotImplementedError("the job does not pause")

    def begun(self) -> None: ...

    def fails(self) -> None: ...

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        return ""

    @asynccontextmanager
    async def holding(self, semaphores: Sequence[str], cancel: asyncio.Event, limit_s: float) -> AsyncIterator[bool]:
        yield True


def measure() -> dict[str, tuple[float, float]]:
    """Return isolation -> seconds of a build, elapsed and of CPU; the latter includes the shared preparation of the
    first build."""
    return {name: asyncio.run(_measured(settings)) for name, settings in WALLS.items()}


async def _measured(settings: RunnerSettings) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as name:
        runner = ProcessRunner(Path(name, "builds"), Path(name, "logs"), Empty(), settings)
        # The first build makes what all later ones share, so its time is not counted.
        await _build(runner)
        begin_s, used_s = time.perf_counter(), _used_s()
        for _ in range(BUILDS):
            await _build(runner)
        wall_s = time.perf_counter() - begin_s
        await runner.close()  # only now the ended processes are counted
        return wall_s / BUILDS, (_used_s() - used_s) / (BUILDS + 1)


async def _build(runner: ProcessRunner) -> None:
    change = Change("local", PROJECT, "master", "topic", "1" * 40, ref="refs/for/master/topic")
    job = FrozenJob(name="job", run=(Playbook(PROJECT, "local", "master", "job"),))
    spec = BuildSpec(fresh(), "set", "t", "gate", "i", job, change)
    outcome = await runner.run(spec, RepoState(), asyncio.Event(), Alone())
    assert outcome.result == "SUCCESS", outcome.error


def _used_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(found.ru_utime + found.ru_stime for found in both)
