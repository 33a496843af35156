"""Test which machines make room for others: when a request waits, what blocks it, and which request gives machines
back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from headgate.config.machines import STATIC, FlatProvider
from headgate.map.inventory.nodes import MadeNode, NodeWait
from headgate.services.nodes.ledger import HELD_FIRST_S, HELD_MAX_S, PAUSE_FIRST_S, PAUSE_MAX_S, TRIED_MAX, partly
from headgate.services.nodes.machines.choice import Choosing, Later, NodePlan
from headgate.services.nodes.machines.demand import NodeSurvey
from headgate.services.nodes.machines.records import host_nodes
from tests.unit.nodes.test_choosing import label, node, provider, request, serve, site, where
from tests.unit.nodes.test_slots import machine, packed

NOW_MS, STEP_S = 1_000_000, 10
PAUSED = NodeWait("r", why="later", gave=1, again_ms=NOW_MS + 1)


def until_given_back(wait: NodeWait, held: int, now_ms: int) -> tuple[NodeWait, int]:
    """Return the record after its machines are given back, and how long they were reserved."""
    begun_ms, gave = now_ms, wait.gave
    while wait.gave == gave:
        wait = partly(wait, held, now_ms)
        now_ms += 1000 * STEP_S
    return wait, (now_ms - begun_ms) // 1000


def test_a_request_without_progress_gives_its_machines_back_and_retries_after_growing_pauses() -> None:
    wait, now_ms = NodeWait("r", at="a"), NOW_MS
    for tries in range(20):
        wait, kept_s = until_given_back(wait, 1, now_ms)
        pause_s, grown = (wait.again_ms - now_ms) / 1000 - kept_s, 2.0**tries
        for took_s, least_s in (
            (kept_s, min(HELD_FIRST_S * grown, HELD_MAX_S)),
            (pause_s, min(PAUSE_FIRST_S * grown, PAUSE_MAX_S)),
        ):
            assert least_s - STEP_S <= took_s <= 2 * least_s + 2 * STEP_S
        assert wait.gave == tries + 1 and not wait.at and not wait.held and "tries again after" in wait.why
        now_ms = wait.again_ms
    assert len(wait.tried) == TRIED_MAX and wait.tried[-1].startswith("it had 1 of its machines for ")


def test_two_who_wait_for_each_other_give_up_at_different_times() -> None:
    moments = {until_given_back(NodeWait(f"r{number}"), 1, NOW_MS)[1] // 10 for number in range(20)}
    assert len(moments) > 10


def test_a_request_that_makes_progress_keeps_its_machines() -> None:
    late_ms = NOW_MS + int(2000 * HELD_FIRST_S)
    wait = partly(NodeWait("r"), 1, NOW_MS)
    assert partly(wait, None, late_ms) == wait, "it waits for what is its own"
    further = partly(wait, 2, late_ms)
    assert (further.held, further.held_ms, further.gave) == (2, late_ms, 0)
    assert partly(further, 1, late_ms) == further, "one that comes and goes is no progress"
    assert partly(further, 0, late_ms + 1) == NodeWait("r"), "there is nothing to give back"


def shared(several: list[FlatProvider], *nodes: MadeNode, **more: Any) -> NodeSurvey:
    """Return two providers of one account with three machines, one of which belongs to others."""
    return replace(site(several, *nodes, account={"instances": 3.0}, others={"instances": 1.0}, **more), now_ms=NOW_MS)


def half(place: str = "a", **more: Any) -> MadeNode:
    return node("x", place, "small", request="r", node="n0", tenant="t", project="red", **more)


def test_machines_that_a_waiting_request_has_or_could_have_are_counted() -> None:
    one, wanted = [provider("a", "small")], request("r", *["small"] * 3)
    for nodes, held in (((half(),), 1), ((node("y", "a", "small"),), 1), ((), 0)):
        found = serve(shared(one, *nodes), wanted)
        assert isinstance(found, Later) and found.held == held
    ours = serve(shared(one, half(), node("o", "a", "small", "in-use", request="o")), wanted)
    assert isinstance(ours, Later) and ours.held is None, "one that is ours is in the way, too, and will go"
    alone = serve(site(one, half(), node("o", "a", "small", request="o"), account={"instances": 3.0}), wanted)
    assert isinstance(alone, Later) and alone.held is None, "all that is in the way is ours"
    closed = replace(site(one, half(), closed={"a": "provider a: its cloud has no room"}), full=lambda _: True)
    assert serve(closed, wanted) == Later("provider a: its cloud has no room", held=1), "nobody here knew the limit"
    assert serve(replace(closed, full=lambda _: False), wanted) == Later("provider a: its cloud has no room")


def test_a_returned_machine_is_removed_unless_it_completes_another_request() -> None:
    choosing = Choosing(shared([provider("a", "small")], half()))
    assert choosing.serve(request("r", "small", "small"), PAUSED) == Later("later")
    ((was, after),) = choosing.returned()
    assert was == half() and (after.state, after.request, after.project) == ("outdated", "", "")
    choosing = Choosing(shared([provider("a", "small")], half()))
    choosing.serve(request("r", *["small"] * 3), PAUSED)
    assert isinstance(choosing.serve(request("much", *["small"] * 3), None), Later)
    assert where(choosing.serve(request("next", "small", "small"), None)) == ["make n1 at a", "take x as n0"]
    assert list(choosing.returned()) == []
    again = Choosing(shared([provider("a", "small")], half())).serve(
        request("r", "small", "small"), structs.replace(PAUSED, again_ms=NOW_MS)
    )
    assert where(again) == ["make n1 at a"], "its time has come"


def test_a_returned_machine_counts_towards_no_limit() -> None:
    limited = shared([provider("a", label("small", most=1))], half(), most=1)
    choosing = Choosing(limited)
    assert isinstance(choosing.serve(request("next", "small"), None), Later)
    choosing = Choosing(limited)
    choosing.serve(request("r", "small"), PAUSED)
    assert where(choosing.serve(request("next", "small"), None)) == ["take x as n0"]


def test_listed_machines_stay_and_so_do_machines_of_which_somebody_has_a_slot() -> None:
    rack = FlatProvider("rack", "rack", STATIC, (label("iron"),), hosts=({"name": "h", "label": "iron"},))
    (iron,) = (structs.replace(one, state="ready", request="r", node="n1") for one in host_nodes(rack).values())
    choosing = Choosing(shared([provider("a", "small"), rack], half(), iron))
    choosing.serve(request("r", "small", "iron"), PAUSED)
    assert {after.state for was, after in choosing.returned() if was == iron} == {"ready"}
    for other, states in (("in-use:o", {"ready"}), ("ready", {"outdated"})):
        choosing = Choosing(shared([packed(slots=2)], *machine(packed(slots=2), "ready:r", other)))
        choosing.serve(request("r", "packed", "packed"), PAUSED)
        assert {after.state for _, after in choosing.returned()} == states


def test_ready_machines_make_room_too_where_others_use_the_account() -> None:
    one, idle = provider("a", "small"), node("y", "a", "small")
    for found, gone in ((shared([one], idle), ["y"]), (replace(site([one], idle), now_ms=NOW_MS), [])):
        choosing = Choosing(found)
        choosing.serve(request("r", "small", "small"), PAUSED)
        assert [was.id for was, _ in choosing.returned()] == gone
        assert (choosing.more(one, one.labels[0], "t") is None) == bool(gone)


def test_a_request_waits_at_a_provider_where_only_idle_machines_are_in_its_way() -> None:
    two = [provider("a", "small", instances=2), provider("b", "small", "large", instances=2)]
    busy = [node(f"x{n}", "a", "small", "in-use", request="o") for n in range(2)]
    idle = node("y", "b", "large")
    found = serve(site(two, *busy, idle), request("r", "small", "small"), NodeWait("r", at="a"))
    assert isinstance(found, Later) and (found.at, found.idle) == ("b", (idle,))
    more = [node("z", "b", "large", "in-use", request="o")]
    found = serve(site(two, *busy, idle, *more), request("r", "small", "small"), NodeWait("r", at="a"))
    assert isinstance(found, Later) and (found.at, found.idle) == ("a", ())
    three, both = (
        request("r", *["small"] * 3),
        [provider("a", "small", instances=3), provider("b", "small", "large", instances=3)],
    )
    taken = [node("x2", "a", "small", "in-use", request="o"), node("z", "b", "small"), node("w", "b", "large")]
    found = serve(site(both, *busy, idle, *taken), three, NodeWait("r", at="a"))
    assert isinstance(found, Later) and (found.at, {one.id for one in found.idle}) == ("b", {"y", "w"}), (
        "it has the third"
    )
    slots = [provider("a", "small", instances=1), packed(slots=2, instances=1)]
    slots = [slots[0], structs.replace(slots[1], name="b")]
    others = [structs.replace(one, provider="b") for one in machine(packed(slots=2), "ready", "ready")]
    found = serve(site(slots, busy[0], *others), request("r", "small"), NodeWait("r", at="a"))
    assert (
        isinstance(found, Later)
        and found.at == "b"
        and {one.id for one in found.idle} == {one.id for one in others[1:]}
    )


def test_where_a_cloud_had_no_room_one_request_at_a_time_tries() -> None:
    tight = replace(site([provider("a", "small"), provider("b", "large")]), tight=lambda one: one.name == "a")
    first, later = (
        request("r1", "small", "small"),
        Later("provider a: its cloud had no room, and another request is trying first"),
    )
    choosing = Choosing(tight)
    assert where(choosing.serve(first, None)) == ["make n0 at a", "make n1 at a"]
    assert choosing.serve(request("r2", "small"), None) == later
    assert isinstance(choosing.serve(request("r3", "large"), None), NodePlan), "elsewhere there is no such doubt"
    building = node("x", "a", "small", "building", request="r1")
    assert serve(replace(tight, nodes=[building]), request("r2", "small")) == later
    known = structs.replace(building, driver={"server": "s-1"})
    assert isinstance(serve(replace(tight, nodes=[known]), request("r2", "small")), NodePlan)
    assert where(serve(replace(tight, nodes=[building, node("y", "a", "small")]), request("r2", "small"))) == [
        "take y as n0"
    ]


def test_a_request_that_gave_up_at_one_provider_waits_at_another() -> None:
    two = [provider("a", "small", instances=1), provider("b", "small", instances=1)]
    busy = [node(f"x{n}", "ab"[n], "small", "in-use", request="o") for n in range(2)]
    waits = [NodeWait("r", gave=gave) for gave in range(2)]
    found = [serve(site(two, *busy), request("r", "small"), wait) for wait in waits]
    assert {one.at for one in found if isinstance(one, Later)} == {"a", "b"}


def test_listed_machines_of_a_connection_that_is_not_in_the_settings_are_given_to_nobody() -> None:
    rack = FlatProvider("rack", "rack", STATIC, (label("iron"),), hosts=({"name": "h", "label": "iron"},))
    (iron,) = (structs.replace(one, state="ready") for one in host_nodes(rack).values())
    assert isinstance(serve(site([rack], iron), request("r", "iron")), NodePlan)
    gone = site([rack], iron, closed={"rack": "the connection rack is not in the launcher's settings"})
    assert serve(gone, request("r", "iron")) == Later("the connection rack is not in the launcher's settings")


def test_a_slot_of_a_deleted_machine_does_not_count_as_idle() -> None:
    slot = machine(packed(slots=2), "ready", "ready")[1]
    full = site([packed(slots=2)], slot, node("x", "a", "small", "in-use", request="o"), account={"instances": 1.0})
    assert isinstance(serve(full, request("r", "packed", "packed")), Later)
