"""What still runs when a worker gives up is told so, each time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from headgate.base.tasks import unless
from headgate.services.queueing.sharing import Sharing
from headgate.testing.loop import run_virtual


class Lane:
    def leave(self) -> None: ...

    async def give_back(self) -> None: ...


def test_a_job_that_takes_one_cancellation_for_its_own_hears_of_the_next() -> None:
    told = list[float]()

    async def job() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                told.append(asyncio.get_running_loop().time())

    async def main() -> None:
        sharing = Sharing(None, None, SimpleNamespace(lost=asyncio.Event()), None, None, None, None, "here")
        sharing._runners["lane"] = (Lane(), asyncio.ensure_future(job()))
        abort = asyncio.Event()
        asyncio.get_running_loop().call_later(10, abort.set)
        await unless(abort, sharing.leave(within_s=5))
        assert told == [5, 10]

    run_virtual(main())
