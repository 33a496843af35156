"""Judge proposals in a process that follows the layouts of tenants, and forks once for each proposal.

The fork inherits everything that the process knows, and is killed when it takes too much time or memory; nothing else
is lost then. The input (frames on standard input) comes from the process that started this one, so its pickles are
trusted; the output is JSON of one type.  When the input ends, this process and all forks end.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import selectors
import signal
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, assert_never

import msgspec

from headgate.config.budgets import Budgets
from headgate.config.dynamic import LayoutRequest, TenantLayouts
from headgate.config.operator.model import Tenant
from headgate.config.parse import ParseCache, ParsedBranch

HEAD = struct.Struct("!Q")
"""Header of a frame: its length in bytes."""
READ_BYTES = 1 << 20
WALL_FACTOR = 3
"""Limit on the elapsed time of a judgement, in multiples of its CPU time limit, because the machine may be busy."""
OK, TIME, MEMORY, ENDED = "ok", "time", "memory", "ended"
ANSWER_MAX_BYTES = 200_000_000
OUT_OF_MEMORY = 3
"""Exit status of a fork that runs out of memory."""


class Begin(NamedTuple):
    """Start a tenant from an empty layout."""

    tenant: Tenant
    budgets: Budgets


class Follow(NamedTuple):
    """Send the projects whose configuration has changed: project -> branch -> path -> text, the default branch
    first."""

    tenant: str
    projects: dict[str, dict[str, dict[str, str]]]


class Ask(NamedTuple):
    number: int
    tenant: str
    request: bytes
    time_max_s: int
    memory_max_bytes: int


class JudgePreface(msgspec.Struct, frozen=True):
    """Precede a judgement, which follows as JSON."""

    number: int
    how: str
    """OK, TIME, MEMORY or ENDED."""
    size_bytes: int = 0


def frame(body: bytes) -> bytes:
    return HEAD.pack(len(body)) + body


@dataclass(slots=True)
class _Fork:
    number: int
    pid: int
    pipe: int
    until_s: float
    answer: bytearray = field(default_factory=bytearray)


class _Tenancy:
    """Follow the layouts of one tenant."""

    def __init__(self, begun: Begin) -> None:
        self._tenant, self._cache = begun.tenant, ParseCache(budgets=begun.budgets)
        self._branches: dict[str, dict[str, ParsedBranch]] = {}
        self._layouts = TenantLayouts.of(self._tenant, {}, self._cache)
        self._stale = False

    def follow(self, projects: dict[str, dict[str, dict[str, str]]]) -> None:
        sources = self._tenant.by_canonical
        for project, found in projects.items():
            self._branches[project] = {b: self._cache.parse(sources[project], b, files) for b, files in found.items()}
        self._stale = True

    @property
    def layouts(self) -> TenantLayouts:
        if self._stale:
            before = self._layouts
            self._layouts = TenantLayouts.of(self._tenant, dict(self._branches), self._cache, before=before)
            self._stale = False
        return self._layouts


class Court:
    """Run the judging process."""

    def __init__(self, source: int, out: int) -> None:
        self._in, self._out = source, out
        self._tenants: dict[str, _Tenancy] = {}
        self._forks: dict[int, _Fork] = {}
        """Pipe -> the fork that writes into it."""
        self._buffer = bytearray()
        self._settled: TenantLayouts | None = None
        """Layouts at the last fork; None before the first one."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(source, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the input ends."""
        try:
            while True:
                wait_s = min((fork.until_s - time.monotonic() for fork in self._forks.values()), default=None)
                ready = [key.fd for key, _ in self._selector.select(None if wait_s is None else max(0.0, wait_s))]
                if self._in in ready and not self._read():
                    return
                for pipe in ready:
                    if pipe in self._forks:
                        self._collect(self._forks[pipe])
                now_s = time.monotonic()
                for fork in [fork for fork in self._forks.values() if fork.until_s <= now_s]:
                    self._end(fork, TIME)
        finally:
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGKILL)

    def _read(self) -> bool:
        """Read the available input, and handle each complete frame. Return False at the end of the input."""
        found = os.read(self._in, READ_BYTES)
        self._buffer += found
        while len(self._buffer) >= HEAD.size:
            (size_bytes,) = HEAD.unpack(self._buffer[: HEAD.size])
            if len(self._buffer) < HEAD.size + size_bytes:
                break
            body = bytes(self._buffer[HEAD.size : HEAD.size + size_bytes])
            del self._buffer[: HEAD.size + size_bytes]
            self._take(pickle.loads(body))  # from the parent process
        return bool(found)

    def _take(self, message: Begin | Follow | Ask) -> None:
        match message:
            case Begin():
                self._tenants[message.tenant.name] = _Tenancy(message)
            case Follow():
                self._tenants[message.tenant].follow(message.projects)
            case Ask():
                self._fork(message)
            case _:
                assert_never(message)

    def _fork(self, ask: Ask) -> None:
        layouts = self._tenants[ask.tenant].layouts
        # Forks share memory until it is written. Frozen objects are left out of garbage collections, which write to
        # every object that they visit.
        if layouts is not self._settled:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._settled = layouts
        here, there = os.pipe()
        pid = os.fork()
        if pid == 0:
            # The fork closes all other pipes. With the output, it could answer for other forks; and a pipe that it
            # holds would not reach its end when its writer ends.
            _judge(layouts, ask, there, (self._in, self._out, here, *self._forks))
        os.close(there)
        until_s = time.monotonic() + WALL_FACTOR * ask.time_max_s
        self._forks[here] = _Fork(ask.number, pid, here, until_s)
        self._selector.register(here, selectors.EVENT_READ)

    def _collect(self, fork: _Fork) -> None:
        found = os.read(fork.pipe, READ_BYTES)
        fork.answer += found
        if not found:
            self._end(fork, "")
        # The limit applies to the received bytes, because the proposal determines the size of the answer.
        elif len(fork.answer) > ANSWER_MAX_BYTES:
            self._end(fork, MEMORY)

    def _end(self, fork: _Fork, how: str) -> None:
        """Write the answer of a fork. `how`: reason to kill it; empty if it has ended."""
        if how:
            os.kill(fork.pid, signal.SIGKILL)
        _, status = os.waitpid(fork.pid, 0)
        self._selector.unregister(fork.pipe)
        os.close(fork.pipe)
        del self._forks[fork.pipe]
        how = how or _ended(status)
        body = bytes(fork.answer) if how == OK else b""
        preface = msgspec.json.encode(JudgePreface(fork.number, how, len(body)))
        _write(self._out, frame(preface) + frame(body))


