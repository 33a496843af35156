"""Machines that are made, under clouds that lie and launchers that die; launchers that are wrong are found."""

from __future__ import annotations

import os
from collections.abc import Mapping

import hypothesis.internal.conjecture.utils  # noqa: F401  # else pytest's plugin does it at the end, when 3.11 may miscount its recursion
import pytest
from msgspec.structs import replace

from headgate.map.inventory.made import MadeNode
from headgate.services.context import Context
from headgate.services.nodes.made.accounts import Account
from headgate.services.nodes.made.choosing import Choosing
from headgate.services.nodes.made.fate import Fate
from headgate.services.nodes.made.life import Life
from headgate.services.nodes.made.maker import Making
from headgate.store.types import At
from headgate.testing.nodes.making import TENANTS, Broken, Field, MakingSimulation, unsealed
from headgate.testing.nodes.sky import Troubles

SEEDS = range(max(1, int(os.environ.get("SIM_SEEDS", "1000")) // 150))
HARD = Troubles(lost=0.5, broken=0.4, late_s=900.0, slow_s=2.0)
"""Where answers are lost, what is there is listed late, and much is to be taken away, something is left behind."""


def test_a_machine_serves_one_build_and_nothing_that_is_paid_for_is_forgotten() -> None:
    runs = [*(MakingSimulation(seed) for seed in SEEDS), MakingSimulation(0, troubles=HARD)]
    results = [result for run in runs for result in run.run().values()]
    assert sum(run.deaths for run in runs) > len(runs) // 2
    assert sum(run.made for run in runs) > len(results)
    assert "SUCCESS" in results


def test_where_no_machine_comes_up_builds_end_with_the_reason() -> None:
    results = MakingSimulation(1, troubles=Troubles(broken=1.0)).run()
    assert set(results.values()) == {"NODE_FAILURE"}


class Forgetful(Making):
    """Looks at no account as a whole."""

    def _hunt(self) -> None:
        return


def forgetful(context: Context, accounts: Mapping[str, Account], field: Field, guard: At) -> Making:
    return Forgetful(context, lambda: TENANTS, accounts, field.scan, unsealed, guard)


def found(*runs: MakingSimulation) -> bool:
    for run in runs:
        try:
            run.run()
        except Broken:
            return True
    return False


def test_a_launcher_that_hunts_no_leaks_is_found() -> None:
    assert found(*(MakingSimulation(seed, forgetful, HARD) for seed in range(12)))


def test_a_launcher_that_gives_used_machines_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(self: Fate, node: MadeNode) -> MadeNode:
        return replace(node, state="ready", request="", node="", build="", project="")

    monkeypatch.setattr(Fate, "_used", used)
    assert found(*(MakingSimulation(seed) for seed in range(20)))


def test_a_launcher_that_does_not_learn_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.services.nodes.made.life._is_scanned", lambda node: False)
    assert found(*(MakingSimulation(seed) for seed in range(5)))


def test_a_launcher_that_lets_idle_machines_stand_in_the_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Choosing, "_in_the_way", lambda *_: ())
    assert found(*(MakingSimulation(seed) for seed in range(5, 40)))


def test_a_launcher_that_forgets_what_is_in_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes the record out without asking the cloud, and leaves the rest to nobody."""

    async def remove(self: Life, account: Account, node: MadeNode) -> float:
        await self.desk.change(node.id, lambda _: None)
        return 0.0

    monkeypatch.setattr(Life, "_remove", remove)
    assert found(*(MakingSimulation(seed, forgetful, Troubles()) for seed in range(3)))
