"""What a worker knows of its queues without looking at all of them again."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headgate.recipes.backlog import Backlog
from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Claim, Open, Owner, Request, RequestPlaces, Requests
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.loop import run_virtual

PLACES = RequestPlaces("/q/requests", "/q/locks", "/q/params", "/q/result-data", "/q/results", "/q/waiters")
STEPS = st.sampled_from(["submit", "submit", "claim", "claim", "release", "complete", "look"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 3)), max_size=14))
def test_kept_change_by_change_it_is_what_it_would_be_made_anew(steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        store = Store(MemoryBackend())
        requests, mirror, claims = Requests(store, PLACES), Mirror(store, "/q"), list[Claim]()
        keeping = asyncio.ensure_future(mirror.run())
        await mirror.ready()
        kept = Backlog(requests, mirror)
        async with store.session("worker") as session:
            for n, (step, which) in enumerate(steps):
                if step == "submit":
                    meta = {"tenant": f"t{which % 2}", "project": f"p{which}"}
                    request = Request(f"r{n}", precedence=100 + which // 3, meta=meta)
                    await store.commit([], requests.submit(request, b"{}"))
                elif step == "claim":
                    kept.look()
                    found = list(kept)[which : which + 1]
                    taken = [await requests.claim(f, session, Owner(component=f"c{which}")) for f in found]
                    claims += [claim for claim in taken if claim is not None]
                elif step == "look":
                    kept.look()
                elif claims and step == "release":
                    await requests.release(claims.pop())
                elif claims:
                    await requests.complete(claims.pop(), [])
                await asyncio.sleep(0.01)
            kept.look()
            anew = Backlog(requests, mirror)
            anew.look()
            assert list(kept) == list(anew) and +kept.held == +anew.held
            assert [f.request.id for f in kept] == _one_at_a_time(requests.open(mirror))
            assert +kept.held == Counter(claim.request.owner.component for claim in claims)
        keeping.cancel()

    run_virtual(play())


def _one_at_a_time(found: list[Open]) -> list[str]:
    """The line, by its definition: whoever has the fewest of that precedence is next, and of those the oldest."""
    waiting, out = [f for f in found if not f.locked], list[str]()
    taken = [(f.request.precedence, f.request.meta["tenant"], f.request.meta["project"]) for f in found if f.locked]
    while waiting:
        urgent = min(f.request.precedence for f in waiting)
        now = [f for f in waiting if f.request.precedence == urgent]

        def key(f: Open, urgent: int = urgent, now: list[Open] = now) -> tuple[int, int, int, int]:
            tenant, project = f.request.meta["tenant"], f.request.meta["project"]
            of_tenant = sum(share[:2] == (urgent, tenant) for share in taken)
            of_project = sum(share == (urgent, tenant, project) for share in taken)
            beside = [g for g in now if g.request.meta["tenant"] == tenant]

            def rank(g: Open) -> tuple[int, int]:
                own = (urgent, tenant, g.request.meta["project"])
                return sum(share == own for share in taken), g.entry.born

            return of_tenant, min(map(rank, beside))[1], of_project, f.entry.born

        chosen = min(now, key=key)
        out.append(chosen.request.id)
        taken.append((urgent, chosen.request.meta["tenant"], chosen.request.meta["project"]))
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
        keeping = asyncio.ensure_future(mirror.run())
        await mirror.ready()
        backlog = Backlog(queue, mirror)
        backlog.look()
        keeping.cancel()
        return [found.request.id for found in backlog]

    return run_virtual(play())


def test_a_flood_delays_the_first_of_another_by_one_place() -> None:
    order = _order(_submitted({("t", "flood"): 50, ("t", "quiet"): 1, ("u", "quiet"): 2}))
    assert order.index("t.quiet.0") <= 3 and order.index("u.quiet.0") == 1 and order.index("u.quiet.1") <= 3
    flood = [id for id in order if "flood" in id]
    assert flood == [f"t.flood.{n}" for n in range(50)], "its own are in order, and none is forgotten"


def test_what_is_urgent_goes_first_whoever_has_what() -> None:
    calm = _submitted({("t", "quiet"): 1})
    urgent = [Request(f"urgent{n}", 100, meta={"tenant": "u", "project": "flood"}) for n in range(20)]
    assert _order([*calm, *urgent])[-1] == "t.quiet.0"
