"""Test leases of objects under crashes, and that the simulation finds wrong servers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from headgate.inventory.leases import ObjectLease
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.inventory.pool import Book
from headgate.store.types import At, Entry, Op
from headgate.testing.backends import WrappedBackend
from headgate.testing.inventory.lessees import LeaseInvariantBroken, LeasingSimulation

SEEDS = range(max(1, int(os.environ.get("SIM_SEEDS", "200")) // 50))


@pytest.mark.long
def test_no_lease_takes_a_leased_object_or_exceeds_a_quota() -> None:
    runs = [LeasingSimulation(seed) for seed in SEEDS]
    for run in runs:
        run.run()
    assert sum(run.deaths for run in runs) > len(runs) // 2
    assert sum(run.given for run in runs) > 5 * len(runs)
    assert max(run.most for run in runs) >= 4, "several hold something at a time"


class Careless(WrappedBackend):
    """Commit without the checks."""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self.inner.commit([], ops)


def unchecked(inventory: Inventory) -> ObjectLeasing:
    store = inventory.facts.store
    store.backend = Careless(store.backend)
    return ObjectLeasing(inventory)


class Generous(ObjectLeasing):
    """Ignore quotas."""

    async def _beyond_quota(self, book: Book, lease: ObjectLease, now_ms: int) -> str:
        return ""


@pytest.mark.mutant
@pytest.mark.parametrize("wrong", [unchecked, Generous])
def test_a_server_that_gives_too_much_is_found(wrong: type[ObjectLeasing]) -> None:
    with pytest.raises(LeaseInvariantBroken, match=r"is leased exclusively|have more"):
        for seed in range(50):
            LeasingSimulation(seed, wrong).run()
