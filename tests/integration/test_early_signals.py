"""Test signals that arrive while a process still starts, and what remains of a start that fails."""

from __future__ import annotations

import asyncio
import inspect
import signal
from pathlib import Path

import pytest

from headgate.cli.launch.process import Process, process
from headgate.cli.launch.run import run
from headgate.cli.settings import Settings
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.program import free_ports
from tests.waiting import until


def raised(number: signal.Signals) -> None:
    """Send a signal to this process, unless it would kill the test."""
    assert signal.getsignal(number) is not signal.SIG_DFL, f"{number.name} would kill the process"
    signal.raise_signal(number)


async def never(process: Process) -> None:
    raise AssertionError("there is no store")


async def test_a_process_that_waits_for_its_store_ends_only_on_a_signal_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    settings = Settings(tmp_path / "headgate.conf", {"store": {"url": f"etcd://127.0.0.1:{port}"}})
    running = asyncio.ensure_future(run(settings, never))
    await until("it waits", lambda: "waiting for it" in caplog.text or running.done())
    raised(signal.SIGHUP)
    raised(signal.SIGUSR1)
    async with asyncio.timeout(DEADLINE_S):
        await running


async def test_signals_during_the_start_are_handled_afterwards(tmp_path: Path) -> None:
    read = list[str]()

    async def made(process: Process) -> None:
        process.anew.append(lambda: read.append("again"))
        raised(signal.SIGHUP)
        await asyncio.to_thread(read.append, "first")  # the loop receives the signal meanwhile

    async with asyncio.timeout(DEADLINE_S):
        await run(Settings(tmp_path / "headgate.conf", {"store": {"url": "memory:"}}), made)
    assert read == ["first", "again"]


async def test_an_error_before_the_components_run_leaves_no_coroutine_that_nobody_awaits(tmp_path: Path) -> None:
    hub = {"driver": "github", "api_token": "token"}
    settings = Settings(tmp_path / "headgate.conf", {"scheduler": {"state_dir": "state"}}, connections={"hub": hub})
    with pytest.raises(KeyError):
        async with process(settings, asyncio.Event()) as started:
            assert set(started.forges) == {"hub"}
            raise KeyError
    assert [inspect.getcoroutinestate(work) for work in started.servers] == [inspect.CORO_CLOSED]
