"""Test machines that are kept ready: as many as the label says, unless a request waits for the room."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.machines import FlatProvider
from headgate.map.inventory.nodes import MadeNode
from headgate.services.nodes.machines.choice import Choosing, Later
from headgate.services.nodes.machines.fate import Fate
from headgate.services.nodes.machines.pools import IDLE_S, ReadyPools
from headgate.services.nodes.machines.records import SeenMachines
from headgate.services.nodes.status import NodeState
from tests.unit.nodes.test_choosing import label, node, provider, request, site
from tests.unit.nodes.test_slots import NOW_MS, machine, packed

LATE_MS = int(NOW_MS + 1000 * IDLE_S)


def with_min_ready(several: list[FlatProvider], many: int) -> list[FlatProvider]:
    """Keep this many of the first label of each ready."""
    return [replace(one, labels=(replace(one.labels[0], min_ready=many), *one.labels[1:])) for one in several]


def pools(several: list[FlatProvider], *nodes: MadeNode, label: str = "") -> ReadyPools:
    choosing = Choosing(site(several, *nodes))
    if label:
        assert isinstance(choosing.serve(request("r", label), None), Later)
    seen = SeenMachines({"t": several}, {one.id: one for one in nodes}, {}, {}, {})
    return ReadyPools(seen, Fate(seen, NodeState(frozenset(), (), {}, ()), NOW_MS), choosing)


def lacking(several: list[FlatProvider], *nodes: MadeNode, label: str = "") -> list[str]:
    return [make.provider.name for _, make in pools(several, *nodes, label=label).lacking()]


def test_missing_ready_machines_are_made_at_the_first_provider_with_room() -> None:
    two = with_min_ready([provider("a", "small", instances=2), provider("b", "small")], 3)
    assert lacking(two) == ["a", "a", "b"]
    assert lacking(two, node("x", "b", "small"), node("y", "a", "small", "in-use", request="o")) == ["a", "b"]
    assert lacking(two, node("x", "a", "small", digest="before")) == ["a", "b", "b"], "it is of something else"


def test_a_machine_counts_for_its_label_and_for_the_aliases_of_that() -> None:
    small, tiny = label("small", aliases=["tiny"]), label("tiny")
    both = [replace(provider("a", "x"), labels=(replace(tiny, min_ready=2), replace(small, min_ready=1)))]
    assert labels_of(both) == ["small", "tiny"]
    assert labels_of(both, node("x", "a", "small"), node("y", "a", "small")) == []
    assert labels_of(both, node("y", "a", "tiny")) == ["small"], "that one serves no small"
    assert labels_of(both, node("x", "a", "small"), node("y", "a", "tiny", digest="before")) == ["tiny"]
    late = [
        node(f"{name}{n}", "a", name, since_ms=NOW_MS, requested_ms=n)
        for n, name in enumerate(["tiny"] * 2 + ["small"] * 2)
    ]
    found = pools(both, *late)
    assert list(found.lacking()) == []
    assert [one.id for one in found.idle(LATE_MS)] == ["tiny1", "small3"], "one of each is kept"


def labels_of(several: list[FlatProvider], *nodes: MadeNode) -> list[str]:
    return [make.label.name for _, make in pools(several, *nodes).lacking()]


def test_no_more_machines_stay_ready_than_a_label_may_have() -> None:
    assert lacking(with_min_ready([provider("a", label("few", most=2))], 5)) == ["a", "a"]


def test_no_ready_machines_are_made_while_a_request_waits_for_the_room() -> None:
    one = with_min_ready([provider("a", "small", "large", instances=2)], 2)
    busy = [node(f"x{n}", "a", "large", "in-use", request="o") for n in range(2)]
    assert lacking(one, *busy, label="large") == []


def test_slots_count_each_and_come_with_their_machine() -> None:
    one = with_min_ready([packed(slots=2)], 3)
    assert lacking(one) == ["a", "a"]
    assert lacking(one, *machine(packed(slots=2), "ready", "in-use:o")) == ["a"]


def test_long_unused_machines_beyond_the_ready_ones_are_deleted() -> None:
    several = [node(f"x{n}", "a", "small", since_ms=NOW_MS, requested_ms=n) for n in range(3)]
    found = pools(with_min_ready([provider("a", "small")], 1), *several)
    assert list(found.lacking()) == []
    assert [one.id for one in found.idle(LATE_MS)] == ["x1", "x2"]
    assert list(found.idle(LATE_MS - 60_000)) == []


def test_the_slots_of_a_machine_go_together() -> None:
    idle = [replace(one, since_ms=NOW_MS) for one in machine(packed(slots=2), "ready", "ready")]
    assert {one.id for one in pools([packed(slots=2)], *idle).idle(LATE_MS)} == {one.id for one in idle[1:]}
    busy = [replace(one, since_ms=NOW_MS) for one in machine(packed(slots=2), "ready", "in-use:o")]
    assert list(pools([packed(slots=2)], *busy).idle(LATE_MS)) == []
