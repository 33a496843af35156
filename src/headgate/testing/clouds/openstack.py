"""Provide a real Nova, and imitate the parts of Keystone, Glance and Neutron that drivers call."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from headgate.adapters.nodes.clouds.openstack.api import address_tags
from headgate.adapters.nodes.clouds.openstack.config import Place
from headgate.adapters.nodes.clouds.openstack.driver import Machines
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, MachineSpec
from headgate.testing.clock import DEADLINE_S
from headgate.testing.clouds.glance import Glance, json_answer
from headgate.testing.servers.faults import Fault, FaultAnswer, Faults, Pass, ReceivedRequest, answers
from headgate.testing.servers.nova import IMAGE, NETWORK, TENANT

SECRET = "a-secret-of-no-worth"
OUTSIDE = "outside-0000"


def fault(status: int, name: str, text: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Return an error answer in the form that Nova documents."""
    body = json.dumps({name: {"code": status, "message": text}}).encode()
    return answers(status, body, {"content-type": "application/json", **(headers or {})})


class Services:
    """Imitate the services other than Nova. Nova rejects callers without a token of this Keystone."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.url = ""
        self.tokens = 0
        self.valid = set[str]()
        self.lends = False
        """Whether the cloud has an external network."""
        self.floating: dict[str, dict[str, Any]] = {}
        self.logins: list[Any] = []
        self.glance = Glance()
        debian = {"name": "debian", "status": "active", "visibility": "public"}
        self.glance.add(**debian, created_at="2025-01-01T00:00:00Z")
        self.glance.add(**debian, created_at="2025-12-01T00:00:00Z", id=IMAGE)

    async def __call__(self, request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        """Answer for Keystone, Glance and Neutron; None: the call is for Nova."""
        path, query = urlsplit(request.path).path, parse_qs(urlsplit(request.path).query)
        if path == "/identity/v3/auth/tokens":
            return self._log_in(json.loads(request.body)["auth"])
        token = next((value for name, value in request.headers.items() if name.lower() == "x-auth-token"), "")
        # Nova's test server accepts any token, so rejections happen here.
        if token not in self.valid:
            return json_answer(
                401, {"error": {"code": 401, "message": "The request you have made requires authentication."}}
            )
        if path.startswith("/image/v2/images"):
            return self.glance.answer(request, path.removeprefix("/image/v2/images"), query)
        if path.startswith("/network/v2.0/"):
            return self._network(request, path.removeprefix("/network/v2.0/"), query)
        return None

    def _log_in(self, auth: Mapping[str, Any]) -> FaultAnswer:
        self.logins.append(auth)
        identity = auth["identity"]
        user = identity.get("password", {}).get("user", {})
        application = identity.get("application_credential", {})
        if SECRET not in (user.get("password"), application.get("secret")):
            return json_answer(401, {"error": {"code": 401, "message": "no"}})
        self.tokens += 1
        token = f"{TENANT}.{self.user}.{self.tokens}"
        self.valid.add(token)
        catalog = [
            {
                "type": kind,
                "endpoints": [
                    # A driver that takes the first endpoint of the catalogue reaches a port where nothing listens.
                    {"interface": "internal", "region_id": "RegionOne", "url": "http://127.0.0.1:9"},
                    {"interface": "public", "region_id": "RegionTwo", "url": "http://127.0.0.1:9"},
                    {"interface": "public", "region_id": "RegionOne", "url": f"{self.url}{at}"},
                ],
            }
            for kind, at in (("compute", "/v2.1"), ("image", "/image"), ("network", "/network/"))
        ]
        body = {"token": {"expires_at": "2100-01-01T00:00:00.000000Z", "catalog": catalog}}
        return json_answer(201, body, {"x-subject-token": token})

    def _network(self, request: ReceivedRequest, path: str, query: Mapping[str, list[str]]) -> FaultAnswer:
        if path == "networks":
            every = [{"id": NETWORK, "name": "private", "router:external": False}]
            every += [{"id": OUTSIDE, "name": "outside", "router:external": True}] if self.lends else []
            wanted = [n for n in every if query.get("name", [n["name"]]) == [n["name"]]]
            return json_answer(
                200, {"networks": [n for n in wanted if "router:external" not in query or n["router:external"]]}
            )
        if path == "ports":
            server = query["device_id"][0]
            address = [{"ip_address": "192.168.1.30", "subnet_id": "s"}]
            port = {"id": f"port-of-{server}", "network_id": NETWORK, "device_id": server, "fixed_ips": address}
            return json_answer(200, {"ports": [port]})
        if path == "floatingips" and request.method == "POST":
            fields = json.loads(request.body)["floatingip"]
            # As Neutron does; a driver that repeats the call without looking first fails here.
            if any(one["port_id"] == fields["port_id"] for one in self.floating.values()):
                text = {"NeutronError": {"type": "FloatingIPPortAlreadyAssociated", "message": "it has one"}}
                return json_answer(409, text)
            name = str(uuid.uuid4())
            address = f"203.0.113.{len(self.floating) + 1}"  # type: ignore[assignment]
            self.floating[name] = {"id": name, "floating_ip_address": address, **fields}
            return json_answer(201, {"floatingip": self.floating[name]})
        if path == "floatingips":
            return json_answer(200, {"floatingips": list(self.floating.values())})
        if request.method == "DELETE" and path.startswith("floatingips/"):
            gone = self.floating.pop(path.removeprefix("floatingips/"), None)
            return (
                json_answer(204)
                if gone
                else json_answer(404, {"NeutronError": {"type": "NotFound", "message": "none"}})
            )
        return json_answer(
            404, {"NeutronError": {"type": "HTTPNotFound", "message": "The resource could not be found."}}
        )


class OpenStackGround:
    """Provide a user of the project that has networks; servers of other users in it belong to other tests."""

    machine = "server"
    full = staticmethod(fault(403, "forbidden", "Quota exceeded for instances: Requested 1, but already used 10 of 10"))
    throttled = staticmethod(fault(429, "overLimit", "This request was rate-limited.", {"retry-after": "7"}))
    refused = staticmethod(fault(400, "badRequest", "Not now: the moon is full."))
    away = staticmethod(fault(500, "computeFault", "Unexpected API Error."))
    secrets = [SECRET]  # noqa: RUF012 - nobody changes it

    def __init__(self, faults: Faults, services: Services, nova: str) -> None:
        self.faults, self.services, self._nova = faults, services, nova
        self.provider = {"name": "here", "region": "RegionOne"}

    def place(self, login: Mapping[str, Any] | None = None) -> Place:
        """Return the connection settings, as in `clouds.yaml`."""
        user = {"name": self.services.user, "domain": {"id": "default"}, "password": SECRET}
        auth = {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": {"project": {"id": TENANT}}}
        return Place("stacky", f"{self.faults.url}/identity/v3", login or auth)

    def driver(self) -> Machines:
        """Return a driver with a password."""
        return Machines("stacky", self.place())

    def wanted(
        self, node: str, label: Mapping[str, Any] | None = None, image: Mapping[str, Any] | None = None
    ) -> MachineSpec:
        """Return a node with an image that Nova has; `label` and `image` add or replace keys."""
        return MachineSpec(
            node,
            {"name": "small", "networks": [NETWORK], **(label or {})},
            {"name": "debian", "image-id": IMAGE, "username": "debian", **(image or {})},
            {"name": "tiny", "flavor-name": "m1.tiny"},
            self.provider,
            {SYSTEM_TAG: "ours", NODE_TAG: node, "team": "blue & green <"},
        )

    def impossible(self, node: str) -> MachineSpec:
        """Return a node whose image was deleted."""
        return self.wanted(node, image={"image-id": str(uuid.uuid4())})

    def makes(self, request: ReceivedRequest) -> bool:
        """Return whether the call makes a server."""
        return request.method == "POST" and request.path.startswith("/v2.1/servers")

    def lists(self, request: ReceivedRequest) -> bool:
        """Return whether the call lists servers."""
        return request.method == "GET" and request.path.startswith("/v2.1/servers/detail")

    async def nova(self, method: str, path: str, body: Any = None) -> Any:
        """Call Nova directly, not through the proxy."""
        headers = {"x-auth-token": f"{TENANT}.{self.services.user}.0", "openstack-api-version": "compute 2.53"}
        async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
            response = await client.request(method, self._nova + path, json=body, headers=headers)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    async def everything(self) -> dict[str, Mapping[str, str]]:
        """Return this user's servers in Nova, and the allocated floating addresses."""
        found: dict[str, Mapping[str, str]] = {}
        for one in (await self.nova("GET", "/servers/detail"))["servers"]:
            if one["user_id"] == self.services.user and one["status"] != "DELETED":
                found[one["id"]] = one["metadata"]
        for name, lent in self.services.floating.items():
            found[name] = {**address_tags(lent["description"])}
        return found

    async def foreign(self) -> str:
        """Make a server with a tag of another installation."""
        server = {
            "name": "theirs",
            "imageRef": IMAGE,
            "flavorRef": "1",
            "networks": [{"uuid": NETWORK}],
            "metadata": {SYSTEM_TAG: "theirs", NODE_TAG: "their-node"},
        }
        return str((await self.nova("POST", "/servers", {"server": server}))["server"]["id"])

    async def clear(self) -> None:
        """Delete everything, so that the next test finds nothing."""
        for name in await self.everything():
            if re.fullmatch(r"[0-9a-f-]{36}", name) and name not in self.services.floating:
                await self.nova("DELETE", f"/servers/{name}")


@asynccontextmanager
async def glance_ground() -> AsyncIterator[OpenStackGround]:
    """Provide the services other than Nova, without one."""
    services = Services("user-of-images")
    async with Faults("http://127.0.0.1:9").serving() as faults:
        services.url = faults.url
        faults.behave(services)
        yield OpenStackGround(faults, services, "")


@asynccontextmanager
async def openstack_ground(server: str) -> AsyncIterator[OpenStackGround]:
    """Provide Nova behind a proxy, with the other services."""
    services = Services(f"user-{uuid.uuid4().hex}")
    async with Faults(server.removesuffix("/v2.1")).serving() as faults:
        services.url = faults.url
        faults.behave(services)
        ground = OpenStackGround(faults, services, server)
        try:
            yield ground
        finally:
            await ground.clear()
