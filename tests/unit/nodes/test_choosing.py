"""Test which request gets which machines: complete nodesets, room, order, limits, failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import MadeNode, NodeRequest, NodeWait
from headgate.ports.clouds import Amounts
from headgate.services.nodes.machines.choice import Choosing, Later, Never, NodePlan
from headgate.services.nodes.machines.demand import NodeSurvey


def label(name: str, **settings: Any) -> FlatLabel:
    most = settings.pop("most", -1)
    return FlatLabel(name, {"name": name, **settings}, {}, {}, 0, most, name)


def provider(name: str, *labels: str | FlatLabel, instances: float = 9.0, connection: str = "") -> FlatProvider:
    named = tuple(label(one) if isinstance(one, str) else one for one in labels)
    return FlatProvider(name, connection or name, "sky", named, limits={"instances": instances})


def node(id: str, provider: str, name: str, state: str = "ready", **more: Any) -> MadeNode:
    settings = {"label": {}, "image": {}, "flavor": {}, "provider": {}}
    own: dict[str, Any] = {
        "connection": provider,
        "uses": {"instances": 1.0},
        "digest": name,
        "settings": settings,
        **more,
    }
    return MadeNode(id=id, provider=provider, label=name, state=state, **own)


def request(id: str, *labels: str, project: str = "red") -> NodeRequest:
    nodes = tuple((f"n{place}", name) for place, name in enumerate(labels))
    return NodeRequest(id, "t", project, f"b-{id}", "job", nodes, "host")


def site(
    providers: list[FlatProvider],
    *nodes: MadeNode,
    uses: Mapping[str, Amounts | str] | None = None,
    account: Amounts | None = None,
    others: Amounts | None = None,
    closed: Mapping[str, str] | None = None,
    most: int = -1,
    line: tuple[str, ...] = (),
) -> NodeSurvey:
    one = {"instances": 1.0}
    return NodeSurvey(
        providers={"t": providers},
        nodes=nodes,
        uses=lambda _, label: (uses or {}).get(label.name, one),
        account=lambda _: (account or {}, others or {}),
        closed=lambda provider, _: (closed or {}).get(provider.name, ""),
        place=lambda node: (node.connection, ""),
        place_of=lambda provider: (provider.connection, ""),
        most_of_project=lambda *_: most,
        line=line,
    )


def serve(of: NodeSurvey, request: NodeRequest, wait: NodeWait | None = None) -> NodePlan | Never | Later:
    return Choosing(of).serve(request, wait)


def where(found: NodePlan | Never | Later) -> list[str]:
    assert isinstance(found, NodePlan), found
    return sorted([f"take {one.id} as {name}" for one, name in found.take] + [
        f"make {name} at {one.provider.name}" for one in found.make for name in one.nodes
    ])  # fmt: skip


def test_a_nodeset_comes_from_one_provider_if_one_can_serve_all_of_it() -> None:
    both = [provider("a", "small"), provider("b", "large"), provider("c", "small", "large")]
    assert where(serve(site(both), request("r", "small", "large"))) == ["make n0 at c", "make n1 at c"]


def test_a_nodeset_is_spread_only_if_no_provider_has_all_of_its_labels() -> None:
    apart = [provider("a", "small"), provider("b", "large")]
    assert where(serve(site(apart), request("r", "small", "large"))) == ["make n0 at a", "make n1 at b"]


def test_a_nodeset_waits_for_a_provider_with_all_labels_rather_than_being_spread() -> None:
    full = [provider("a", "small"), provider("b", "large"), provider("c", "small", "large", instances=2)]
    found = serve(site(full, node("x", "c", "small", "in-use", request="other")), request("r", "small", "large"))
    assert found == Later("limited by resource-limits of provider c: 1 of 2 instances are in use", at="c")


def test_nothing_is_reserved_for_a_nodeset_that_does_not_fit_entirely() -> None:
    found = serve(site([provider("a", "small", instances=3)], *(
        node(f"x{n}", "a", "small", "in-use", request="other") for n in range(2)
    )), request("r", "small", "small"))  # fmt: skip
    assert isinstance(found, Later)


def test_the_provider_with_ready_machines_is_first_then_the_least_used() -> None:
    two = [provider("a", "small"), provider("b", "small", instances=4)]
    used = node("x", "b", "small", "in-use", request="other")
    assert where(serve(site(two, used), request("r", "small"))) == ["make n0 at a"]
    assert where(serve(site(two, used, node("y", "b", "small")), request("r", "small"))) == ["take y as n0"]


def test_ready_machines_are_used_before_those_being_made_and_the_oldest_first() -> None:
    every = [
        node("new", "a", "small", requested_ms=9), node("old", "a", "small", requested_ms=1),
        node("soon", "a", "small", "building"), node("other", "a", "small", digest="before"),
    ]  # fmt: skip
    found = serve(site([provider("a", "small")], *every), request("r", "small", "small", "small", "small"))
    assert where(found) == ["make n3 at a", "take new as n1", "take old as n0", "take soon as n2"]


def test_an_alias_is_served_by_the_label_that_has_it() -> None:
    alias = provider("a", label("small", aliases=["tiny"]))
    assert where(serve(site([alias], node("x", "a", "small")), request("r", "tiny"))) == ["take x as n0"]


def test_requests_do_not_overtake_one_that_waits_for_room_but_may_use_other_providers() -> None:
    two = [provider("a", "small", "large", instances=2), provider("b", "small")]
    choosing = Choosing(site(two, node("x", "a", "large", "in-use", request="other")))
    assert isinstance(choosing.serve(request("r1", "large", "large"), None), Later)
    assert choosing.serve(request("r2", "large"), None) == Later(
        "limited by resource-limits of provider a: its room is reserved for requests that wait longer", at="a"
    )
    assert where(choosing.serve(request("r3", "small"), None)) == ["make n0 at b"]


def test_an_account_with_unknown_limits_is_tried_after_one_with_room() -> None:
    two = [provider("a", "small", instances=4), provider("b", "small", instances=4)]
    for unread in "ab":
        other = "ba"["ab".index(unread)]
        used = [node(f"x{n}", other, "small", "in-use", request="o") for n in range(3)]
        dark = replace(site(two, *used), unread=lambda one, unread=unread: one.name == unread)
        assert where(serve(dark, request("r", "small"))) == [f"make n0 at {other}"]
        full = replace(dark, nodes=[*used, node("x3", other, "small", "in-use", request="o")])
        assert where(serve(full, request("r", "small"))) == [f"make n0 at {unread}"], "it may have room"


def test_a_machine_serves_the_aliases_of_its_label_too_after_those_of_the_label_itself() -> None:
    one = [provider("a", label("small", aliases=["tiny", "large"]), "large")]
    small, large = node("x", "a", "small"), node("y", "a", "large")
    found = serve(site(one, small, large), request("r", "tiny", "large", "large"))
    assert where(found) == ["make n2 at a", "take x as n0", "take y as n1"]
    assert where(serve(site(one, small), request("r", "large"))) == ["take x as n0"]
    changed = node("x", "a", "small", digest="before")
    assert where(serve(site(one, changed), request("r", "large"))) == ["make n0 at a"]
    with_upload = structs.replace(request("r", "large"), upload="u")
    assert where(serve(site(one, small), with_upload)) == ["make n0 at a"], "who tries an image has no other machine"


def test_resources_that_others_use_in_the_account_are_not_available() -> None:
    one = [provider("a", "small")]
    found = serve(site(one, account={"instances": 5.0}, others={"instances": 5.0}), request("r", "small"))
    assert found == Later("limited by the account of a: 0 of 0 instances are in use", at="a", held=0)


def test_providers_of_one_account_share_its_room_and_idle_machines_make_way() -> None:
    two = [provider("a", "small", connection="sky"), provider("b", "large", connection="sky")]
    idle = node("x", "a", "small", connection="sky")
    found = serve(site(two, idle, account={"instances": 1.0}), request("r", "large"))
    assert isinstance(found, Later) and found.idle == (idle,)


def test_of_two_half_served_requests_the_later_one_makes_way() -> None:
    one = [provider("a", "small", instances=2)]
    first, second = node("x", "a", "small", request="r1", node="n0"), node("y", "a", "small", request="r2", node="n0")
    found = serve(site(one, first, second, line=("r1", "r2")), request("r1", "small", "small"))
    assert isinstance(found, Later) and found.idle == (second,)
    behind = serve(site(one, first, second, line=("r1", "r2")), request("r2", "small", "small"))
    assert isinstance(behind, Later) and behind.idle == ()


def test_impossible_requests_are_reported_with_the_reason() -> None:
    one = [provider("a", "small", label("few", most=1), instances=2)]
    reasons = {
        ("none",): "no provider of tenant t has the label none",
        ("few", "few"): "2 machines of label few are requested, but only 1 are allowed",
        ("small", "small", "small"): "3 such machines are more than the providers may ever have at a time",
    }
    for labels, why in reasons.items():
        assert serve(site(one), request("r", *labels)) == Never(why)
    large = serve(site(one, uses={"small": {"instances": 3.0}}), request("r", "small"))
    assert large == Never("label small: provider a may have 2 instances, but one machine takes 3")
    unknown = serve(site(one, uses={"small": "there is no flavor x"}), request("r", "small"))
    assert unknown == Never("label small: provider a: there is no flavor x")


def test_a_project_has_no_more_machines_than_its_tenant_allows() -> None:
    one, used = [provider("a", "small")], node("x", "a", "small", "in-use", request="o", tenant="t", project="red")
    assert serve(site(one, used, most=1), request("r", "small")) == Later(
        "limited by max-nodes-per-project, of red: 1 of 1 machines are in use", at="a"
    )
    assert isinstance(serve(site(one, used, most=1), request("r", "small", project="blue")), NodePlan)
    assert isinstance(serve(site(one, most=1), request("r", "small", "small")), Never)


def test_a_label_has_no_more_machines_than_it_says() -> None:
    one = [provider("a", label("few", most=2), "small")]
    used = [node(f"x{n}", "a", "few", "in-use", request=f"o{n}", tenant="t") for n in range(2)]
    assert serve(site(one, *used), request("r", "few")) == Later(
        "limited by max-nodes of label few: 2 of 2 machines are in use", at="a"
    )
    assert isinstance(serve(site(one, *used), request("r", "small")), NodePlan)


def test_a_failed_machine_is_tried_elsewhere_and_then_given_up_with_all_reasons() -> None:
    two = [provider("a", "small"), provider("b", "small")]
    once = NodeWait("r", tried=("small at a: no host",), failed={"n0": {"a": 3}})
    assert where(serve(site(two), request("r", "small"), once)) == ["make n0 at b"]
    both = NodeWait("r", tried=("small at a: no host", "small at b: on fire"), failed={"n0": {"a": 3, "b": 3}})
    assert serve(site(two), request("r", "small"), both) == Never("small at a: no host; small at b: on fire")


def test_a_closed_provider_is_skipped_and_the_reason_reported() -> None:
    two = [provider("a", "small"), provider("b", "small")]
    closed = {"a": "provider a: no host was found"}
    assert where(serve(site(two, closed=closed), request("r", "small"))) == ["make n0 at b"]
    assert serve(site(two[:1], closed=closed), request("r", "small")) == Later("provider a: no host was found")
