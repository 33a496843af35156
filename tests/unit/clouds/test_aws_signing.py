"""Test that requests to AWS are signed, and their arguments named, as Amazon's own client does it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.loaders import Loader

from headgate.adapters.nodes.clouds.aws import launch, query
from headgate.adapters.nodes.clouds.aws.query import AwsKeys, signed
from headgate.ports.clouds import MachineSpec

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize("url", ["https://ec2.eu-west-1.amazonaws.com/", "http://127.0.0.1:4566/a path/é~x/"])
@pytest.mark.parametrize("token", ["", "lent//for+a=while"])
@pytest.mark.parametrize("body", [b"", b"Action=Describe&Name=%C3%A9"])
def test_a_signature_is_that_of_botocore(url: str, token: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None), raising=False)
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8", "x-amz-target": "Two  spaces"}
    ours = signed(AwsKeys("AKID", "a+secret/", token), "eu-west-1", "ec2", url, headers, body, NOW)
    request = AWSRequest("POST", url, headers=headers, data=body)
    signer = botocore.auth.SigV4Auth(Credentials("AKID", "a+secret/", token or None), "ec2", "eu-west-1")
    signer.add_auth(request)
    assert ours["x-amz-date"] == request.headers["X-Amz-Date"]
    assert ours["authorization"] == request.headers["Authorization"]


MODEL: dict[str, Any] = Loader().load_service_model("ec2", "service-2")


def unknown(action: str, arguments: query.Arguments) -> list[str]:
    """List arguments that EC2 does not have, by its published description."""
    shapes = MODEL["shapes"]

    def ends(shape: dict[str, Any], path: list[str]) -> bool:
        if not path:
            return shape["type"] not in ("structure", "list")
        if shape["type"] == "list":
            return path[0].isdecimal() and ends(shapes[shape["member"]["shape"]], path[1:])
        for name, member in shape.get("members", {}).items():
            member_name = member.get("queryName") or member.get("locationName", name)
            if member_name[:1].upper() + member_name[1:] == path[0]:
                return ends(shapes[member["shape"]], path[1:])
        return False

    taken = shapes[MODEL["operations"][action]["input"]["shape"]]
    pairs = parse_qsl(query.form(action, "2016-11-15", arguments).decode())[2:]
    return [name for name, _ in pairs if not ends(taken, name.split("."))]


EVERYTHING = MachineSpec(
    "0b1f",
    {
        "name": "big",
        "az": "us-east-1a",
        "subnet-ids": ["subnet-1", "subnet-2"],
        "security-group-ids": ["sg-1", "sg-2"],
        "iam-instance-profile": {"name": "builder"},
        "kms-key-id": "key",
        "key-name": "ops",
        "userdata": "#cloud-config\n",
        "volume-size": 40,
        "volume-type": "io2",
        "iops": 4000,
        "throughput": 200,
    },
    {"name": "debian", "image-filters": [{"name": "name", "values": ["debian-*"]}], "imds-http-tokens": "required"},
    {
        "name": "large",
        "fleet": {"instance-types": ["m6i.large", "m6a.large"], "allocation-strategy": "price-capacity-optimized"},
        "market-type": "spot",
        "public-ipv4": True,
        "public-ipv6": True,
        "ebs-optimized": True,
    },
    {"region": "us-east-1"},
    {"zuul_system_id": "s", "zuul_node_uuid": "0b1f"},
)
STATE = {"image": "ami-1", "device": "/dev/xvda", "subnet": "subnet-2", "template": "lt-1"}


@pytest.mark.parametrize(
    ("action", "arguments"),
    [
        ("RunInstances", launch.instance(EVERYTHING, STATE)),
        ("CreateLaunchTemplate", launch.template(EVERYTHING, STATE)),
        ("CreateFleet", launch.fleet(EVERYTHING, STATE)),
        ("DescribeImages", launch.image_query(EVERYTHING.image)),
        ("DescribeImages", launch.image_query({"image-id": "ami-1"})),
        ("DescribeInstances", {"Filter": [{"Name": "tag-key", "Value": ["a"]}], "MaxResults": 5, "NextToken": "a"}),
        ("DescribeVolumes", {"Filter": [{"Name": "tag-key", "Value": ["a"]}], "MaxResults": 5, "NextToken": "a"}),
        ("DescribeLaunchTemplates", {"Filter": [{"Name": "tag:a", "Value": ["a"]}], "MaxResults": 5}),
        ("DescribeInstanceTypes", {"InstanceType": ["m6i.large"]}),
        ("TerminateInstances", {"InstanceId": ["i-1"]}),
        ("DeleteVolume", {"VolumeId": "vol-1"}),
        ("DeleteLaunchTemplate", {"LaunchTemplateId": "lt-1"}),
    ],
)
def test_every_argument_is_one_that_ec2_has(action: str, arguments: query.Arguments) -> None:
    assert unknown(action, arguments) == []
    assert unknown(action, {**arguments, "Nonsense": "x"}) == ["Nonsense"]


@pytest.mark.parametrize(
    ("kind", "spot", "code"),
    [
        ("m6i.large", False, "L-1216C47A"),
        ("m6i.large", True, "L-34B43A08"),
        ("t3a.micro", False, "L-1216C47A"),
        ("im4gn.large", False, "L-1216C47A"),
        ("g5.xlarge", False, "L-DB2E81BA"),
        ("vt1.3xlarge", True, "L-3819A6DF"),
        ("p5.48xlarge", False, "L-417A185B"),
        ("p5.48xlarge", True, "L-7212CCBC"),
        ("trn1.2xlarge", False, ""),
        ("hpc7a.12xlarge", False, ""),
        ("mac2.metal", False, ""),
        ("u-6tb1.metal", False, ""),
        ("", False, ""),
    ],
)
def test_cores_count_for_the_quota_of_their_family(kind: str, spot: bool, code: str) -> None:
    assert launch.quota(kind, spot) == code
