"""The limits of a build while one of its commands runs: those the kernel enforces, and a look for the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headgate.adapters.process.bounds.budget import Exceeded, ProcessBounds, of_bytes
from headgate.adapters.process.bounds.disk import DiskAccounts
from headgate.adapters.process.bounds.groups import Group, Groups, share

log = logging.getLogger("headgate.executor")

LOOK_INTERVAL_S = 0.5
# 0.2 s in all: rmdir fails until the kernel has released the last task. What remains is left to the next sweep.
REMOVE_TRIES_MAX = 20
REMOVE_DELAY_S = 0.01
"""Pause for the kernel to remove the last process of a group."""
COSTLY_LOOK_INTERVAL_S = 2.0
"""Interval between two looks without a control group, which visit each process."""
CROWDED_S = 10.0
"""Time without room for another process after which a build is ended: it would fail, or never end."""


@dataclass(slots=True)
class CommandWatch:
    """Watch one command. `begun` finds its first process if there is no group; `say` writes to the build's log."""

    bounds: ProcessBounds
    root: Path
    group: Group | None
    disk: DiskAccounts
    begun: Callable[[], Iterable[int]]
    say: Callable[[str], None]
    _crowded_s: float = field(default=0.0, init=False)
    _refused: bool = field(default=False, init=False)
    """Whether the kernel refused another process, or has probably refused one."""

    async def exceeded(self) -> str:
        """Return, for people, the limit that was reached, once one is."""
        interval_s = LOOK_INTERVAL_S if self.group else COSTLY_LOOK_INTERVAL_S
        while True:
            await asyncio.sleep(interval_s)
            # In a thread, since visiting every process may take longer than the event loop can wait.
            found = self._reported_limit(interval_s) if self.group else await asyncio.to_thread(self._counted)
            with contextlib.suppress(FileNotFoundError):  # the directory is removed at the end of the build
                found = found or await self.disk.look(self.root, self._pids)
            if found:
                return found

    @property
    def groups(self) -> list[str]:
        """Return the directories of the groups that the command joins."""
        return self.group.directories if self.group else []

    def check(self, status: int | str) -> None:
        """Raise Exceeded if the command failed and the kernel had enforced a limit. If the command succeeded
        although it could not start all its processes, log that."""
        if self.group is None:
            return
        self._look_for_refusals(self.group)
        reached = self.group.starved() or (self.bounds.crowded if self._refused else "")
        # A compiler that was killed and tried again may still succeed: then the limit cost nothing.
        if reached and status not in (0, "cancel"):
            raise Exceeded(reached)

    def _pids(self) -> Iterable[int]:
        return self.group.pids() if self.group else [process.pid for process in self._tree()]

    def _reported_limit(self, interval_s: float) -> str:
        """Return the limit that the kernel reports as reached, or nothing. Version 1 kills single processes when memory
        is short: the rest of the build is ended here."""
        assert self.group is not None, "asked with a group only"
        # `make -j` may touch the limit for a moment and go on.
        self._crowded_s = self._crowded_s + interval_s if self.group.crowded() else 0.0
        self._look_for_refusals(self.group)
        return self.bounds.crowded if self._refused and self._crowded_s >= CROWDED_S else self.group.starved()

    def _look_for_refusals(self, group: Group) -> None:
        """Report the first refusal at once: its effect, such as a missing helper process, may show much later or
        never."""
        refused = group.refused()
        if not self._refused and (group.crowded() if refused is None else refused > 0):
            self._refused = True
            self.say(f"{self.bounds.crowded}: no further process can be started")

    def _tree(self) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for pid in self.begun():
            with contextlib.suppress(psutil.Error):
                first = psutil.Process(pid)
                found |= {process.pid: process for process in (first, *first.children(recursive=True))}
        return list(found.values())

    def _counted(self) -> str:
        """Return the limit that the processes reach, for a machine without control groups; empty if there is none."""
        used_bytes, count = 0, 0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                # Shared pages count for each process that maps them: a hundred workers of one program would seem to use
                # it all.
                used_bytes += memory.rss - memory.shared
                # The kernel's limit counts threads too.
                count += process.num_threads()
        if count > self.bounds.processes_max:
            return self.bounds.crowded
        if used_bytes > self.bounds.memory_max_bytes:
            return f"memory limit of {of_bytes(self.bounds.memory_max_bytes)} reached"
        return ""


class Limiter:
    """Keep the builds of this process within their bounds."""

    def __init__(self, bounds: ProcessBounds | None = None) -> None:
        self.bounds = bounds or ProcessBounds()
        self.groups = Groups.found()
        self._disk, self._count = DiskAccounts(self.bounds), 0
        self._running: dict[str, list[Group]] = {}
        """Owner -> groups of the owner's running commands."""
        if self.groups.complete:
            log.info("The kernel limits memory and processes of each build")
        else:
            log.info(
                "No control group can be made here (in a systemd unit, Delegate=yes lets it): memory and processes of "
                "builds are looked at every %g s",
                COSTLY_LOOK_INTERVAL_S,
            )

    @asynccontextmanager
    async def around(
        self, build: str, whose: str, root: Path, begun: Callable[[], Iterable[int]], say: Callable[[str], None]
    ) -> AsyncIterator[CommandWatch]:
        """Watch one command, which has ended with all its processes when the context ends; see `CommandWatch`. All
        commands of the same `whose` together get one share of the processors."""
        self._count += 1
        # Numbered, since a build may have two at once: its container, and a playbook that works in it.
        group = self.groups.make(f"{build}-{self._count}", self.bounds)
        self._disk.begin(root)
        try:
            with self._sharing(whose, group):
                yield CommandWatch(self.bounds, root, group, self._disk, begun, say)
        finally:
            self._disk.forget(root)
            for _ in range(REMOVE_TRIES_MAX):
                if group is None or group.removed():
                    break
                await asyncio.sleep(REMOVE_DELAY_S)

    @contextmanager
    def _sharing(self, whose: str, group: Group | None) -> Iterator[None]:
        if group is None:
            yield
            return
        mine = self._running.setdefault(whose, [])
        mine.append(group)
        share(mine)
        try:
            yield
        finally:
            mine.remove(group)
            share(mine)
            if not mine:
                self._running.pop(whose, None)

    def close(self) -> None:
        """Stop, once no build runs any more."""
        self.groups.close()
