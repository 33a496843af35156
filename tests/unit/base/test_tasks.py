"""Tasks end together, and no failure is lost."""

from __future__ import annotations

import asyncio

import pytest

from headgate.base.tasks import run_until


async def forever(ended: list[str], name: str = "forever") -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def failing() -> None:
    raise OSError("the disk is gone")


async def stubborn() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise OSError("could not clean up") from None


async def test_a_failure_stops_the_rest_and_is_raised() -> None:
    ended: list[str] = []
    with pytest.raises(OSError, match="disk is gone"):
        await run_until(asyncio.Event(), forever(ended), failing())
    assert ended == ["forever"]


async def test_the_event_stops_them_all() -> None:
    stop, ended = asyncio.Event(), list[str]()
    asyncio.get_running_loop().call_soon(stop.set)
    await run_until(stop, forever(ended, "a"), forever(ended, "b"))
    assert ended == ["a", "b"]


async def test_a_failure_while_winding_down_is_raised() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(OSError, match="could not clean up"):
        await run_until(stop, stubborn())


async def test_cancelling_the_caller_cancels_them_all() -> None:
    ended: list[str] = []
    task = asyncio.ensure_future(run_until(asyncio.Event(), forever(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["forever"]
