"""Build the arguments of the calls that make an instance, and compute which of AWS's quotas it uses."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import Any

from headgate.adapters.nodes.clouds.aws.query import Arguments
from headgate.adapters.nodes.clouds.description import key, number, texts
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, Amounts, LaunchFailed, MachineSpec, State

TAGS_MAX = 45
"""Limit on the tags of a resource; AWS allows 50, and may add its own."""
ROOT = "/dev/sda1"
OWNERS = ("self", "amazon")
"""Owners of images for filters that name no owner, because any AWS user can give a public image any name."""
STANDARD = frozenset("acdhimrtz")
ON_DEMAND = {
    "standard": "L-1216C47A",
    "f": "L-74FC7D96",
    "g": "L-DB2E81BA",
    "vt": "L-DB2E81BA",
    "p": "L-417A185B",
    "x": "L-7295265B",
    "inf": "L-1945791B",
}
SPOT = {
    "standard": "L-34B43A08",
    "f": "L-88CF9481",
    "g": "L-3819A6DF",
    "vt": "L-3819A6DF",
    "p": "L-7212CCBC",
    "x": "L-E3A00192",
    "inf": "L-B5D1601B",
}
"""Family of instance types -> the quota of virtual cores of its spot instances."""
COUNTED_QUOTAS = frozenset([*ON_DEMAND.values(), *SPOT.values()])


def types(wanted: MachineSpec) -> list[str]:
    """Return the acceptable instance types, in order. Raise LaunchFailed if there are none."""
    fleet = wanted.flavor.get("fleet")
    named = wanted.flavor.get("instance-type")
    several = fleet.get("instance-types") or () if isinstance(fleet, Mapping) else named or ()
    found = [several] if isinstance(several, str) else list(several)
    if not found or not all(isinstance(one, str) for one in found):
        raise LaunchFailed(
            f"flavor {wanted.flavor.get('name', '')}: instance-type, or fleet with instance-types, is missing"
        )
    if wanted.flavor.get("dedicated-host"):
        raise LaunchFailed(
            f"flavor {wanted.flavor.get('name', '')}: dedicated hosts are not supported; remove dedicated-host"
        )
    return found


def spot(wanted: MachineSpec) -> bool:
    """Return whether AWS may reclaim the instance."""
    return bool(wanted.flavor.get("market-type") == "spot")


def image_query(image: Mapping[str, Any]) -> Arguments:
    """Return the arguments of DescribeImages. Raise LaunchFailed if the image has no criteria."""
    filters = image.get("image-filters")
    if image.get("image-id"):
        return {"ImageId": [str(image["image-id"])]}
    filters = [filters] if isinstance(filters, Mapping) else filters
    if not isinstance(filters, list) or not filters:
        raise LaunchFailed(f"image {image.get('name', '')}: image-id or image-filters is missing")
    criteria = []
    for criterion in filters:
        if not isinstance(criterion, Mapping) or not criterion.get("name") or not criterion.get("values"):
            raise LaunchFailed(
                f"image {image.get('name', '')}: each of image-filters needs a name and a list of values"
            )
        values = criterion["values"] if isinstance(criterion["values"], list) else [criterion["values"]]
        criteria.append({"Name": str(criterion["name"]), "Value": [str(value) for value in values]})
    criteria.append({"Name": "state", "Value": ["available"]})
    owned = any(criterion["Name"] in ("owner-id", "owner-alias", "image-id") for criterion in criteria)
    return {"Filter": criteria} | ({} if owned else {"Owner": list(OWNERS)})


def token(node: str) -> str:
    """Return the client token by which EC2 recognises repeated calls, at most 64 characters."""
    return node if len(node) <= 64 and node.isascii() else hashlib.sha256(node.encode()).hexdigest()


def subnet(wanted: MachineSpec) -> str:
    """Return one of the subnets, always the same one for a node; empty if there are none."""
    found = texts(wanted, "subnet-ids")
    # Not `hash()`, which differs between processes, because a repeated call must have the same arguments.
    return found[zlib.crc32(wanted.node.encode()) % len(found)] if found else ""


def tag_pairs(tags: Mapping[str, str], whose: str) -> list[dict[str, str]]:
    """Return as many tags as EC2 accepts, in its format; those that identify the owner come first."""
    # If an operator has very many tags, they must not displace the ones by which lost resources are found.
    every = {name: tags[name] for name in (SYSTEM_TAG, whose) if name in tags} | dict(tags)
    return [{"Key": name[:128], "Value": value[:256]} for name, value in list(every.items())[:TAGS_MAX]]


def tags(wanted: MachineSpec, *kinds: str) -> list[Arguments]:
    """Return the tags for the kinds of resources that a call makes."""
    pairs = tag_pairs(wanted.tags, NODE_TAG)
    if not any(pair["Key"] == "Name" for pair in pairs):
        pairs.append({"Key": "Name", "Value": f"{wanted.label.get('name', 'node')}-{wanted.node}"[:256]})
    return [{"ResourceType": kind, "Tag": pairs} for kind in kinds]


def description(wanted: MachineSpec, state: State) -> dict[str, Any]:
    """Return the arguments that RunInstances and a launch template share."""
    interface: dict[str, Any] = {
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": bool(wanted.flavor.get("public-ipv4")),
        "SubnetId": state.get("subnet") or None,
        "SecurityGroupId": texts(wanted, "security-group-ids"),
        "Ipv6AddressCount": 1 if wanted.flavor.get("public-ipv6") else None,
    }
    profile, userdata = key(wanted, "iam-instance-profile"), key(wanted, "userdata")
    arguments: dict[str, Any] = {
        "ImageId": state["image"],
        "NetworkInterface": [interface],
        "KeyName": key(wanted, "key-name"),
        "UserData": base64.b64encode(userdata.encode()).decode() if isinstance(userdata, str) else None,
        "BlockDeviceMapping": _disk(wanted, state.get("device") or ROOT),
        "EbsOptimized": True if wanted.flavor.get("ebs-optimized") else None,
        # A job may shut its machine down; a machine that is only stopped would still use its volumes and its quota.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": wanted.image.get("imds-http-tokens")},
        "Placement": {"AvailabilityZone": key(wanted, "az")},
    }
    if isinstance(profile, Mapping):
        arguments["IamInstanceProfile"] = (
            {"Arn": profile["arn"]} if profile.get("arn") else {"Name": profile.get("name")}
        )
    return arguments


def instance(wanted: MachineSpec, state: State) -> Arguments:
    """Return the arguments of RunInstances, always the same for a node."""
    market = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}} if spot(wanted) else None
    return {
        **description(wanted, state),
        "InstanceType": types(wanted)[0],
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token(wanted.node),
        "InstanceMarketOptions": market,
        "TagSpecification": tags(wanted, "instance", "volume", "network-interface"),
    }


def template(wanted: MachineSpec, state: State) -> Arguments:
    """Return the arguments of CreateLaunchTemplate, which is the only way to describe a fleet's instances."""
    return {
        "LaunchTemplateName": template_name(wanted.node),
        "ClientToken": token(wanted.node),
        "LaunchTemplateData": {
            **description(wanted, state),
            "TagSpecification": tags(wanted, "instance", "volume", "network-interface"),
        },
        "TagSpecification": tags(wanted, "launch-template"),
    }


