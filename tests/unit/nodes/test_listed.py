"""Test listed machines: they are read, recorded, assigned, watched, and removed with their list."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.adapters.nodes.clouds.registry import CloudDriverOptions, connect
from headgate.config.assembly.inheritance import flattened
from headgate.config.layout import Layout, build_layout
from headgate.config.machines import STATIC, FlatProvider
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.config.parse import ParseCache
from headgate.map.inventory.nodes import MadeNode
from headgate.ports.clouds import LaunchFailed, Made
from headgate.services.nodes.accounts import wanted_of
from headgate.services.nodes.machines.choice import Choosing, Later, Never
from headgate.services.nodes.machines.fate import Fate
from headgate.services.nodes.machines.records import SeenMachines, host_nodes
from headgate.services.nodes.status import NodeState
from tests.unit.nodes.test_choosing import request, serve, site, where

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"
TENANT = """
- tenant:
    name: acme
    source: {git: {config-projects: [{ops: {include: [image, flavor, label, section, provider]}}]}}
"""
RACK = """
- image: {name: debian, type: cloud}
- flavor: {name: any}
- label: {name: iron, image: debian, flavor: any}
- label: {name: desk, image: debian, flavor: any}
- section:
    name: rack
    connection: racks
    images: [{name: debian, username: zuul, python-path: /usr/bin/python3}]
    flavors: [any]
    nodes:
      - {name: h0, label: iron}
- provider:
    name: lab
    section: rack
    resource-limits: {instances: 3}
    labels: [iron, {name: desk, slots: 2, executor-zone: cellar}]
    nodes:
      - {name: h1, host: 192.0.2.1, label: iron, connection-port: 2222, username: root, host-key: KEY, aliases: [gpu]}
      - {name: h2, label: desk, connection-type: winrm, attributes: {cards: 2}}
