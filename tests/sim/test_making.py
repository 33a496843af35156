"""Test machines that are made, with clouds that lie and launchers that die, and that wrong launchers are found."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping

import hypothesis.internal.conjecture.utils  # noqa: F401  # else pytest's plugin does it at the end, when 3.11 may miscount its recursion
import pytest
from msgspec.structs import replace

from headgate.map.inventory.nodes import ENDING, MadeNode
from headgate.services.context import Context
from headgate.services.nodes.accounts import CloudAccount, Errands, Hunting, Ours
from headgate.services.nodes.machines.demand import NodeDemand
from headgate.services.nodes.machines.fate import Fate
from headgate.services.nodes.machines.hunt import Hunt
from headgate.services.nodes.machines.life import Life
from headgate.services.nodes.machines.limits import NodeLimits
from headgate.services.nodes.machines.maker import MachineMaker
from headgate.services.nodes.machines.records import MachineSlots, SeenMachines
from headgate.store.types import At
from headgate.testing.nodes.crowd import CrowdSimulation
from headgate.testing.nodes.doubles import CloudFaults
from headgate.testing.nodes.machineworld import (
    TENANTS,
    MachineBuilds,
    MachineInvariantBroken,
    MakingSimulation,
    unsealed,
)

SEEDS = range(max(1, int(os.environ.get("SIM_SEEDS", "200")) // 150))
HARD = CloudFaults(lost=0.5, broken=0.4, late_s=900.0, slow_s=2.0)
"""Faults with which a wrong launcher leaves machines behind: lost answers, late lists, and many removals."""


def test_a_machine_serves_one_build_and_nothing_that_is_paid_for_is_forgotten() -> None:
    runs = [*(MakingSimulation(seed) for seed in SEEDS), MakingSimulation(0, faults=HARD)]
    runs += [MakingSimulation(seed, labels=("packed", "shared")) for seed in SEEDS[::2]]
    runs.append(MakingSimulation(1, labels=("small", "tiny", "large", "packed"), tenants=("t", "u")))
    runs.append(MakingSimulation(1, labels=("small", "tiny", "again"), faults=CloudFaults(secret=True)))
    results = [result for run in runs for result in run.run().values()]
    assert sum(run.deaths for run in runs) > len(runs) // 2
    assert sum(run.made for run in runs) > len(results)
    assert "SUCCESS" in results


@pytest.mark.long
def test_where_no_machine_comes_up_builds_end_with_the_reason() -> None:
    simulation = MakingSimulation(1, faults=CloudFaults(broken=1.0))
    results = simulation.run()
    there = {build for build, labels in simulation.wanted.items() if labels == {"iron"}}
    assert {build for build, result in results.items() if result == "NODE_FAILURE"} == results.keys() - there
    assert results.keys() - there


class Forgetful(Hunt):
    """Never list a whole account."""

    async def look(self, seen: SeenMachines, errands: Errands) -> None:
        return


def forgetful(context: Context, accounts: Mapping[str, CloudAccount], field: MachineBuilds, guard: At) -> MachineMaker:
    making = MachineMaker(context, lambda: TENANTS, accounts, field.scan, unsealed, guard)
    making._hunt.__class__ = Forgetful
    return making


def found(*runs: MakingSimulation) -> bool:
    for run in runs:
        try:
            run.run()
        except MachineInvariantBroken:
            return True
    return False


@pytest.mark.mutant
def test_a_launcher_that_hunts_no_leaks_is_found() -> None:
    assert found(*(MakingSimulation(seed, forgetful, HARD) for seed in (7, 9, 12, 15)))


@pytest.mark.mutant
def test_the_simulation_detects_a_launcher_that_assigns_used_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(self: Fate, node: MadeNode) -> MadeNode:
        return replace(node, state="ready", request="", node="", build="", project="")

    monkeypatch.setattr(Fate, "_used", used)
    assert found(*(MakingSimulation(seed) for seed in range(20)))


@pytest.mark.mutant
def test_a_launcher_that_does_not_learn_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.services.nodes.machines.life._is_scanned", lambda node: False)
    assert found(*(MakingSimulation(seed) for seed in range(5)))


@pytest.mark.mutant
def test_the_simulation_detects_a_launcher_that_forgets_failed_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It deletes the record without a request to the cloud, and nobody removes the machine."""

    async def remove(self: Life, account: CloudAccount, node: MadeNode) -> float:
        await self.ledger.change(node.id, lambda _: None)
        return 0.0

    monkeypatch.setattr(Life, "_remove", remove)
    assert found(*(MakingSimulation(seed, forgetful, CloudFaults()) for seed in range(3)))