def _ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        # All other signals count as memory: the kernel's OOM killer, or a failed allocation in C.
        return TIME if os.WTERMSIG(status) == signal.SIGXCPU else MEMORY
    code = os.WEXITSTATUS(status)
    return OK if code == 0 else MEMORY if code == OUT_OF_MEMORY else ENDED


def _judge(layouts: TenantLayouts, ask: Ask, out: int, others: Iterable[int]) -> None:
    """Judge in the fork; never return."""
    code = 1
    try:
        # A garbage collection would write to every object, and so copy all the memory that the fork shares.
        gc.disable()
        for one in others:
            os.close(one)
        # The soft limit sends SIGXCPU, which tells the parent the reason; the hard one kills a fork that ignores it.
        resource.setrlimit(resource.RLIMIT_CPU, (ask.time_max_s, ask.time_max_s + 1))
        if (used_bytes := _space_bytes()) is not None:
            # Counted from the current size, because the layouts of all tenants are already in the address space.
            most_bytes = used_bytes + ask.memory_max_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        found = layouts.judged(msgspec.json.decode(ask.request, type=LayoutRequest))
        _write(out, msgspec.json.encode(found))
        code = 0
    except MemoryError:
        code = OUT_OF_MEMORY
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _space_bytes() -> int | None:
    """Return the current size of the address space; None if the system does not provide it, as outside Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _write(out: int, body: bytes) -> None:
    left = memoryview(body)
    while left:
        left = left[os.write(out, left) :]


def main() -> None:
    # Ctrl-C reaches every process of the terminal: the scheduler must end first, and then this one with its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.dup(1)
    # Standard output becomes standard error: otherwise a print anywhere in the code would break the frames.
    os.dup2(2, 1)
    sys.setrecursionlimit(3_000)
    Court(0, out).run()


if __name__ == "__main__":
    main()
