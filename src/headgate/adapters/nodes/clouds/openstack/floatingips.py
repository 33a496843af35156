"""Addresses that are lent to a server from outside of its network, where the cloud has such."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.adapters.nodes.clouds.openstack.api import NoService, OpenStack, OpenStackRefused
from headgate.ports.cloud import NODE_TAG, MachineSpec

DESCRIPTION_MAX = 255
_TAGS = re.compile(r"^headgate (\{.*\})$")


def described(tags: Mapping[str, str]) -> str:
    """Return tags as a description, for resources without tags at creation: as many as there is room for."""
    shown: dict[str, str] = {}
    # The tags that identify the owner come first; of an operator's long tags, as many as fit.
    for name in sorted(tags, key=lambda name: not name.startswith("zuul_")):
        # A tag is kept whole or not at all: a cut JSON text could not be read back.
        if len(_text({**shown, name: tags[name]})) <= DESCRIPTION_MAX:
            shown[name] = tags[name]
    return _text(shown)


def _text(tags: Mapping[str, str]) -> str:
    return f"headgate {msgspec.json.encode(tags).decode()}"


def tags_of(description: str) -> dict[str, str]:
    """Return the tags in a description; none if it is not Headgate's."""
    found = _TAGS.match(description or "")
    try:
        return msgspec.json.decode(found[1], type=dict[str, str]) if found else {}
    except msgspec.DecodeError:
        return {}


def addresses_of(server: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return public and private IPv4 address, and the IPv6 address; empty if there is none."""
    public, private, six = str(server.get("accessIPv4") or ""), "", str(server.get("accessIPv6") or "")
    for one in (one for network in (server.get("addresses") or {}).values() for one in network):
        address, floats = str(one["addr"]), one.get("OS-EXT-IPS:type") == "floating"
        if one.get("version") == 6:
            six = six or address
        # On a provider network, a server has a public address of its own, of the type "fixed".
        elif floats or ipaddress.ip_address(address).is_global:
            public = public or address
        else:
            private = private or address
    return public, private, six


async def lend(cloud: OpenStack, wanted: MachineSpec, server: str) -> str:
    """Return a floating IP address for a server, assigned by one call; empty if the cloud has none. A repeated call
    returns the same address. Raise OverQuota, OpenStackRefused, CloudUnavailable."""
    try:
        ports = await cloud.every("network", "/ports", "ports", {"device_id": server})
    except NoService:
        return ""
    four = [one for one in ports if any("." in fixed["ip_address"] for fixed in one.get("fixed_ips", ()))]
    outside = await cloud.every("network", "/networks", "networks", {"router:external": "true"})
    # A port on an outside network needs no address from there.
    if not four or any(one["network_id"] in {net["id"] for net in outside} for one in four):
        return ""
    # The call is not repeatable: an earlier one, whose answer was lost, may have assigned an address.
    lent = [one for one in await _every(cloud) if one.get("port_id") in {port["id"] for port in four}]
    if lent:
        return str(lent[0]["floating_ip_address"])
    for network in outside:
        wanted_address = {
            "floating_network_id": network["id"],
            "port_id": four[0]["id"],
            "description": described(wanted.tags),
        }
        try:
            answer = await cloud.call("POST", "network", "/floatingips", {"floatingip": wanted_address})
        except OpenStackRefused as error:
            if error.status != 404:  # no router connects the network
                raise
            continue
        return str(answer["floatingip"]["floating_ip_address"])
    return ""


async def _every(cloud: OpenStack) -> list[dict[str, Any]]:
    try:
        return await cloud.every("network", "/floatingips", "floatingips")
    except NoService:
        return []


async def ours(cloud: OpenStack) -> list[tuple[str, dict[str, str]]]:
    """Return the id and the tags of each address that the project has."""
    return [(str(one["id"]), tags_of(str(one.get("description") or ""))) for one in await _every(cloud)]


async def give_back(cloud: OpenStack, node: str) -> None:
    """Release the addresses of a node."""
    for name, tags in await ours(cloud):
        if tags.get(NODE_TAG) == node:
            await release(cloud, name)


async def release(cloud: OpenStack, name: str) -> None:
    """Release an address; a missing one is no error."""
    try:
        await cloud.call("DELETE", "network", f"/floatingips/{name}")
    except OpenStackRefused as error:
        if error.status != 404:
            raise
