"""Test that processes end although their output exceeds the limit or somebody else keeps it open."""

from __future__ import annotations

import asyncio
import os
import threading
from asyncio.subprocess import PIPE, Process

import pytest

from headgate.base import pipes
from headgate.base.pipes import OutputTooLarge, communicate, ends, put_down
from headgate.testing.clock import DEADLINE_S


async def flooding() -> Process:
    """Return a process whose output fills the buffer that asyncio reads ahead."""
    process = await asyncio.create_subprocess_exec("yes", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        while not process.stdout._paused:  # type: ignore[attr-defined]  # noqa: ASYNC110 - nothing public tells
            await asyncio.sleep(0)
    return process


async def test_a_process_whose_output_is_not_read_is_killed() -> None:
    process = await flooding()
    async with asyncio.timeout(DEADLINE_S):
        await put_down(process)
    assert process.returncode == -9
    await put_down(process)  # a second call does nothing


async def test_a_pipe_that_another_process_keeps_open_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "LEFT_OPEN_S", 0.05)
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 600 & echo $!; exec sleep 600", stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    other = (await process.stdout.readline()).strip().decode()
    try:
        assert not await ends(process, 0.01)
        async with asyncio.timeout(DEADLINE_S):
            await put_down(process)
    finally:
        await (await asyncio.create_subprocess_exec("kill", other)).wait()
    assert process.returncode == -9


async def test_the_exit_status_of_a_killed_process_is_known_even_if_the_loop_collects_it_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_collect, loop, waitpid, left_open = threading.Event(), asyncio.get_running_loop(), os.waitpid, pipes.ends

    def late(pid: int, options: int) -> tuple[int, int]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
        assert may_collect.wait(DEADLINE_S)
        return waitpid(pid, options)

    async def ended(process: Process, most_s: float) -> bool:
        found = await left_open(process, most_s)
        loop.call_soon(may_collect.set)
        return found

    monkeypatch.setattr(os, "waitpid", late)
    monkeypatch.setattr(pipes, "LEFT_OPEN_S", 0.05)
    monkeypatch.setattr(pipes, "ends", ended)
    process = await asyncio.create_subprocess_exec("sleep", "600", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(DEADLINE_S):
        await put_down(process)
    assert process.returncode == -9


async def test_a_process_with_too_much_output_is_ended() -> None:
    for _ in range(20):
        process = await flooding()
        with pytest.raises(OutputTooLarge):
            await communicate(process, b"", 1_000_000)
        async with asyncio.timeout(DEADLINE_S):
            await put_down(process)
