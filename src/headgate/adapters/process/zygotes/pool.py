"""Keep the zygotes of an executor: one for each Ansible that its builds use, started with the first build."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.adapters.process.bounds.watch import Limiter
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.supervisor import Cold
from headgate.adapters.process.zygotes.program import Marks, marks
from headgate.base.tasks import end, unless

log = logging.getLogger("headgate.executor")

ZYGOTES_MAX = 3
PHASES_MAX = 200
"""Playbooks of one zygote before a new one replaces it, because all of its copies share one memory layout."""
IDLE_MAX_S = 900.0
BEGIN_TIMEOUT_S = 60.0
FAILURES_MAX = 3
"""Failures in a row after which playbooks of this Ansible start as new processes, until it changes or `AGAIN_S`
passes."""
AGAIN_S = 600.0
"""Pause before another attempt, since a failure may be due to builds that used all memory and processors."""
REASONS_MAX = 100
_ROOM = {"HEADGATE_ROOM": "." * 16_000, "LANG": "C.UTF-8"}
"""Environment of zygotes, which reserves space in which a copy writes its own environment, see `entry`."""
# The path is removed before the program begins: a playbook must not find a module of Headgate by accident.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from headgate.adapters.process.zygotes import program; "
    "sys.path.pop(); program.main()"
)


class Zygote(ProcessKeeper):
    """Represent one zygote. It is not restarted automatically: when it has ended, requests to it raise Cold."""

    def __init__(self, limiter: Limiter) -> None:
        super().__init__(limiter)
        self._marks: Marks = []
        self.phases = 0
        self.used_s = time.monotonic()

    async def warm(self, program: str, config: str) -> None:
        """Start the zygote, with the Python that `program` names.  Raise Cold."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        place, python = str(Path(__file__).parents[4]), interpreter(program)
        try:
            self._spawn(
                lambda fd: [python, "-I", "-B", "-u", "-c", _PROGRAM, place, str(fd), str(writer), program, config],
                writer,
                environment=_ROOM,
                cwd="/",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            os.close(reader)
            raise Cold(f"{python} cannot be started: {error.strerror}") from error
        finally:
            os.close(writer)
        try:
            line = await _read_all(reader)
        except TimeoutError as late:
            raise Cold(f"importing Ansible took more than {BEGIN_TIMEOUT_S:.0f} s") from late
        try:
            report: dict[str, Any] = json.loads(line)  # JSON
        except ValueError as wrong:
            raise Cold("the process ended while it imported Ansible") from wrong
        if report["cold"]:
            raise Cold(report["cold"])
        self._marks = report["marks"]

    def is_of_now(self) -> bool:
        """Return whether the zygote runs, and none of its files has changed."""
        runs = self._process is not None and self._process.poll() is None
        return runs and marks(path for path, *_ in self._marks) == self._marks

    @property
    def pid(self) -> int:
        """Return the zygote's process id; 0 if there is none."""
        return self._process.pid if self._process else 0

    def retire(self) -> None:
        """Kill this zygote. Its copies continue, since each has its own supervisor."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # Kill it instead of terminating it: it has nothing to save, and `_end` blocks the event loop.
                os.kill(self._process.pid, signal.SIGKILL)
        self._end()

    def _begin(self) -> None:
        # Unlike a keeper, do not restart here: the caller must decide, since a new import takes seconds.
        raise Cold("its zygote has ended")


async def _read_all(source: int) -> bytes:
    """Return all data that is written to a pipe before its other end is closed. Raise TimeoutError."""
    loop, found = asyncio.get_running_loop(), b""
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb"))
    try:
        async with asyncio.timeout(BEGIN_TIMEOUT_S):
            found = await reader.read()
    finally:
        transport.close()
    return found


def interpreter(program: str) -> str:
    """Return the interpreter that a Python program names in its first line.  Raise Cold."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512).decode(errors="replace").strip()
    except OSError as error:
        raise Cold(f"{program} cannot be read: {error.strerror}") from error
    words = first.removeprefix("#!").split()
    if not first.startswith("#!/") or len(words) != 1 or "python" not in Path(words[0]).name:
        raise Cold(f"{program} does not name its Python in its first line")
    return words[0]


@dataclass(slots=True)
class _ZygoteState:
    """Hold the state of one Ansible installation."""

    zygote: Zygote | None = None
    failures: int = 0
    failed: Marks = field(default_factory=list)
    """Marks of its program at the time of the last failure."""
    failed_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Zygotes:
    """Start, replace and end zygotes. Each reason why a playbook cannot use a zygote is logged once."""

    def __init__(self, limiter: Limiter, config: str, *, wanted: bool = True) -> None:
        """Make a pool without zygotes.  `config`: the settings with which Ansible is imported, see `program`."""
        self._limiter, self._config, self.wanted = limiter, config, wanted
        self.copies = 0
        """Number of playbooks that ran as copies and have ended."""
        self._of: dict[str, _ZygoteState] = {}
        self._logged = set[str]()
        self._timer: asyncio.TimerHandle | None = None
        self._expected = set[asyncio.Task[Zygote | None]]()

    @property
    def pids(self) -> Sequence[int]:
        """Return the process ids of running zygotes."""
        return [state.zygote.pid for state in self._of.values() if state.zygote is not None]

    def expect(self, program: str) -> None:
        """Start a zygote in the background."""
        if self.wanted:
            task = asyncio.ensure_future(self._ready(program))
            self._expected.add(task)
            task.add_done_callback(self._expected.discard)

    @contextlib.asynccontextmanager
    async def lent(self, program: str, cancel: asyncio.Event, timeout_s: float) -> AsyncIterator[Zygote | None]:
        """Yield the zygote of a program, or None if the playbook must be a new process. A caller that cannot use the
        copy raises Cold in the context, which suppresses it."""
        zygote = None
        if self.wanted:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    zygote = await unless(cancel, self._ready(program))
        state = self._of.get(program)
        try:
            yield zygote
        except Cold as why:
            self._failed(program, str(why))
        else:
            if zygote is not None and state is not None:
                state.failures = 0
                self.copies += 1

    def _failed(self, program: str, why: str) -> None:
        """Count a failure of a program's zygote, and log each reason once."""
        state = self._of.setdefault(program, _ZygoteState())
        state.failures += 1
        state.failed, state.failed_s = marks([program]), time.monotonic()
        self.without(f"Playbooks of {program} run as new processes instead of copies of a zygote: {why}")

    def without(self, message: str) -> None:
        """Log a message about a missing requirement once."""
        if self.wanted and message not in self._logged and len(self._logged) < REASONS_MAX:
            self._logged.add(message)
            log.warning("%s", message)

    async def _ready(self, program: str) -> Zygote | None:
        state = self._of.setdefault(program, _ZygoteState())
        async with state.lock:
            found = state.zygote
            # After an upgrade of Ansible replaces its files, copies of a running zygote would mix both versions.
            if found is not None and (not found.is_of_now() or found.phases >= PHASES_MAX):
                found.retire()
                found = state.zygote = None
            if state.failures >= FAILURES_MAX and state.failed != marks([program]):
                state.failures = 0
            elif state.failures >= FAILURES_MAX and time.monotonic() - state.failed_s >= AGAIN_S:
                # Permit one more attempt: a failure brings the count back to its limit.
                state.failures = FAILURES_MAX - 1
            if found is None and state.failures < FAILURES_MAX:
                found = await self._begun(program, state)
        if found is not None:
            found.phases += 1
            found.used_s = time.monotonic()
            self._end_idle()
        return found

    async def _begun(self, program: str, state: _ZygoteState) -> Zygote | None:
        made = Zygote(self._limiter)
        try:
            # The lock of the state is held, so builds that begin together wait for one import instead of starting
            # several.
            await made.warm(program, self._config)
        except Cold as why:
            made.retire()
            self._failed(program, str(why))
            return None
        except BaseException:
            made.retire()
            raise
        state.zygote = made
        others = sorted((one for one in self._of.values() if one.zygote), key=_used_s)
        # Retire the least recently used ones; each uses about 50 MB.
        for other in others[: max(0, len(others) - ZYGOTES_MAX)]:
            _retire(other)
        return made

    def _end_idle(self) -> None:
        """End zygotes that were not used for long; check again when the next one may be due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = time.monotonic()
        running = [state for state in self._of.values() if state.zygote is not None]
        for state in running:
            if now_s - _used_s(state) >= IDLE_MAX_S:
                _retire(state)
        left = [_used_s(state) for state in running if state.zygote is not None]
        if left:
            delay_s = min(left) + IDLE_MAX_S - now_s
            self._timer = asyncio.get_running_loop().call_later(max(1.0, delay_s), self._end_idle)

    async def close(self) -> None:
        """End all zygotes; requires that no build runs."""
        if self._timer is not None:
            self._timer.cancel()
        await end(*self._expected)
        for state in self._of.values():
            _retire(state)
        self._of.clear()


def _used_s(state: _ZygoteState) -> float:
    return state.zygote.used_s if state.zygote is not None else 0.0


def _retire(state: _ZygoteState) -> None:
    if state.zygote is not None:
        state.zygote.retire()
        state.zygote = None
