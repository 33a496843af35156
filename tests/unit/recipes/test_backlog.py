"""Test what a worker knows of its queues without reading all of them again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from headgate.recipes.backlog import Backlog
from headgate.recipes.claims import Claim
from headgate.recipes.line import line
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open, Owner, Request, RequestPlaces
from headgate.recipes.requests import Requests
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual

PLACES = RequestPlaces("/q/requests", "/q/locks", "/q/params", "/q/result-data", "/q/results", "/q/waiters")
STEPS = st.sampled_from(["submit", "submit", "claim", "claim", "release", "complete", "look"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 3)), max_size=14))
def test_updated_change_by_change_it_equals_a_rebuilt_one(steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        store = Store(MemoryBackend())
        requests, mirror, claims = Requests(store, PLACES), Mirror(store, "/q"), list[Claim]()
        mirroring = asyncio.ensure_future(mirror.run())
        await mirror.ready()
        backlog, served = Backlog(requests, mirror), list[Request]()
        async with store.session("worker") as session:
            for n, (step, which) in enumerate(steps):
                if step == "submit":
                    meta = {"tenant": f"t{which % 2}", "project": f"p{which}"}
                    request = Request(f"r{n}", precedence=100 + which // 3, meta=meta)
                    await store.commit([], requests.submit(request, b"{}"))
                elif step == "claim":
                    backlog.look()
                    found = list(line([backlog]))[which : which + 1]
                    taken = [await requests.claim(f, session, Owner(component=f"c{which}")) for f in found]
                    claims += [claim for claim in taken if claim is not None]
                    served += [claim.request for claim in taken if claim is not None]
                    await asyncio.sleep(0.01)
                    backlog.look()
                elif step == "look":
                    backlog.look()
                elif claims and step == "release":
                    await claims.pop().release()
                elif claims:
                    await claims.pop().complete([])
                await asyncio.sleep(0.01)
            backlog.look()
            anew = Backlog(requests, mirror)
            anew.look()
            assert set(_ids(line([backlog]))) == set(_ids(line([anew]))) and +backlog.held == +anew.held
            assert _ids(line([backlog])) == _one_at_a_time(requests.open(mirror), served)
            assert _ids(line([anew])) == _one_at_a_time(requests.open(mirror), [])
            assert +backlog.held == Counter(claim.request.owner.component for claim in claims)
        mirroring.cancel()

    run_virtual(play())


def _ids(found: Iterable[Open]) -> list[str]:
    return [one.request.id for one in found]


def _share(request: Request) -> tuple[int, str, str]:
    return request.precedence, request.meta["tenant"], request.meta["project"]


def _one_at_a_time(found: list[Open], served: list[Request]) -> list[str]:
    """Compute the order by its definition: within a precedence, the one with the fewest builds is next, then the one
    served longest ago, then the oldest. `served`: everything that was taken, the last one last."""
    waiting, out = [f for f in found if not f.locked], list[str]()
    taken = [_share(f.request) for f in found if f.locked]
    history = [_share(request) for request in served]

    def fewest(size: int, of: list[Open]) -> list[Open]:
        """Return those of the tenant (2) or project (3) that is next."""

        def rank(f: Open) -> tuple[int, int, int]:
            own = _share(f.request)[:size]
            last = max((n for n, share in enumerate(history, 1) if share[:size] == own), default=0)
            oldest = min(g.entry.born for g in of if _share(g.request)[:size] == own)
            return sum(share[:size] == own for share in taken), last, oldest

        best = min(map(rank, of))
        return [f for f in of if rank(f) == best]

    while waiting:
        urgent = min(f.request.precedence for f in waiting)
        of = fewest(2, [f for f in waiting if f.request.precedence == urgent])
        chosen = min(fewest(3, of), key=lambda f: f.entry.born)
        out.append(chosen.request.id)
        taken.append(_share(chosen.request))
        history.append(_share(chosen.request))
        waiting.remove(chosen)
    return out


def _submitted(count: dict[tuple[str, str], int], precedence: int = 200) -> list[Request]:
    ids = ((tenant, project, n) for (tenant, project), many in count.items() for n in range(many))
    return [Request(f"{t}.{p}.{n}", precedence, meta={"tenant": t, "project": p}) for t, p, n in ids]


def _order(requests: list[Request]) -> list[str]:
    async def play() -> list[str]:
        store = Store(MemoryBackend())
        queue, mirror = Requests(store, PLACES), Mirror(store, "/q")
        for request in requests:
            await store.commit([], queue.submit(request, b"{}"))
        mirroring = asyncio.ensure_future(mirror.run())
        await mirror.ready()
        backlog = Backlog(queue, mirror)
        backlog.look()
        mirroring.cancel()
        return [found.request.id for found in line([backlog])]

    return run_virtual(play())


def test_a_flood_delays_the_first_of_another_by_one_place() -> None:
    order = _order(_submitted({("t", "flood"): 50, ("t", "quiet"): 1, ("u", "quiet"): 2}))
    assert order.index("t.quiet.0") <= 3 and order.index("u.quiet.0") == 1 and order.index("u.quiet.1") <= 3
    flood = [id for id in order if "flood" in id]
    assert flood == [f"t.flood.{n}" for n in range(50)], "its own are in order, and none is forgotten"


def test_urgent_requests_go_first_whichever_project_they_belong_to() -> None:
    calm = _submitted({("t", "quiet"): 1})
    urgent = [Request(f"urgent{n}", 100, meta={"tenant": "u", "project": "flood"}) for n in range(20)]
    assert _order([*calm, *urgent])[-1] == "t.quiet.0"


def test_with_one_place_everybody_is_served_in_turn() -> None:
    """None has anything in progress when the place becomes free: the last service decides."""

    async def play() -> list[str]:
        store = Store(MemoryBackend())
        queue, mirror = Requests(store, PLACES), Mirror(store, "/q")
        for request in _submitted({("t", "flood"): 20, ("t", "quiet"): 2, ("u", "quiet"): 2}):
            await store.commit([], queue.submit(request, b"{}"))
        mirroring = asyncio.ensure_future(mirror.run())
        await mirror.ready()
        backlog, order = Backlog(queue, mirror), list[str]()
        async with store.session("worker") as session:
            backlog.look()
            while found := next(line([backlog]), None):
                claim = await queue.claim(found, session, Owner(component="worker"))
                assert claim is not None
                order.append(claim.request.id)
                await claim.complete([])
                await asyncio.sleep(0.01)
                backlog.look()
        mirroring.cancel()
        return order

    order = run_virtual(play())
    assert order[:8] == [
        *("t.flood.0", "u.quiet.0", "t.quiet.0", "u.quiet.1", "t.flood.1", "t.quiet.1", "t.flood.2", "t.flood.3")
    ]
    assert len(order) == 24


def test_a_build_that_holds_a_semaphore_precedes_the_rest_of_its_own_project_only() -> None:
    """Others wait for it to be given back, and must not wait for the complete line."""
    meta = {"tenant": "t", "project": "flood", "semaphores": "one"}
    waiting = [*_submitted({("t", "flood"): 5, ("u", "quiet"): 2}), Request("holds", meta=meta)]
    assert _order(waiting)[:4] == ["holds", "u.quiet.0", "t.flood.0", "u.quiet.1"]
