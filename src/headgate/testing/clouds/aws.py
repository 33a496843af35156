"""Serve EC2 as moto imitates it, and answer repeated client tokens as EC2 does.

Moto lacks that: a repeated call with the same client token makes nothing new.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from headgate.adapters.nodes.clouds.aws.api import AwsKeySource
from headgate.adapters.nodes.clouds.aws.driver import Aws
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, MachineSpec
from headgate.testing.servers.faults import Fault, FaultAnswer, Faults, Pass, ReceivedRequest, answers

REGION = "us-east-1"
ACCOUNT = "123456789012"
ACCESS, SECRET = "AKIAHEADGATE", "wJalrXUtnFEMI/of-no-worth"
MAKING = ("RunInstances", "CreateFleet")


def call(request: ReceivedRequest) -> str:
    """Return the name of the call."""
    return parse_qs(request.body.decode("utf-8", "replace")).get("Action", [""])[0]


def error(status: int, code: str, text: str) -> Fault:
    """Return an error answer in the form that EC2 documents."""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{code}</Code><Message>{text}</Message></Error></Errors><RequestID>ea966190</RequestID></Response>"
    )
    return answers(status, body.encode(), {"content-type": "text/xml;charset=UTF-8"})


class ClientTokens:
    """Answer a call with the token of an earlier call as EC2 documents: with the first answer."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[dict[str, list[str]], FaultAnswer]] = {}

    async def __call__(self, request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        """Return the first answer to a repeated call; None: the call is new."""
        parameters = parse_qs(request.body.decode())
        token = parameters.get("ClientToken", [""])[0]
        if not token or call(request) not in MAKING:
            return None
        key = (call(request), token)
        if key not in self.known:
            answer = await go_on()
            # A refused call uses up no token.
            if answer.status < 300:
                self.known[key] = parameters, answer
            return answer
        before, answer = self.known[key]
        if before == parameters:
            return answer
        text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
        return await error(400, "IdempotentParameterMismatch", text)(request, go_on)


class AwsGround:
    """Provide one region of moto. Moto knows one account, so existing resources do not count."""

    machine = "instance"
    full = staticmethod(error(500, "InsufficientInstanceCapacity", "There is no Spot capacity available."))
    throttled = staticmethod(
        answers(
            503,
            b"<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>Request limit exceeded.</Message>"
            b"</Error></Errors></Response>",
            {"retry-after": "7"},
        )
    )
    refused = staticmethod(error(400, "UnsupportedOperation", "Not now: the moon is full."))
    away = staticmethod(error(500, "InternalError", "An internal error has occurred"))
    secrets = [SECRET]  # noqa: RUF012 - nobody changes it

    def __init__(self, faults: Faults) -> None:
        from moto.backends import get_backend
        from moto.ec2.models import EC2Backend

        backend = get_backend("ec2")[ACCOUNT][REGION]
        assert isinstance(backend, EC2Backend), "it is moto's"
        self.backend = backend
        self.faults, self.provider = faults, {"name": "here", "region": REGION}
        # All tests of a process share moto's state, so what is there now was left by others.
        self._before = set(self._all())

    def driver(self) -> Aws:
        """Return a driver with keys of its settings."""
        return Aws("cloudy", AwsKeySource(access=ACCESS, secret=SECRET), self.faults.url, env={})

    def wanted(
        self, node: str, label: Mapping[str, Any] | None = None, flavor: Mapping[str, Any] | None = None
    ) -> MachineSpec:
        """Return a node with an image that moto has; `label` and `flavor` add or replace keys."""
        return MachineSpec(
            node,
            {"name": "small", "volume-size": 12, **(label or {})},
            {"name": "debian", "image-id": self.image, "username": "admin"},
            {"name": "tiny", "instance-type": "t3.micro", **(flavor or {})},
            self.provider,
            {SYSTEM_TAG: "ours", NODE_TAG: node, "team": "blue & green <"},
        )

    @property
    def image(self) -> str:
        """Return the id of an image."""
        return str(next(iter(self.backend.amis)))

    def impossible(self, node: str) -> MachineSpec:
        """Return a node whose image was deleted."""
        wanted = self.wanted(node)
        return MachineSpec(
            node, wanted.label, {"name": "none", "image-id": "ami-00000000"}, wanted.flavor, self.provider, wanted.tags
        )

    def makes(self, request: ReceivedRequest) -> bool:
        """Return whether the call makes instances."""
        return call(request) in MAKING

    def lists(self, request: ReceivedRequest) -> bool:
        """Return whether the call lists instances."""
        return call(request) == "DescribeInstances"

    def _all(self) -> dict[str, Mapping[str, str]]:
        backend, found = self.backend, dict[str, Mapping[str, str]]()
        for reservation in backend.reservations.values():
            for one in reservation.instances:
                if one.state != "terminated":
                    found[one.id] = {tag["key"]: tag["value"] for tag in one.get_tags()}
        for kind in (backend.volumes, backend.launch_templates):
            for other in kind.values():
                found[other.id] = {tag["key"]: tag["value"] for tag in other.get_tags()}
        return found

    async def everything(self) -> dict[str, Mapping[str, str]]:
        """Return the state that moto holds in memory."""
        return {name: tags for name, tags in self._all().items() if name not in self._before}

    async def foreign(self) -> str:
        """Make an instance with a tag of another installation."""
        tags = {"instance": {SYSTEM_TAG: "theirs", NODE_TAG: "their-node"}}
        made = self.backend.run_instances(
            self.image,
            1,
            None,
            [],
            instance_type="t3.micro",
            is_instance_type_default=False,
            region_name=REGION,
            tags=tags,
            security_group_ids=[],
            nics=[],
        )
        return str(made.instances[0].id)


@asynccontextmanager
async def aws_ground(server: str) -> AsyncIterator[AwsGround]:
    """Provide moto's server behind a proxy."""
    async with Faults(server).serving() as faults:
        faults.behave(ClientTokens())
        yield AwsGround(faults)


def quotas(values: Mapping[str, float]) -> Fault:
    """Return the answer of Service Quotas, which moto lacks."""
    every = [{"QuotaCode": code, "Value": value, "ServiceCode": "ec2"} for code, value in values.items()]
    return answers(200, json.dumps({"Quotas": every}).encode())
