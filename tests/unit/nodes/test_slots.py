"""Test machines for several builds at a time: packed, counted once, removed together."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import MadeNode, NodeOrder
from headgate.ports.clouds import Amounts
from headgate.services.nodes.machines.choice import Choosing, Later, Never, NodePlan
from headgate.services.nodes.machines.demand import ReservedRoom
from headgate.services.nodes.machines.fate import Fate
from headgate.services.nodes.machines.limits import NodeLimits
from headgate.services.nodes.machines.records import SLOT_HOST, SeenMachines, new_node, open_slots, with_machine
from headgate.services.nodes.status import NodeState
from tests.unit.nodes.test_choosing import label, node, provider, request, serve, site

NOW_MS = 1_000_000


def packed(slots: int = 3, instances: float = 9.0, **settings: Any) -> FlatProvider:
    return provider("a", label("packed", slots=slots, **settings), "small", instances=instances)


def machine(of: FlatProvider, *states: str, state: str = SLOT_HOST) -> list[MadeNode]:
    """Return a machine with slots in these states; `state:request` is a slot that a request has."""
    made = new_node(of, of.labels[0], {"instances": 1.0}, {}, "t", None, NOW_MS - 100_000)
    host, slots = open_slots(made, made.slots)
    host = replace(host, state=state, external_id="i-1", host={"ansible_host": "192.0.2.1"})
    found = [host]
    for slot, one in zip(slots, states, strict=True):
        name, _, owner = one.partition(":")
        found.append(replace(with_machine(slot, host), state=name, request=owner, node="n0" if owner else "",
                             tenant="t", project="red", since_ms=NOW_MS - 50_000))  # fmt: skip
    return found


def made(found: NodePlan | Never | Later) -> list[tuple[str, ...]]:
    assert isinstance(found, NodePlan), found
    return [one.nodes for one in found.make]


def test_a_nodeset_is_packed_into_as_few_machines_as_it_needs() -> None:
    found = serve(site([packed()]), request("r", *["packed"] * 4, "small"))
    assert made(found) == [("n0", "n1", "n2"), ("n3",), ("n4",)]
    apart = [provider("b", "large"), packed()]
    assert made(serve(site(apart), request("r", "large", "packed", "packed"))) == [("n0",), ("n1", "n2")]


def test_a_free_slot_is_used_before_a_machine_is_made_and_never_the_machine_itself() -> None:
    one = packed()
    host, first, second, third = machine(one, "in-use:o", "ready", "ready")
    found = serve(site([one], host, first, second, third), request("r", *["packed"] * 3))
    assert made(found) == [("n2",)] and isinstance(found, NodePlan)
    assert {taken.id for taken, _ in found.take} == {second.id, third.id}
    building = machine(one, "requested", "requested", "requested", state="building")
    soon = serve(site([one], *building), request("r", "packed"))
    assert isinstance(soon, NodePlan) and not soon.make and soon.take[0][0].main == building[0].id


def test_slots_cost_no_quota_and_their_machine_counts_once() -> None:
    one = packed(instances=1)
    assert made(serve(site([one]), request("r", *["packed"] * 3))) == [("n0", "n1", "n2")]
    more = serve(site([one]), request("r", *["packed"] * 4))
    assert more == Never("4 such machines are more than the providers may ever have at a time")
    there = machine(one, "in-use:o", "ready", "used")
    assert isinstance(serve(site([one], *there), request("r", "packed")), NodePlan)
    found = serve(site([one], *there), request("r", "packed", "packed"))
    assert isinstance(found, Later) and "1 of 1 instances are in use" in found.why


def test_of_the_tenant_counts_its_part_and_of_project_and_label_each_slot() -> None:
    one = packed(slots=4)
    several = machine(one, "in-use:o", "in-use:p", "ready", "ready")
    few = replace(one, labels=(replace(one.labels[0], max_nodes=3), one.labels[1]))
    limits = NodeLimits(site([few], *several, most=3))
    assert limits._used["tenant", "t"] == {"instances": 0.5}
    assert limits._used["project", "t", "red"] == limits._used["label", "t", "packed"] == {"machines": 2.0}
    assert limits._used["provider", "a"] == {"instances": 1.0}
    found = serve(site([few], *several), request("r", "packed", "packed"))
    assert isinstance(found, Later) and "max-nodes of label packed: 2 of 3 machines are in use" in found.why


def test_a_machine_makes_way_with_all_of_its_slots_and_not_while_somebody_has_one() -> None:
    one = packed(instances=1)
    idle = machine(one, "ready", "ready", "ready")
    found = serve(site([one], *idle), request("r", "small"))
    assert isinstance(found, Later) and {taken.id for taken in found.idle} == {slot.id for slot in idle[1:]}
    held = serve(site([one], *machine(one, "ready", "in-use:o", "ready")), request("r", "small"))
    assert isinstance(held, Later) and held.idle == ()
    waits = [replace(slot, request="behind", node=f"n{n}") for n, slot in enumerate(idle[1:])]
    line = serve(site([one], idle[0], *waits, line=("r", "behind")), request("r", "small"))
    assert isinstance(line, Later) and {taken.id for taken in line.idle} == {slot.id for slot in idle[1:]}


def test_a_request_for_a_machine_is_not_starved_by_those_who_share_one() -> None:
    one = packed(instances=1, reuse=True)
    choosing = Choosing(site([one], *machine(one, "in-use:o", "ready", "ready")))
    assert isinstance(choosing.serve(request("r1", "small"), None), Later)
    behind = choosing.serve(request("r2", "packed"), None)
    assert isinstance(behind, Later) and "its room is reserved for requests that wait longer" in behind.why
    roomy = packed(instances=2, reuse=True)
    wide = Choosing(site([roomy], *machine(roomy, "in-use:o", "ready", "ready"), node("x", "a", "small", "in-use")))
    assert isinstance(wide.serve(request("r1", "small"), None), Later)
    assert isinstance(wide.serve(request("r2", "packed"), None), NodePlan), "it waits for the other one"


# --- what becomes of them


def fate(nodes: list[MadeNode], of: MadeNode, *requests: str, order: tuple[str, NodeOrder] | None = None,
         digest: str = "packed") -> MadeNode:  # fmt: skip
    flat = FlatLabel("packed", of.settings["label"], {}, {}, digest=digest)
    seen = SeenMachines({"t": [FlatProvider("a", "a", "sky", (flat,))]}, {one.id: one for one in nodes}, {}, {},
                        dict([order]) if order is not None else {})  # fmt: skip
    return Fate(seen, NodeState(frozenset(requests), (), {}, ()), NOW_MS).of(of)


def test_slots_are_ready_with_the_data_of_their_machine_once_it_exists() -> None:
    new = new_node(packed(), packed().labels[0], {"instances": 1.0}, {}, "t", None, NOW_MS)
    host, (slot, *_) = open_slots(new, 1)
    assert fate([host, slot], slot).state == "requested"
    there = replace(host, state=SLOT_HOST, external_id="i-1", host={"ansible_host": "192.0.2.1"}, about={"az": "x"})
    found = fate([there, slot], slot)
    assert (found.state, found.external_id, found.host, found.about) == ("ready", "i-1", there.host, {"az": "x"})
    assert (found.slot, found.uses, found.main) == (0, {}, host.id)
    assert fate([there], there) == there, "two of its slots are not written down yet"


def test_a_machine_is_removed_with_its_last_slot_unless_it_is_reused() -> None:
    several = machine(packed(), "in-use:r", "used", "used")
    after = fate(several, several[1])
    assert (after.state, after.request) == ("used", "")
    assert fate(several, several[0]) == several[0]
    assert fate([several[0]], several[0]).state == "used"
    again = machine(packed(reuse=True), "in-use:r", "ready", "ready")
    assert fate(again, again[1]).state == "building"


def test_expiry_takes_all_slots_or_none() -> None:
    busy = machine(packed(**{"max-age": 100}), "in-use:r", "ready", "ready")
    assert [fate(busy, slot, "r").state for slot in busy[1:]] == ["in-use", "ready", "ready"]
    idle = machine(packed(**{"max-age": 100}), "used", "ready", "ready")
    assert [fate(idle, slot).state for slot in idle[2:]] == ["outdated", "outdated"]
    changed = machine(packed(), "in-use:r", "ready", "ready")
    assert fate(changed, changed[2], "r", digest="other").state == "ready"
    free = serve(site([packed(**{"max-age": 100})], *busy), request("q", "packed"))
    assert isinstance(free, NodePlan)


def test_with_a_machine_that_failed_go_the_slots_that_no_build_has() -> None:
    several = machine(packed(reuse=True), "in-use:r", "ready", "ready:q", state="failed")
    assert fate(several, several[1], "r", "q").state == "in-use"
    assert fate(several, several[2], "r", "q").state == "failed"
    lost = fate(several, several[3], "r", "q")
    assert (lost.state, lost.request) == ("failed", "")
    assert fate(several, several[1]).state == "used", "it is not used again"


def test_an_order_for_a_machine_applies_to_each_of_its_slots() -> None:
    host, busy, free, _ = several = machine(packed(), "in-use:r", "ready", "ready")
    order = host.id, NodeOrder("hold", "look", hold_s=60)
    assert fate(several, busy, "r", order=order).state == "in-use"
    held = fate(several, free, "r", order=order)
    assert (held.state, held.until_ms) == ("hold", NOW_MS + 60_000)
    assert fate([host, busy, held], held, "r", order=order) == held, "its time does not begin anew"
    assert fate(several, busy, order=order).state == "hold"


def test_a_machine_counts_as_held_as_long_as_one_of_its_slots_is_held() -> None:
    one: Amounts = {"instances": 1.0}
    of = packed(instances=1)
    several = machine(of, "hold", "used", "used")
    assert NodeLimits(site([of], *several))._held(("provider", "a")) == one


def test_parts_of_a_machine_add_up_to_its_room_despite_rounding() -> None:
    room = ReservedRoom({"cores": 0.3}, wanted={"cores": 0.1}, behind={"cores": 0.1})
    assert room.leaves({"cores": 0.1}, {}), "of three thirds the last is left, whatever they come to in binary"
    assert not room.leaves({"cores": 0.11}, {})
