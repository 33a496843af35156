"""Test that nobody can list foreign machines, in any notation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.registry import CloudDriverOptions, connect
from headgate.adapters.nodes.clouds.static.driver import StaticPermits
from headgate.base.errors import UserError
from headgate.config.assembly.inheritance import flattened
from headgate.config.layout import build_layout
from headgate.config.machines import STATIC, FlatProvider
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.config.parse import ParseCache
from headgate.ports.clouds import MachineListing
from headgate.testing.nodes.machineworld import label

from .test_made_machines import SimulatedMachines, simulated_machines

OURS = "git.example/ops"
THEIRS = "git.example/theirs"
HOSTS = StaticPermits.read("rack", {"hosts": "10.1.0.0/16 2001:db8::/32 *.lab.example.com desk"})


def rack(project: str, *names: str) -> FlatProvider:
    """Return a provider that a project wrote."""
    hosts = tuple({"name": name, "label": "iron"} for name in names)
    return FlatProvider(f"{project}/p", "rack", STATIC, (label("iron"),), hosts=hosts, projects=(project,))


@pytest.mark.parametrize(
    "host",
    [
        "10.2.0.7", "::ffff:10.2.0.7", "[::ffff:10.2.0.7]", "2001:db9::1", "167903239", "0x0a020007", "10.2.7",
        "10.131079", "010.2.0.7", "10.1.0.7.", "lab.example.com", "evil.com", "x@a.lab.example.com",
        "a.lab.example.com.evil.com",
        "a.lab.example.com:22", "a.lab.example.com/x", "-oProxyCommand=x.lab.example.com", "*.lab.example.com",
        "a lab.lab.example.com", "evil.com\n.lab.example.com", "desktop", "d\u0435sk", "localhost", "127.0.0.1", "::1",
    ],
)  # fmt: skip
def test_a_forbidden_address_is_refused_in_every_notation(host: str) -> None:
    why = HOSTS.refusal((OURS,), {"name": "innocent.lab.example.com", "host": host})
    assert host in why and "`hosts` of [connection rack]" in why, "what, where and what to do"
    assert HOSTS.refusal((OURS,), {"name": host}), "also where the name is the address"


@pytest.mark.parametrize(
    "host", ["10.1.0.7", "::ffff:10.1.0.7", "2001:db8::7", "a.lab.example.com", "A.Lab.example.com.", "desk"]
)
def test_a_permitted_address_is_used(host: str) -> None:
    assert not HOSTS.refusal((OURS,), {"name": "any", "host": host})
    assert not StaticPermits.read("rack", {}).refusal((THEIRS,), {"name": host}), "who says nothing permits all"


@pytest.mark.parametrize("hosts", ["10.0.0.7/8", "10.0.0.0/64", "host:22", "me@host", "a,b", "-x"])
def test_a_pattern_that_permits_no_address_is_an_error_of_the_settings(hosts: str) -> None:
    with pytest.raises(UserError, match="hosts: "):
        connect(STATIC, CloudDriverOptions("rack", {"hosts": hosts}, Path()))


def test_a_section_of_another_project_lists_nothing_in_the_name_of_a_trusted_one() -> None:
    tenant = (
        "- tenant: {name: t, source: {git: {config-projects: [{ops: &all {include: [image, flavor, label, section, \
provider]}}, {theirs: *all}]}}}"
    )
    known = {name: Connection(name, name, driver, False) for name, driver in (("git", "git"), ("rack", STATIC))}
    read = parse_tenant_file(tenant, "tenants.yaml", known).tenants["t"]
    ours = """
- image: {name: debian, type: cloud}
- flavor: {name: any}
- label: {name: iron, image: debian, flavor: any}
- provider: {name: p, section: cellar, labels: [iron], nodes: [{name: desk, label: iron}]}
"""
    theirs = """
- section:
    name: cellar
    connection: rack
    images: [debian]
    flavors: [any]
    nodes: [{name: bastion.lab.example.com, label: iron}]
"""
    cache, configs = ParseCache(), {"ops": ours, "theirs": theirs}
    parsed = {
        one.project: {"master": cache.parse(one, "master", {"zuul.yaml": configs[one.project.rpartition("/")[2]]})}
        for one in read.projects
    }
    (provider,) = flattened(build_layout(read, parsed))
    assert {one["name"] for one in provider.hosts} == {"desk", "bastion.lab.example.com"}
    permits = StaticPermits.read("rack", {"projects": next(one for one in provider.projects if one.endswith("ops"))})
    assert all("theirs is not among `projects`" in permits.refusal(provider.projects, one) for one in provider.hosts)


@simulated_machines
async def test_a_project_without_permission_gets_no_machine_but_the_reason(simulated: SimulatedMachines) -> None:
    simulated.rack.permits = StaticPermits.read("rack", {"hosts": "h1", "projects": f"{OURS} git.example/t*"})
    assert isinstance(simulated.rack, MachineListing)
    await simulated.tell("t", rack(THEIRS, "bastion"))
    await simulated.ask("iron", id="theirs")
    assert "bastion is not among `hosts` of [connection rack]" in await simulated.answered("theirs")
    await simulated.tell("t", rack(THEIRS, "bastion", "h1"))
    await simulated.ask("iron", id="mixed")
    assert await simulated.answered("mixed") == "", "the machine that is permitted is used all the same"
    assert {one.host and one.host["ansible_host"] for one in simulated.nodes()} == {"h1"}
    assert "bastion" not in simulated.looked_at, "nobody connects to it, not even for its key"


@simulated_machines
async def test_a_machine_that_is_no_longer_permitted_is_removed(simulated: SimulatedMachines) -> None:
    await simulated.tell("t", rack(THEIRS, "h1"))
    await asyncio.sleep(60)
    assert [one.state for one in simulated.nodes()] == ["ready"]
    simulated.rack.permits = StaticPermits.read("rack", {"projects": OURS})
    await asyncio.sleep(120)
    assert simulated.nodes() == []
    await simulated.ask("iron")
    assert "theirs is not among `projects`" in await simulated.answered()
