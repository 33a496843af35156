"""What a worker knows of its queues without looking at all of them again."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headgate.recipes.backlog import Backlog
from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Claim, Request, RequestPlaces, Requests
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
                    await store.commit([], requests.submit(Request(f"r{n}", precedence=100 + which), b"{}"))
                elif step == "claim":
                    kept.look()
                    found = list(kept)[which : which + 1]
                    taken = [await requests.claim(f, session, {"component": f"c{which}"}) for f in found]
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
            assert [f.request.id for f in kept] == [
                f.request.id
                for f in sorted(requests.open(mirror), key=lambda f: (f.request.precedence, f.entry.born))
                if not f.locked
            ]
            assert +kept.held == Counter(str(claim.request.owner["component"]) for claim in claims)
        keeping.cancel()

    run_virtual(play())