""".replace("KEY", KEY)


def layout(text: str) -> Layout:
    known = {name: Connection(name, name, driver, False) for name, driver in (("git", "git"), ("racks", STATIC))}
    acme = parse_tenant_file(TENANT, "tenants.yaml", known).tenants["acme"]
    parsed = ParseCache().parse(acme.projects[0], "master", {"zuul.yaml": text})
    return build_layout(acme, {acme.projects[0].project: {"master": parsed}})


def lab() -> FlatProvider:
    read = layout(RACK)
    assert [one.text for one in read.errors] == []
    (found,) = flattened(read)
    return found


def listed(provider: FlatProvider) -> dict[str, list[MadeNode]]:
    """Return the record of each machine, by its name."""
    found: dict[str, list[MadeNode]] = {}
    for node in host_nodes(provider).values():
        found.setdefault(node.settings["provider"]["node"]["name"], []).append(node)
    return found


async def host_of(node: MadeNode) -> dict[str, Any]:
    made = await connect(STATIC, CloudDriverOptions("racks", {}, None)).advance(wanted_of(node), {})  # type: ignore[arg-type]
    assert isinstance(made, Made) and made.host is not None
    return {**made.host, "about": made.about}


async def test_a_machine_and_its_image_define_the_connection() -> None:
    by = listed(lab())
    assert [len(by[name]) for name in ("h0", "h1", "h2")] == [1, 1, 2]
    own, plain, windows = [await host_of(by[name][0]) for name in ("h1", "h0", "h2")]
    assert (own["ansible_host"], own["ansible_port"], own["ansible_user"]) == ("192.0.2.1", 2222, "root")
    assert own["headgate_host_key"] == KEY and own["ansible_python_interpreter"] == "/usr/bin/python3"
    assert (plain["ansible_host"], plain["ansible_port"], plain["ansible_user"]) == ("h0", 22, "zuul")
    assert "headgate_host_key" not in plain
    assert (windows["ansible_connection"], windows["ansible_port"]) == ("winrm", 5986)
    assert windows["about"]["node_properties"] == {"cards": 2}


async def test_an_unlisted_machine_is_reported() -> None:
    lost = replace(listed(lab())["h0"][0], settings={"label": {}, "image": {}, "flavor": {}, "provider": {}})
    with pytest.raises(LaunchFailed, match="does not list"):
        await host_of(lost)


def test_another_port_is_another_machine_and_a_slot_has_a_number() -> None:
    before, after = lab(), lab()
    hosts = tuple({**one, "connection-port": 2023} if one["name"] == "h0" else one for one in after.hosts)
    moved = replace(after, hosts=hosts)
    assert listed(before)["h0"][0].id != listed(moved)["h0"][0].id
    assert listed(before)["h1"][0].id == listed(moved)["h1"][0].id
    assert [one.slot for one in listed(before)["h2"]] == [0, 1] and listed(before)["h1"][0].slot is None


def ready(provider: FlatProvider, **more: Any) -> list[MadeNode]:
    return [replace(one, state="ready", **more) for one in host_nodes(provider).values()]


def test_several_builds_have_a_machine_with_slots_and_an_alias_is_of_its_machine_alone() -> None:
    provider, nodes = lab(), ready(lab())
    cellar = replace(request("r", "desk", "desk"), zone="cellar")
    assert len(where(serve(site([provider], *nodes, uses={"iron": {}, "desk": {}}), cellar))) == 2
    by = {node.id: node.settings["provider"]["node"]["name"] for node in nodes}
    (taken,) = where(serve(site([provider], *nodes, uses={"iron": {}}), request("r", "gpu")))
    assert by[taken.split()[1]] == "h1"
    assert serve(site([provider], *nodes, uses={"iron": {}}), request("r", "gpu", "gpu")) == Never(
        "2 such machines are more than the providers may ever have at a time"
    )


def test_an_unresponsive_machine_goes_to_nobody_and_the_reason_is_reported() -> None:
    provider = lab()
    away = [replace(one, state="registering", why="no route to host") for one in host_nodes(provider).values()]
    found = serve(site([provider], *away, uses={"iron": {}}), request("r", "iron"))
    assert isinstance(found, Later) and "h0: no route to host" in found.why


def test_resource_limits_also_apply_to_listed_machines() -> None:
    provider = replace(lab(), limits={"instances": 1.0})
    used, *rest = ready(provider)
    nodes = [replace(used, state="in-use", request="o", tenant="t", project="red"), *rest]
    found = serve(site([provider], *nodes, uses={"iron": {}}), request("r", "iron"))
    assert isinstance(found, Later)
    assert found.why == "limited by resource-limits of provider lab: 1 of 1 instances are in use"


def test_a_request_for_two_machines_is_not_overtaken_by_requests_for_one() -> None:
    provider = lab()
    nodes = ready(provider)
    busy = next(one for one in nodes if one.settings["provider"]["node"]["name"] == "h0")
    nodes = [replace(busy, state="in-use", request="o"), *(one for one in nodes if one is not busy)]
    choosing = Choosing(site([provider], *nodes, uses={"iron": {}}))
    assert isinstance(choosing.serve(request("r1", "iron", "iron"), None), Later)
    behind = choosing.serve(request("r2", "iron"), None)
    assert isinstance(behind, Later) and "reserved for requests that wait longer" in behind.why


def test_a_build_on_another_executor_learns_which_zone_reaches_the_machine() -> None:
    found = serve(site([lab()], *ready(lab()), uses={"desk": {}}), request("r", "desk"))
    assert found == Never(
        "only executors of zone cellar can reach machines of label desk, but this build is on one without a zone"
    )


def fate(node: MadeNode, provider: FlatProvider, *requests: str) -> MadeNode:
    seen = SeenMachines({"t": [provider]}, {node.id: node}, {}, {}, {})
    return Fate(seen, NodeState(frozenset(requests), (), {}, ()), 1_000).of(node)


def test_after_its_build_a_machine_is_checked_again_and_removed_if_it_is_no_longer_listed() -> None:
    provider = lab()
    node = replace(listed(provider)["h1"][0], state="in-use", request="r", node="n0")
    assert fate(node, provider, "r") == node
    after = fate(node, provider)
    assert (after.state, after.request, after.served) == ("rebuilding", "", 1)
    bare = replace(provider, hosts=provider.hosts[:1])
    assert fate(node, bare).state == "used"
    gone = fate(replace(after, state="ready"), bare)
    assert (gone.state, gone.why) == ("outdated", "no tenant lists it any longer")
    rekeyed = replace(provider, hosts=tuple({**one, "username": "root"} for one in provider.hosts))
    assert fate(replace(listed(provider)["h1"][0], state="ready"), rekeyed).why == ""


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ("{name: h1, label: iron, prot: 3}", "a node has no key 'prot'"),
        ("{label: iron}", "this node lacks 'name'"),
        ("{name: -oProxyCommand=x, label: iron}", "name of a node must be a host name or an address"),
        ("{name: h1, label: iron, host: a b}", "host of a node must be a host name or an address"),
        ("{name: h1, label: iron, host-key: AAAA}", "must be public keys, one per line, as TYPE BASE64"),
        ("{name: h1, label: iron, slots: 1000}", "slots of a node must be"),
        ("{name: h1, label: lead}", "has the label lead, which is not attached"),
        ("{name: h0, label: iron}", "the node h0 is listed twice"),
    ],
)
def test_errors_in_a_node_are_reported_with_their_line(node: str, text: str) -> None:
    errors = layout(RACK + f"      - {node}\n").errors
    assert any(text in one.text and one.line for one in errors if one.severity == "error"), errors


@pytest.mark.parametrize(
    ("label", "attached", "with_slots"),
    [
        ("desk", "{name: desk, slots: 2,", "{name: desk, slots: 100,"),
        ("iron", "connection: racks", "connection: racks\n    labels: [{name: iron, slots: 100}]"),
    ],
)
def test_slots_that_machines_have_from_their_label_count(label: str, attached: str, with_slots: str) -> None:
    def errors(machines: int) -> list[str]:
        more = "".join(f"      - {{name: m{number}, label: {label}}}\n" for number in range(machines))
        found = layout(RACK.replace(attached, with_slots) + more).errors
        return [one.text for one in found if one.severity == "error"]

    assert errors(2) == []
    assert errors(5) == ["the nodes of the provider lab have more than 500 slots"]
