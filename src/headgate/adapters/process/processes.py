"""One process of a build and all its descendants: started, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.adapters.process.joblog import JobLog

GRACE_S = 2.0
"""Between asking a process to end and ending it."""
CHUNK_SIZE_BYTES = 65_536
BUILD_VARIABLE = "HEADGATE_BUILD"
"""In the environment of everything a build starts: by it what outlives its parent is found."""


async def run(
    command: Sequence[str],
    *,
    build: str,
    environment: Mapping[str, str],
    directory: Path,
    log: JobLog,
    cancel: asyncio.Event,
    timeout_s: float,
) -> int | str:
    """Exit status; or `timeout` or `cancel`, when it was ended for that.  Nothing it started is left running.

    Raises OSError when it cannot be started, or the log cannot be written.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env={**environment, BUILD_VARIABLE: build},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None, "it is a pipe"
    reader = asyncio.ensure_future(_copy(process.stdout, log))
    ended = asyncio.ensure_future(process.wait())
    cancelled = asyncio.ensure_future(cancel.wait())
    try:
        await asyncio.wait({ended, cancelled, reader}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if reader.done() and not ended.done() and reader.exception() is None:
            await asyncio.wait({ended, cancelled}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        why: int | str = "cancel" if cancelled.done() and not ended.done() else "timeout"
        if ended.done():
            why = ended.result()
        else:
            await _end(process)
        await kill_build(build)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await asyncio.shield(reader)
        if reader.done():
            reader.result()
        return why
    finally:
        if process.returncode is None:
            _signal(process.pid, signal.SIGKILL)
        await kill_build(build)
        for task in (reader, ended, cancelled):
            task.cancel()
        await asyncio.gather(reader, ended, cancelled, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, log: JobLog) -> None:
    while chunk := await source.read(CHUNK_SIZE_BYTES):
        log.write(chunk)


async def _end(process: asyncio.subprocess.Process) -> None:
    _signal(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


async def kill_build(build: str) -> None:
    """Ends every process of the build, whoever its parent is now."""
    for _ in range(5):  # one that forks while we look is found in the next round
        found = await asyncio.to_thread(processes_of, build)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def processes_of(build: str) -> list[int]:
    """Living processes whose environment names the build (any build, when it is empty)."""
    wanted = f"{BUILD_VARIABLE}={build}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes().split(b"\0")
            state = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state != "Z" and any(v == wanted if build else v.startswith(wanted) for v in environment):
            found.append(int(entry.name))
    return found
