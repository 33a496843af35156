"""Test features of OpenStack: logins, names, floating addresses, failed servers, volumes."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.nodes.clouds.openstack.api import address_description, address_tags, addresses_of
from headgate.adapters.nodes.clouds.openstack.config import place
from headgate.adapters.nodes.clouds.openstack.driver import Machines, connect
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.base.errors import UserError
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, CloudUnavailable, LaunchFailed, OverQuota
from headgate.testing.clouds.ground import driving, gone, made, steps
from headgate.testing.clouds.openstack import SECRET, OpenStackGround, fault, openstack_ground
from headgate.testing.servers.faults import Fault, FaultAnswer, ReceivedRequest, answers, changed, lost
from headgate.testing.servers.nova import IMAGE, NETWORK


@pytest.fixture
async def ground(nova_server: str) -> AsyncIterator[OpenStackGround]:
    async with openstack_ground(nova_server) as found:
        yield found


@pytest.fixture
async def driver(ground: OpenStackGround) -> AsyncIterator[Machines]:
    async with driving(ground) as found:
        assert isinstance(found, Machines)
        yield found


def node() -> str:
    return str(uuid.uuid4())


def lends(received: ReceivedRequest) -> bool:
    return received.method == "POST" and received.path == "/network/v2.0/floatingips"


@pytest.mark.long
async def test_names_are_resolved_and_nova_gets_the_settings_of_the_label(
    ground: OpenStackGround, driver: Machines
) -> None:
    wanted = ground.wanted(
        node(),
        {"networks": ["private"], "userdata": "#!/bin/sh\né", "security-groups": ["default"], "az": "nova"},
        {"image-id": "debian", "config-drive": False},
    )
    machine = await made(driver, wanted)
    there = (await ground.nova("GET", f"/servers/{machine.external_id}"))["server"]
    assert there["image"]["id"] == IMAGE and there["flavor"]["original_name"] == "m1.tiny"
    assert there["metadata"] == wanted.tags and there["config_drive"] == "" and list(there["addresses"]) == ["private"]
    server = next(json.loads(one.body)["server"] for one in ground.faults.requests if ground.makes(one))
    assert server["security_groups"] == [{"name": "default"}] and server["availability_zone"] == "nova"
    assert machine.host == {
        "ansible_host": there["addresses"]["private"][0]["addr"],
        "ansible_port": 22,
        "ansible_connection": "ssh",
        "ansible_user": "debian",
    }
    assert (machine.about["az"], machine.about["cloud"], machine.about["region"]) == ("nova", "stacky", "RegionOne")
    assert machine.about["host_id"] == there["hostId"] and machine.about["public_ipv4"] == ""
    assert await driver.uses(wanted) == {"instances": 1, "cores": 1, "ram": 512}
    assert (await driver.limits(ground.provider))["cores"] == 2000


@pytest.mark.parametrize(
    ("label", "image", "flavor", "message"),
    [
        ({}, {"image-id": "windows"}, {}, "no image 'windows'"),
        ({}, {"image-id": None}, {}, "image-id is missing"),
        ({"networks": ["nowhere"]}, {}, {}, "no network 'nowhere'"),
        ({"networks": 7}, {}, {}, "networks must be a list"),
        ({}, {}, {"flavor-name": "huge"}, "no flavor 'huge'"),
        ({"key-name": "no-such-key"}, {}, {}, "no-such-key|key_name"),
    ],
)
async def test_a_missing_resource_fails_with_a_clear_message(
    ground: OpenStackGround, driver: Machines, label: dict[str, Any], image: dict[str, Any], flavor: Any, message: str
) -> None:
    wanted = ground.wanted(node(), label, image)
    with pytest.raises(LaunchFailed, match=message):
        await made(driver, replace(wanted, flavor={**wanted.flavor, **flavor}))
    assert await ground.everything() == {}


@pytest.mark.long
async def test_a_floating_address_is_allocated_once_tagged_and_released(
    ground: OpenStackGround, driver: Machines
) -> None:
    ground.services.lends = True
    wanted = ground.wanted(node())
    ground.faults.once(lost, lends)
    with pytest.raises(CloudUnavailable):
        await made(driver, wanted)
    async with driving(ground) as after_a_crash:
        machine = await made(after_a_crash, wanted, {})
    (one,) = ground.services.floating.values()
    assert machine.host is not None and machine.host["ansible_host"] == one["floating_ip_address"]
    assert machine.about["private_ipv4"] == "192.168.1.30" and address_tags(one["description"]) == wanted.tags
    ground.services.floating["of-others"] = {"id": "of-others", "description": "of others", "port_id": None}
    listed = {found.id: found for found in await driver.resources(ground.provider)}
    assert listed[one["id"]].tags[NODE_TAG] == wanted.node and listed["of-others"].tags == {}
    await driver.delete(ground.provider, listed[one["id"]])
    await driver.delete(ground.provider, listed[one["id"]])
    await made(driver, wanted, {})
    await gone(driver, wanted, {})
    assert list(ground.services.floating) == ["of-others"]


@pytest.mark.long
async def test_no_floating_address_is_allocated_if_the_label_disables_it(
    ground: OpenStackGround, driver: Machines
) -> None:
    ground.services.lends = True
    await made(driver, ground.wanted(node(), {"auto-floating-ip": False}))
    assert ground.services.floating == {}


@pytest.mark.long
async def test_no_address_to_lend_is_no_room(ground: OpenStackGround, driver: Machines) -> None:
    ground.services.lends = True
    text = {"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['floatingip']."}}
    ground.faults.once(answers(409, json.dumps(text).encode()), lends)
    with pytest.raises(OverQuota, match="floatingip"):
        await made(driver, ground.wanted(node()))


@pytest.mark.long
async def test_two_servers_of_one_node_become_one(ground: OpenStackGround, driver: Machines) -> None:
    """Nova accepts no token of its caller: if a pending call is repeated, it makes two."""
    wanted = ground.wanted(node())
    machine = await made(driver, wanted)
    server = {
        "name": "twin",
        "imageRef": IMAGE,
        "flavorRef": "1",
        "networks": [{"uuid": NETWORK}],
        "metadata": dict(wanted.tags),
    }
    await ground.nova("POST", "/servers", {"server": server})
    again = await made(driver, wanted, machine.state)
    assert again.external_id == machine.external_id
    while len(await ground.everything()) > 1:
        await driver.advance(wanted, machine.state)
    assert list(await ground.everything()) == [machine.external_id]


def in_error(message: str) -> Callable[[bytes], bytes]:
    def by(body: bytes) -> bytes:
        document = json.loads(body)
        for one in document["servers"]:
            one |= {"status": "ERROR", "fault": {"code": 500, "message": message, "created": ""}}
        return json.dumps(document).encode()

    return by


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("No valid host was found. There are not enough hosts available.", OverQuota),
        ("Maximum number of ports exceeded: Quota exceeded", OverQuota),
        ("Build of instance aborted: Volume did not finish being created", LaunchFailed),
    ],
)
async def test_a_server_in_error_says_why(
    ground: OpenStackGround, driver: Machines, message: str, kind: type[Exception]
) -> None:
    wanted = ground.wanted(node())
    state = await steps(driver, wanted, 1)
    ground.faults.once(changed(in_error(message)), ground.lists)
    with pytest.raises(kind, match=message[:20]):
        await driver.advance(wanted, state)


@pytest.mark.long
async def test_a_server_that_vanished_is_a_failure_and_no_second_one(ground: OpenStackGround, driver: Machines) -> None:
    wanted = ground.wanted(node())
    state = (await made(driver, wanted)).state
    await gone(driver, wanted, state)
    with pytest.raises(LaunchFailed, match="no longer exists"):
        await driver.advance(wanted, state)
    assert await driver.remove(wanted, state)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (fault(403, "forbidden", "Quota exceeded for cores"), OverQuota),
        (fault(403, "forbidden", "Policy doesn't allow it"), LaunchFailed),
        (fault(413, "overLimit", "This request was rate-limited.", {"retry-after": "x"}), CloudUnavailable),
        (fault(409, "conflictingRequest", "Multiple possible networks found"), LaunchFailed),
        (answers(502, b"<html>"), CloudUnavailable),
        (answers(404, b"<html>"), LaunchFailed),
        (answers(202, b"[]"), CloudUnavailable),
        (answers(202, b"{}"), CloudUnavailable),
        (answers(300, b"{}"), CloudUnavailable),
    ],
)
async def test_errors_are_distinguished(
    ground: OpenStackGround, driver: Machines, fault: Fault, kind: type[Exception]
) -> None:
    ground.faults.once(fault, ground.makes)
    with pytest.raises(kind):
        await made(driver, ground.wanted(node()))


@pytest.mark.long
async def test_lists_may_have_many_pages_and_an_endless_one_is_an_error(
    ground: OpenStackGround, driver: Machines
) -> None:
    first = [await ground.foreign() for _ in range(3)]
    every = (await ground.nova("GET", "/servers/detail"))["servers"]
    names = [one["id"] for one in every]

    async def paged(received: ReceivedRequest, go_on: Callable[[], Any]) -> FaultAnswer:
        marker = received.path.partition("marker=")[2]
        number = names.index(marker) + 1 if marker else 0
        more = {"servers_links": [{"rel": "next", "href": "x"}]} if number + 1 < len(every) else {}
        return FaultAnswer(200, json.dumps({"servers": every[number : number + 1], **more}).encode(), {})

    ground.faults.always(paged, ground.lists)
    assert set(first) <= {one.id for one in await driver.resources(ground.provider)}
    ground.faults.mend()
    same = json.dumps({"servers": [{"id": "a", "status": "ACTIVE"}], "servers_links": [{"rel": "next", "href": "x"}]})
    ground.faults.always(answers(200, same.encode()), ground.lists)
    with pytest.raises(CloudUnavailable, match="end"):
        await driver.resources(ground.provider)


async def test_an_expired_token_is_replaced_immediately_and_a_wrong_password_is_reported(
    ground: OpenStackGround, driver: Machines
) -> None:
    await driver.resources(ground.provider)
    ground.services.valid.clear()
    await driver.resources(ground.provider)
    assert ground.services.tokens == 2
    login = {"identity": {"methods": ["password"], "password": {"user": {"name": "u", "password": "wrong-one"}}}}
    other = Machines("c", ground.place(login))
    with pytest.raises(CloudUnavailable, match="rejected Headgate's login") as raised:
        await other.resources(ground.provider)
    assert "wrong-one" not in str(raised.value) + repr(vars(other))
    await other.close()
    with pytest.raises(CloudUnavailable, match="no service compute"):
        await driver.limits({"region": "Nowhere"}) or await driver.resources({"region": "Nowhere"})


CLOUDS = """
clouds:
  by-password:
    auth: {auth_url: "URL/identity", username: u, password: PASS, project_name: p, user_domain_name: Default}
    region_name: RegionOne
  by-application:
    auth_type: v3applicationcredential
    auth: {auth_url: "URL/identity/v3/", application_credential_id: ac, application_credential_secret: PASS}
    region_name: RegionOne
  by-name:
    auth: {auth_url: "URL/identity", application_credential_name: n, application_credential_secret: PASS, username: u}
  without:
    auth_type: admin_token
    auth: {endpoint: "URL/v2.1/", token: fixed}
