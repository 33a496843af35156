"""Test held builds: who can read their directories, and when these are removed."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from headgate.adapters.nodes.machines import ListedMachine
from headgate.config.model import Node, Nodeset
from headgate.ports.work import BuildHolding

from .bench import Alone, Bench


class Holding(Alone):
    """Hold builds that fail."""

    def __init__(self, runner: BuildHolding, *, also: Sequence[str] = ()) -> None:
        super().__init__()
        self._runner, self._also = runner, also
        self.requests: list[tuple[str | None, str, list[str]]] = []

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        self.requests.append((result, directory, list(machines)))
        if result != "FAILURE":
            return ""
        await self._runner.keep([Path(directory).name, *self._also], machines)
        return "It is held."


async def test_a_held_build_belongs_to_its_executor_alone_until_it_is_released(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    contact = Holding(bench.runner)
    fails = bench.script("run", "umask 000; echo found > evidence; exit 1")
    assert (await bench.build(run=(fails,), contact=contact)).result == "FAILURE"
    place, first = bench.runner.root / bench.id, bench.id
    assert contact.requests == [("FAILURE", str(place), [])] and "It is held." in bench.log
    (evidence,) = place.rglob("evidence")
    assert evidence.read_text() == "found\n" and stat.S_IMODE(place.stat().st_mode) == 0o700
    assert bench.log.index("It is held.") < bench.log.index("RESULT: FAILURE")

    async def held_builds() -> set[str]:
        return {first}

    await bench.runner.sweep(held_builds)
    assert evidence.exists(), "who is started again sweeps what is held no more than it did"
    again = Holding(bench.runner, also=(first,))
    assert (await bench.build(run=(fails,), contact=again)).result == "FAILURE"
    second = bench.runner.root / bench.id
    assert place.exists() and second.exists()
    await bench.runner.keep([bench.id], [])
    assert not place.exists() and second.exists()
    await bench.runner.sweep()
    assert not second.exists()


async def test_successful_builds_are_not_held(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    contact = Holding(bench.runner)
    assert (await bench.build(run=(bench.script("run", "exit 0"),), contact=contact)).result == "SUCCESS"
    assert contact.requests[0][0] == "SUCCESS" and not any(bench.runner.root.iterdir())


async def test_machines_of_a_held_build_go_to_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path, machines=(ListedMachine("one.lab", ("small",)), ListedMachine("two.lab", ("small",))))
    small = Nodeset(nodes=(Node(("n",), "small"),))
    fails = bench.script("run", "exit 1")
    contact = Holding(bench.runner)
    await bench.build(run=(fails,), nodeset=small, contact=contact)
    assert contact.requests[0][2] == ["one.lab"]
    last = Holding(bench.runner, also=(Path(contact.requests[0][1]).name,))
    await bench.build(run=(fails,), nodeset=small, contact=last)
    assert last.requests[0][2] == ["two.lab"]
