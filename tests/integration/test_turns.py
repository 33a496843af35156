"""Test that requests take turns in their share of the time: no peer is served completely before another."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headgate.web.peers.requests import BURST_S, WAITING_MAX, Paced, PeerTurns
from tests.waiting import until

COST_S = 0.02


class Served:
    """Imitate an application that uses processor time, and record its answers."""

    def __init__(self, share: float = 0.5, cost_s: float = COST_S) -> None:
        self.turns = PeerTurns(share)
        self.paced, self.order, self._cost_s = Paced(self._app, self.turns), list[tuple[str, str]](), cost_s

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:  # ASGI
        began = time.thread_time()
        while time.thread_time() - began < self._cost_s:
            pass
        self.order.append((scope["client"][0], scope["path"]))
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ask(self, peer: str, path: str = "/api/tenant/x/jobs") -> int:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        await self.paced({"type": "http", "path": path, "client": (peer, 1)}, _nothing, send)
        return statuses[0]


async def _nothing() -> Any:
    return {"type": "http.request"}


def test_peers_within_their_share_do_not_wait_and_their_cost_is_observed() -> None:
    observed: list[float] = []
    turns = PeerTurns(0.5, observe=observed.append)
    turns.spent(0.9 * 0.5 * BURST_S)
    with pytest.raises(StopIteration, match="True"):
        turns.begin("10.0.0.1", "jobs").send(None)
    assert observed == [0.9 * 0.5 * BURST_S]


async def test_a_peer_with_many_requests_delays_only_its_own() -> None:
    served = Served()
    served.turns.spent(BURST_S)
    many = [asyncio.ensure_future(served.ask("10.0.0.1")) for _ in range(20)]
    await asyncio.sleep(0)
    one = asyncio.ensure_future(served.ask("10.0.0.2"))
    other = asyncio.ensure_future(served.ask("10.0.0.1", "/api/tenant/x/status"))
    await asyncio.gather(one, other)
    first = served.order[:4]
    assert ("10.0.0.2", "/api/tenant/x/jobs") in first and ("10.0.0.1", "/api/tenant/x/status") in first
    assert await asyncio.gather(*many) == [200] * 20


async def test_the_rest_of_the_time_is_for_others() -> None:
    served, share, began, spent = Served(share=0.25), 0.25, time.monotonic(), time.thread_time()
    served.turns.spent(BURST_S * share)
    await asyncio.gather(*(served.ask(f"10.0.0.{n}") for n in range(10)))
    assert time.thread_time() - spent >= 10 * COST_S
    assert time.monotonic() - began >= 9 * COST_S / share


async def test_too_many_waiting_requests_of_a_peer_are_refused_and_a_disconnected_peer_leaves_none() -> None:
    served = Served()
    served.turns.spent(BURST_S + 10)
    waiting = [asyncio.ensure_future(served.ask("10.0.0.1")) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    assert await served.ask("10.0.0.1") == 503
    assert await served.ask("10.0.0.1", "/health/live") == 200, "who watches the process is answered"
    for one in waiting[1:]:
        one.cancel()
    await asyncio.gather(*waiting[1:], return_exceptions=True)
    again = asyncio.ensure_future(served.ask("10.0.0.1"))
    await asyncio.sleep(0)
    assert not again.done(), "it waits: there is room"
    for one in (waiting[0], again):
        one.cancel()


async def test_an_error_and_a_cancellation_reach_the_application() -> None:
    reached, begun = list[str](), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:  # ASGI
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reached.append("cancelled")
            raise ValueError("its own") from None

    paced = Paced(app, PeerTurns(0.5))
    task = asyncio.ensure_future(paced({"type": "http", "path": "/x", "client": None}, _nothing, _nothing))  # type: ignore[arg-type]
    await until("it is under way", begun.is_set)
    task.cancel()
    with pytest.raises(ValueError, match="its own"):
        await task
    assert reached == ["cancelled"]