"""


@pytest.mark.parametrize("name", ["by-password", "by-application", "by-name"])
async def test_clouds_yaml_is_read_as_others_read_it(ground: OpenStackGround, tmp_path: Path, name: str) -> None:
    (tmp_path / "clouds.yaml").write_text(CLOUDS.replace("URL", ground.faults.url).replace("PASS", "in-secure-yaml"))
    key = "password" if name == "by-password" else "application_credential_secret"
    (tmp_path / "secure.yaml").write_text(f"clouds: {{{name}: {{auth: {{{key}: {SECRET}}}}}}}")
    driver = connect(CloudDriverOptions("c", {"cloud": name, "config_file": "clouds.yaml"}, tmp_path))
    assert "instances" in await driver.limits({"region": "RegionOne"})
    (login,) = ground.services.logins
    expected: dict[str, Any] = {
        "by-password": {
            "identity": {
                "methods": ["password"],
                "password": {"user": {"name": "u", "domain": {"name": "Default"}, "password": SECRET}},
            },
            "scope": {"project": {"name": "p", "domain": {"id": "default"}}},
        },
        "by-application": {
            "identity": {
                "methods": ["application_credential"],
                "application_credential": {"id": "ac", "secret": SECRET},
            }
        },
        "by-name": {
            "identity": {
                "methods": ["application_credential"],
                "application_credential": {
                    "name": "n",
                    "secret": SECRET,
                    "user": {"name": "u", "domain": {"id": "default"}},
                },
            }
        },
    }
    assert login == expected[name]
    assert SECRET not in repr(vars(driver))
    await driver.close()


async def test_without_a_keystone_a_fixed_token_goes_to_a_fixed_address(
    ground: OpenStackGround, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(CLOUDS.replace("URL", ground.faults.url))
    ground.services.valid.add("fixed")
    driver = connect(CloudDriverOptions("c", {"cloud": "without", "config_file": "c.yaml"}, tmp_path))
    ground.faults.always(answers(200, b'{"limits": {"absolute": {"maxTotalCores": 4, "maxTotalInstances": -1}}}'))
    assert await driver.limits({}) == {"cores": 4}
    assert ground.services.logins == [] and ground.faults.requests[-1].headers["x-auth-token"] == "fixed"
    await driver.close()


@pytest.mark.parametrize(
    ("text", "cloud", "message"),
    [
        ("clouds: {a: {}}", "b", "has no cloud 'b'; it has a"),
        ("clouds: {a: {}, b: {}}", "", "has no cloud ''"),
        ("clouds: [", "a", "cannot be read"),
        ("x: 1", "a", "`clouds` is missing"),
        ("clouds: {a: {auth: {password: s3cret}}}", "a", "auth_url` is missing"),
        ("clouds: {a: {auth: {auth_url: x, password: s3cret}}}", "a", "username and password"),
        ("clouds: {a: {auth_type: v3applicationcredential, auth: {auth_url: x}}}", "a", "application credential needs"),
        ("clouds: {a: {auth_type: v3kerberos, auth: {auth_url: x}}}", "a", "'v3kerberos' is not supported"),
        ("clouds: {a: {auth_type: none}}", "a", "must be the URL of Nova"),
        ("clouds: {a: {auth_type: none, auth: {endpoint: x}, cacert: ca}}", "a", "cacert .*/ca cannot be used"),
    ],
)
def test_errors_in_clouds_yaml_are_reported(text: str, cloud: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "clouds.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        place(cloud, str(tmp_path / "clouds.yaml"), {})
    assert "s3cret" not in str(raised.value)


def test_a_file_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="config_file"):
        place("a", str(tmp_path / "none"), {})


def test_tags_in_a_description_are_as_many_as_fit_the_two_that_matter_first() -> None:
    tags = {"a": "x" * 200, SYSTEM_TAG: "s" * 36, NODE_TAG: "n" * 36}
    assert len(address_description(tags)) <= 255 and address_tags(address_description(tags)) == {
        SYSTEM_TAG: "s" * 36,
        NODE_TAG: "n" * 36,
    }
    for other in ("", "headgate", "headgate {", 'headgate {"a": 1}', "of others"):
        assert address_tags(other) == {}


def test_addresses_are_distinguished() -> None:
    def server(*found: tuple[str, int, str]) -> dict[str, Any]:
        return {"addresses": {"n": [{"addr": a, "version": v, "OS-EXT-IPS:type": t} for a, v, t in found]}}

    assert addresses_of(server(("10.0.0.1", 4, "fixed"), ("172.24.4.9", 4, "floating"))) == (
        "172.24.4.9",
        "10.0.0.1",
        "",
    )
    assert addresses_of(server(("8.8.8.8", 4, "fixed"), ("fd00::1", 6, "fixed"))) == ("8.8.8.8", "", "fd00::1")
    assert addresses_of({"addresses": {}, "accessIPv4": "9.9.9.9"}) == ("9.9.9.9", "", "")
