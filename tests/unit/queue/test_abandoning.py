"""Test that every running job is cancelled each time a worker gives up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from headgate.base.tasks import unless
from headgate.queue.workers.shares import PartitionSharing
from headgate.testing.clock import run_virtual


class Runner:
    def leave(self) -> None: ...

    async def give_back(self) -> None:
        """As if the store never answered."""
        await asyncio.Event().wait()


def cancellation_times(*, leave_s: float, signal_s: float = 1e6, lost_s: float = 1e6) -> list[float]:
    """Record the cancellations of a job that takes the first one for its own, as a worker leaves, is cancelled again,
    and loses its session."""
    received = list[float]()

    async def job() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                received.append(asyncio.get_running_loop().time())

    async def main() -> None:
        lost, abort, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
        sharing = PartitionSharing(None, None, SimpleNamespace(lost=lost), None, None, None, None)
        sharing._runners["partition"] = (Runner(), asyncio.ensure_future(job()))
        loop.call_later(signal_s, abort.set)
        loop.call_later(lost_s, lost.set)
        try:
            await unless(abort, sharing.leave(within_s=leave_s))
        finally:
            await sharing.abandon()
        assert loop.time() <= max(105, lost_s), "nothing is waited for that the session no longer entitles to"

    run_virtual(main())
    return received


def test_a_job_that_swallows_one_cancellation_receives_the_next() -> None:
    assert cancellation_times(leave_s=5, signal_s=10, lost_s=50) == [5, 10]


def test_running_jobs_are_cancelled_when_the_worker_stops_and_when_its_session_ends() -> None:
    assert cancellation_times(leave_s=5, lost_s=50) == [5, 50]


def test_a_session_lost_before_is_reported_as_that_alone() -> None:
    assert cancellation_times(leave_s=5, lost_s=2) == [5]
