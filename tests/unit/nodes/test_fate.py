"""Test what happens to a machine: after its build, when it is held, too old, or made from an old definition."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import MadeNode, NodeOrder
from headgate.services.nodes.machines.fate import Fate
from headgate.services.nodes.machines.records import SeenMachines
from headgate.services.nodes.status import NodeState

NOW_MS = 1_000_000


def machine(state: str, request: str = "", **settings: Any) -> MadeNode:
    every = {"label": {"name": "small", **settings}, "image": {}, "flavor": {}, "provider": {}}
    return MadeNode(
        id="n", provider="p", connection="c", label="small", state=state, settings=every, digest="d", request=request,
        node="box" if request else "", requested_ms=NOW_MS - 100_000, since_ms=NOW_MS - 50_000,
    )  # fmt: skip


def fate(
    node: MadeNode, *, requests: str = "", held: str = "", order: NodeOrder | None = None, digest: str = "d"
) -> MadeNode:
    label = FlatLabel("small", node.settings["label"], {}, {}, digest=digest)
    providers = {"t": [FlatProvider("p", "c", "sky", (label,))]}
    seen = SeenMachines(providers, {"n": node}, {}, {}, {"n": order} if order is not None else {})
    now = NodeState(frozenset(requests.split()), (), {}, (), frozenset(held.split()))
    return Fate(seen, now, NOW_MS).of(node)


def test_a_machine_is_used_once_and_its_build_is_forgotten() -> None:
    found = fate(machine("in-use", "r"))
    assert (found.state, found.request, found.node, found.served) == ("used", "", "", 1)
    assert fate(machine("in-use", "r"), requests="r").state == "in-use"


def test_a_reusable_machine_is_probed_again_unless_it_is_too_old_or_of_another_definition() -> None:
    assert fate(machine("in-use", "r", reuse=True)).state == "building"
    assert fate(machine("in-use", "r", **{"reuse": True, "max-age": 100})).state == "used"
    assert fate(machine("in-use", "r", reuse=True), digest="other").state == "used"


def test_a_machine_made_for_a_cancelled_build_is_for_others() -> None:
    for state in ("requested", "building", "ready"):
        found = fate(machine(state, "r"))
        assert (found.state, found.request) == (state, "")


def test_the_machine_of_a_held_build_stays_until_it_is_released() -> None:
    held = fate(machine("in-use", "r"), held="r")
    assert (held.state, held.request) == ("hold", "r")
    assert fate(machine("hold", "r"), held="r").state == "hold"
    assert fate(machine("hold", "r")).state == "used"
    assert fate(machine("hold", "r"), held="r", order=NodeOrder("used")).state == "used"


def test_an_order_is_carried_out_once_no_build_has_the_machine() -> None:
    order = NodeOrder("hold", "look", NOW_MS + 1)
    assert fate(machine("in-use", "r"), requests="r", order=order).state == "in-use"
    found = fate(machine("ready"), order=order)
    assert (found.state, found.comment, found.until_ms) == ("hold", "look", NOW_MS + 1)
    assert fate(machine("failed"), order=order).state == "failed"


def test_a_machine_is_held_after_its_build_for_the_full_requested_time() -> None:
    """However long the build runs after the request, the time of the hold does not begin before its end."""
    order = NodeOrder("hold", "look", NOW_MS - 40_000, hold_s=60)
    for state in ("in-use", "hold"):
        found = fate(machine(state, "r"), order=order)
        assert (found.state, found.request, found.until_ms) == ("hold", "", NOW_MS + 60_000), state
        assert fate(found).state == "hold"
    assert fate(machine("in-use", "r"), order=NodeOrder("outdated")).state == "used"


def test_a_held_machine_is_removed_after_its_time() -> None:
    assert fate(replace(machine("hold"), until_ms=NOW_MS)).state == "used"
    assert fate(replace(machine("hold"), until_ms=NOW_MS + 1)).state == "hold"
    assert fate(machine("hold")).state == "hold"


def test_an_unassigned_machine_is_removed_when_it_is_old_or_outdated() -> None:
    assert fate(machine("ready", **{"max-ready-age": 50})).state == "outdated"
    assert fate(machine("ready", **{"max-ready-age": 51})).state == "ready"
    assert fate(machine("building", **{"max-ready-age": 50})).state == "building"
    assert fate(machine("building", **{"max-age": 100})).state == "outdated"
    assert fate(machine("ready", **{"max-age": 100, "min-retention-time": 200})).state == "ready"
    assert fate(machine("ready"), digest="other").state == "outdated"
    assert fate(machine("ready", "r", **{"max-age": 100}), requests="r").state == "ready", "somebody has it"
