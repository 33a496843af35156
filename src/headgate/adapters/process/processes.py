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
    source, sink = os.pipe()  # our own: to asyncio a process with a pipe ends only when the pipe does
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=directory,
            env={**environment, BUILD_VARIABLE: build},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    except BaseException:
        os.close(source)
        raise
    finally:
        os.close(sink)
    reader = asyncio.ensure_future(_copy(source, log))
    ended = asyncio.ensure_future(process.wait())
    cancelled = asyncio.ensure_future(cancel.wait())
    failed = asyncio.ensure_future(_failure(reader))
    tasks = (reader, ended, cancelled, failed)
    try:
        await asyncio.wait({ended, cancelled, failed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        why: int | str = "cancel" if cancelled.done() else "timeout"
        if ended.done():
            why = ended.result()
        else:
            await _end(process)
        await kill_build(build)
        await asyncio.wait({reader}, timeout=GRACE_S)
        if reader.done():
            reader.result()
        return why
    finally:
        if process.returncode is None:
            _signal(process.pid, signal.SIGKILL)
        await kill_build(build)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: int, log: JobLog) -> None:
    """Until every holder of the other end has closed it.  Raises OSError when the log cannot be written."""
    stream = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(source, "rb", 0)
    )
    try:
        while chunk := await stream.read(CHUNK_SIZE_BYTES):
            log.write(chunk)
    finally:
        transport.close()


async def _failure(reader: asyncio.Task[None]) -> None:
    """Ends only when the reader failed: then the process is ended, too."""
    await asyncio.wait({reader})
    if reader.exception() is None:
        await asyncio.Event().wait()


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