@pytest.mark.sampled
@pytest.mark.parametrize(("seed", "held"), [(2, 0), (25, 2)])
def test_every_request_is_served_and_soon_if_there_is_room(seed: int, held: int) -> None:
    """Small requests keep coming, and sometimes one for everything that a project, or a provider, may have."""
    assert CrowdSimulation(seed, held=held).run() > 40


def crowded(world: CrowdSimulation) -> bool:
    try:
        world.run()
    except MachineInvariantBroken:
        return True
    return False


@pytest.mark.mutant
def test_the_simulation_finds_small_requests_that_overtake_large_ones_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NodeLimits, "keep", lambda *_: [])
    assert crowded(CrowdSimulation(2))


@pytest.mark.mutant
def test_the_simulation_finds_room_reserved_for_a_request_that_held_machines_make_impossible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NodeLimits, "_held", lambda *_: {})
    assert crowded(CrowdSimulation(25, held=2))


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("seed", [0, 2])
def test_two_installations_with_a_copy_of_one_store_do_not_hunt_each_others_machines(seed: int) -> None:
    assert "SUCCESS" in MakingSimulation(seed, faults=CloudFaults(late_s=60.0), cloned=True).run().values()


def narrow(seed: int, secret: bool = False) -> MakingSimulation:
    """Return two installations that share accounts with room for one large nodeset at a time; `secret`: neither can
    read that."""
    faults = CloudFaults(late_s=60.0, secret=secret)
    return MakingSimulation(seed, labels=("again",), faults=faults, cloned=True, room=3)


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize(("seed", "secret"), [(4, False), (2, True)])
def test_two_requests_that_each_have_half_of_their_machines_are_both_served(seed: int, secret: bool) -> None:
    world = narrow(seed, secret)
    results = world.run()
    assert set(results.values()) == {"SUCCESS"}
    assert world.made < len(results), "little was made in vain: machines of this label are used again"


@pytest.mark.mutant
def test_the_simulation_finds_requests_that_never_give_machines_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.services.nodes.machines.maker.partly", lambda wait, *_: wait)
    assert found(narrow(4))


@pytest.mark.mutant
def test_a_launcher_that_hunts_all_that_has_its_tag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Hunting.look

    def look_at_everything(
        self: Hunting, connection: str, properties: Mapping[str, object], ours: Ours
    ) -> Awaitable[object]:
        return look(self, connection, properties, Ours(ours.system, lambda _: True, ours.known))

    monkeypatch.setattr(Hunting, "look", look_at_everything)
    assert found(*(MakingSimulation(seed, faults=CloudFaults(boot_s=200.0), cloned=True) for seed in range(4)))


@pytest.mark.mutant
def test_the_simulation_detects_a_launcher_that_deletes_a_machine_with_a_slot_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MachineSlots, "busy", lambda *_: False)
    monkeypatch.setattr("headgate.services.nodes.machines.life.slot_ids", lambda node: [])
    monkeypatch.setattr(Fate, "of", over_at_once(Fate.of))
    assert found(*(MakingSimulation(seed, labels=("packed",)) for seed in range(6)))


def over_at_once(of: Callable[[Fate, MadeNode], MadeNode]) -> Callable[[Fate, MadeNode], MadeNode]:
    """Let a machine go with the first of its slots."""

    def changed(self: Fate, node: MadeNode) -> MadeNode:
        over = node.slots and node.opened >= node.slots > len(self.slots.of(node.id)) and node.state not in ENDING
        return replace(node, state="used") if over else of(self, node)

    return changed


@pytest.mark.mutant
def test_the_simulation_detects_a_launcher_that_assigns_a_slot_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every slot as if its label had `reuse`."""

    def used(self: Fate, node: MadeNode) -> MadeNode:
        after = replace(node, request="", node="", build="", project="")
        return replace(after, state="building" if node.main else "used")

    monkeypatch.setattr(Fate, "_used", used)
    assert found(*(MakingSimulation(seed, labels=("packed",)) for seed in range(6)))


ZONED = ("small", "deep", "high", "both")


@pytest.mark.long
def test_builds_go_to_executors_that_reach_their_machines_and_no_executor_reaches_two_zones() -> None:
    """For a label with machines in two zones, take either machine."""
    runs = [MakingSimulation(seed, labels=ZONED, faults=CloudFaults()) for seed in range(2)]
    for run in runs:
        results = run.run()
        apart = {build for build, labels in run.wanted.items() if {"deep", "high"} <= labels}
        assert {build for build, result in results.items() if result == "NODE_FAILURE"} == apart
        assert results.keys() - apart
    assert "SUCCESS" in MakingSimulation(3, labels=ZONED).run().values(), "also where executors die and clouds lie"


@pytest.mark.mutant
def test_a_launcher_that_gives_machines_of_one_zone_to_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeDemand, "_reached", lambda *_: True)
    assert found(*(MakingSimulation(seed, labels=ZONED) for seed in range(4)))
