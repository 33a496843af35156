"""Test claims of machines under crashes, and that the simulation finds a wrong launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis.internal.conjecture.utils  # noqa: F401  # else pytest's plugin does it at the end, when 3.11 may miscount its recursion
import pytest

from headgate.ports.clouds import Machine, Provider
from headgate.services.context import Context
from headgate.services.inventory.inventory import Inventory
from headgate.services.nodes.launcher import Launcher, LauncherTerm
from headgate.store.store import Session, Store
from headgate.store.types import At, Entry, Op
from headgate.testing.backends import WrappedBackend
from headgate.testing.nodes.machinesim import TENANTS, MachineInvariantBroken, MachineSimulation

SEEDS = range(max(1, int(os.environ.get("SIM_SEEDS", "200")) // 100))


def test_no_machine_serves_two_builds_and_none_is_left_behind() -> None:
    runs = [MachineSimulation(seed) for seed in SEEDS]
    results = [result for run in runs for result in run.run().values()]
    assert sum(run.deaths for run in runs) > len(runs) // 2
    assert sum(run.leases for run in runs) > len(runs) // 2
    assert {"SUCCESS", "NODE_FAILURE"} <= set(results)


class Slovenly:
    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        return await self._inner.prepare(machine)

    async def clean(self, machine: Machine) -> None:
        return None

    async def probe(self, machine: Machine) -> None:
        await self._inner.probe(machine)


def uncleaned(context: Context, inventory: Inventory, providers: Mapping[str, Provider]) -> Launcher:
    return Launcher(context, inventory, lambda: TENANTS, {kind: Slovenly(one) for kind, one in providers.items()})


class Careless(WrappedBackend):
    """Commit without its checks."""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self.inner.commit([], ops)


class Alone(Launcher):
    """Ignore all other launchers."""

    async def run(self, session: Session) -> None:
        await LauncherTerm(self, At("/nobody", None)).run()


def unguarded(context: Context, inventory: Inventory, providers: Mapping[str, Provider]) -> Launcher:
    careless = Context(Store(Careless(context.store.backend)), context.mirror, context.now_ms)
    return Alone(careless, inventory, lambda: TENANTS, providers)


@pytest.mark.mutant
def test_a_launcher_that_does_not_clean_is_found() -> None:
    with pytest.raises(MachineInvariantBroken):
        for seed in range(50):
            MachineSimulation(seed, uncleaned).run()


@pytest.mark.mutant
def test_a_launcher_that_checks_nothing_is_found() -> None:
    with pytest.raises(MachineInvariantBroken):
        for seed in range(50):
            MachineSimulation(seed, unguarded).run()
