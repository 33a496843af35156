"""Measure a trivial playbook in the sandbox of every build: a copy of a warm process, and a new one, in turn."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.isolation import PROJECT, Alone, Empty
from headgate.adapters.ansible.versions import Environments
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.runner import ProcessRunner, RunnerSettings
from headgate.adapters.process.sandbox import Confined
from headgate.base.ids import fresh
from headgate.config.keys.job import ANSIBLE_VERSIONS
from headgate.config.model import FrozenJob, Playbook
from headgate.gate.state.change import Change
from headgate.gate.state.works import BuildSpec, RepoState
from headgate.ports.work import CheckedOut

PHASES = 21
AIM = 0.65
ROOT_VARIABLE = "ANSIBLE_ROOT"
"""Variable with the directory of the versions that `headgate ansible install` made; unset: Headgate's own Ansible."""
PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks: [debug: {msg: hello}]\n"


class Trivial(Empty):
    """Check out a repository with a playbook of one task."""

    async def checkout(self, state: RepoState, project: str, branch: str, dest: Path, **_: Any) -> CheckedOut:
        dest.mkdir(parents=True)
        (dest / "play.yaml").write_text(PLAY)
        return CheckedOut("1" * 40)


@dataclass(frozen=True, slots=True)
class Taken:
    """Hold the seconds of each phase, from the request to a supervisor to the end of all that its command began."""

    copy_s: list[float] = field(default_factory=list)
    new_s: list[float] = field(default_factory=list)

    @property
    def least(self) -> float:
        """Return the ratio of the shortest times, which other load on the machine disturbed least."""
        return min(self.copy_s) / min(self.new_s)

    @property
    def median(self) -> float:
        return statistics.median(self.copy_s) / statistics.median(self.new_s)


def measure() -> Mapping[str, Taken]:
    """Return the measured seconds of each phase, by the name of the version of Ansible."""
    return dict(_measured())


def _measured() -> Iterator[tuple[str, Taken]]:
    yield "beside Headgate", asyncio.run(_phases(None, ""))
    root = os.environ.get(ROOT_VARIABLE)
    for version in ANSIBLE_VERSIONS if root else ():
        installed = Environments(Path(str(root)))
        if (found := installed.find(version)) is not None:
            yield found.name, asyncio.run(_phases(installed, version))


async def _phases(installed: Environments | None, version: str) -> Taken:
    taken = Taken()
    with tempfile.TemporaryDirectory() as name:
        # Builds run as other users, who must get through this directory.
        Path(name).chmod(0o755)
        runners = []
        for warm in (True, False):
            place = Path(name, str(warm))
            settings = RunnerSettings(sandbox="bwrap", warm_ansible=warm, ansible=installed)
            runners.append(ProcessRunner(place / "builds", place / "logs", Trivial(), settings))
        with _timed(taken):
            # One of each kind in turn, so that a busy machine disturbs both alike.
            for number in range(PHASES + 1):
                for runner in runners:
                    await _build(runner, version)
                if number == 0:  # which prepared the shared parts
                    taken.copy_s.clear()
                    taken.new_s.clear()
        # A phase that silently fell back to a new process would make the comparison worthless.
        assert runners[0].zygotes.copies == PHASES + 1, "each was a copy"
        for runner in runners:
            await runner.close()
    return taken


class _timed:
    """Measure commands where they are requested: zygotes are keepers, too."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    def __enter__(self) -> None:
        self._run = run = ProcessKeeper.run
        taken = self._taken

        async def timed(keeper: ProcessKeeper, command: Confined, *, log: JobLog, **more: Any) -> int | str:
            begun_s = asyncio.get_running_loop().time()
            status = await run(keeper, command, log=log, **more)
            took_s = asyncio.get_running_loop().time() - begun_s
            (taken.copy_s if more["playbook"] else taken.new_s).append(took_s)
            return status

        ProcessKeeper.run = timed  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        ProcessKeeper.run = self._run  # type: ignore[method-assign]


async def _build(runner: ProcessRunner, version: str) -> None:
    change = Change("local", PROJECT, "master", "topic", "1" * 40, ref="refs/for/master/topic")
    ansible: dict[str, Any] = {"ansible_version": version, "ansible_asked": True} if version else {}
    job = FrozenJob(name="job", run=(Playbook(PROJECT, "local", "master", "play.yaml"),), **ansible)
    spec = BuildSpec(fresh(), "set", "t", "gate", "i", job, change)
    outcome = await runner.run(spec, RepoState(), asyncio.Event(), Alone())
    assert outcome.result == "SUCCESS", outcome.error