def template_name(node: str) -> str:
    """Return the name of a node's launch template."""
    return f"headgate-{token(node)}"


def fleet(wanted: MachineSpec, state: State) -> Arguments:
    """Return the arguments of CreateFleet for a single instance."""
    strategy = wanted.flavor["fleet"].get("allocation-strategy")
    kind = "spot" if spot(wanted) else "on-demand"
    options = "SpotOptions" if spot(wanted) else "OnDemandOptions"
    return {
        # Only this type answers with the instances or the errors; `maintain` would also replace instances later.
        "Type": "instant",
        "ClientToken": token(wanted.node),
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": state["template"], "Version": "1"},
                "Overrides": [{"InstanceType": one} for one in types(wanted)],
            }
        ],
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": kind},
        options: {"AllocationStrategy": strategy},
        "TagSpecification": tags(wanted, "fleet", "instance"),
    }


def _disk(wanted: MachineSpec, device: str) -> list[Arguments] | None:
    ebs = {
        "VolumeSize": number(wanted, "volume-size"),
        "VolumeType": key(wanted, "volume-type"),
        "Iops": number(wanted, "iops"),
        "Throughput": number(wanted, "throughput"),
        "KmsKeyId": key(wanted, "kms-key-id"),
        "Encrypted": True if key(wanted, "kms-key-id") else None,
    }
    if all(value is None for value in ebs.values()):
        return None
    return [
        {
            "DeviceName": device,
            "Ebs": {
                "VolumeType": "gp3",
                **{n: v for n, v in ebs.items() if v is not None},
                "DeleteOnTermination": True,
            },
        }
    ]


def quota(instance_type: str, spot: bool) -> str:
    """Return the code of the quota for the cores of an instance of this type; empty if none is known."""
    family = re.match(r"[a-z]*", instance_type)
    name = family[0] if family else ""
    table = SPOT if spot else ON_DEMAND
    # Checked first, because `inf` begins like the standard family `i`, but has its own quota.
    if name in table:
        return table[name]
    # Families with longer names, such as `hpc`, `mac` or `trn`, have other quotas, except im4gn and is4gen.
    return table["standard"] if name[:1] in STANDARD and (len(name) == 1 or name in ("im", "is")) else ""


def uses(instance_type: str, cores: int, memory_mib: int, spot: bool) -> Amounts:
    """Return the resources that one instance uses."""
    found = {"instances": 1.0, "cores": float(cores), "ram": float(memory_mib)}
    code = quota(instance_type, spot)
    return {**found, code: float(cores)} if code else found
