"""Call OpenStack's services with a valid token, and assign floating addresses to servers."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from headgate.adapters.nodes.clouds.http import CloudResponse, Http, Shared, one_line, patience_s
from headgate.adapters.nodes.clouds.openstack.config import Place
from headgate.base.errors import CloudError
from headgate.ports.clouds import NODE_TAG, CloudUnavailable, LaunchFailed, MachineSpec, OverQuota

SEND_MAX_S, STORE_MAX_S = 6 * 3600.0, 1800.0
"""Time limits for a file: for sending and storing it, and for the silence of Glance while it stores the file."""
EARLY_S = 300.0
"""Time before their expiry at which tokens are replaced."""
PAGES_MAX = 500
MICROVERSION = "compute 2.53"
"""Version of Nova's API (from 2017) in which servers include the properties of their flavor."""
TYPES = {
    "compute": ("compute",),
    "image": ("image",),
    "network": ("network",),
    "block-storage": ("block-storage", "volumev3", "volume"),
}
_FULL = re.compile(r"quota|limit ?exceeded|LimitExceeded|OverQuota|no more (?:ip )?addresses", re.IGNORECASE)
_NO_HOST = re.compile(r"No valid host was found|not enough hosts|exhausted all hosts", re.IGNORECASE)
DESCRIPTION_MAX = 255
"""Length limit of the description of an address, which contains its tags."""
_TAGS = re.compile(r"^headgate (\{.*\})$")


class OpenStackRefused(LaunchFailed):
    """Report that OpenStack rejects a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NoService(CloudError):
    """Report that the cloud has no service of this type."""


class OpenStackSession(NamedTuple):
    """Hold the session that one login returned."""

    token: str
    until_s: float
    endpoints: Mapping[str, str]


class OpenStack:
    """Call the services of one project in one region."""

    def __init__(self, place: Place, region: str, http: Http, now_s: Callable[[], float]) -> None:
        self.place, self._region, self._http, self._now_s = place, region or place.region, http, now_s
        self._session: OpenStackSession | None = None
        self._turn = asyncio.Lock()
        self.servers = Shared(self._servers)
        """Every server of the project."""

    async def _log_in(self) -> OpenStackSession:
        # One login for all waiting requests, because Keystone's logins are slow, and often rate-limited.
        async with self._turn:
            if self._session is None or self._session.until_s - EARLY_S <= self._now_s():
                self._session = await self._logged_in()
            return self._session

    async def _logged_in(self) -> OpenStackSession:
        place = self.place
        if not place.login:
            return OpenStackSession(place.token, float("inf"), place.endpoints)
        # Old files name the path of version 2; version 3 is next to it.
        url = place.auth_url if place.auth_url.endswith("/v3") else f"{place.auth_url.removesuffix('/v2.0')}/v3"
        body = msgspec.json.encode({"auth": place.login})
        answer = await self._http.ask("POST", f"{url}/auth/tokens", {"content-type": "application/json"}, body)
        if answer.status in (401, 403, 404):
            raise CloudUnavailable(f"Keystone of {place.name} rejected Headgate's login with status {answer.status}")
        token = answer.headers.get("x-subject-token", "")
        try:
            issued = msgspec.json.decode(answer.body)["token"] if answer.status < 300 else {}
            until_s = datetime.fromisoformat(issued["expires_at"].replace("Z", "+00:00")).timestamp()
            catalog = {str(one["type"]): one["endpoints"] for one in issued.get("catalog", [])}
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
            token = ""
        if not token:
            raise CloudUnavailable(
                f"Keystone of {place.name} returned status {answer.status} without a token", patience_s(answer.headers)
            )
        found = {service: self._endpoint(catalog, names) for service, names in TYPES.items()}
        return OpenStackSession(token, until_s, {**{n: url for n, url in found.items() if url}, **place.endpoints})

    def _endpoint(self, catalog: Mapping[str, Any], names: tuple[str, ...]) -> str:
        for name in names:
            for endpoint in catalog.get(name, ()):
                in_region = not self._region or self._region in (endpoint.get("region_id"), endpoint.get("region"))
                if in_region and endpoint.get("interface") == self.place.interface:
                    return str(endpoint["url"]).rstrip("/")
        return ""

    async def call(
        self, method: str, service: str, path: str, document: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the response. Raise OpenStackRefused, OverQuota, CloudUnavailable, NoService."""
        for again in (True, False):
            session = await self._log_in()
            base = self._base(session, service)
            headers = {"x-auth-token": session.token, "accept": "application/json"}
            if service == "compute":
                headers["openstack-api-version"] = MICROVERSION
            if document is not None:
                headers["content-type"] = "application/json"
            url = f"{base}{path}" + (f"?{urlencode(query)}" if query else "")
            body = msgspec.json.encode(document) if document is not None else b""
            answer = await self._http.ask(method, url, headers, body)
            # If the token was rejected, nothing was done, so even a POST may be sent again.
            if not self._is_void(session, answer) or not again:
                return self._read(answer, service)
        raise AssertionError("the second attempt returns or raises")

    async def send(self, path: str, size: int, pieces: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        """Send a file to Glance, piece by piece; `pieces` yields it from the beginning.  Raise like `call`.

        The request states the length of the file, because web servers in front of Glance often refuse one that does
        not.
        """
        for again in (True, False):
            session = await self._log_in()
            headers = {
                "x-auth-token": session.token,
                "accept": "application/json",
                "content-type": "application/octet-stream",
                "content-length": str(size),
            }
            url = f"{self._base(session, 'image')}{path}"
            async with aclosing(pieces()) as body:
                answer = await self._http.ask("PUT", url, headers, body, SEND_MAX_S, STORE_MAX_S)
            if not self._is_void(session, answer) or not again:
                self._read(answer, "image")
                return

    def _base(self, session: OpenStackSession, service: str) -> str:
        if service not in session.endpoints:
            raise NoService(f"{self.place.name} has no service {service} in region {self._region or 'any'}")
        base, version = session.endpoints[service], {"network": "/v2.0", "image": "/v2"}.get(service, "")
        return base if base.endswith(version) else base + version

    def _is_void(self, session: OpenStackSession, answer: CloudResponse) -> bool:
        """Return whether the token was rejected; if so, discard it."""
        # Several requests may fail with the same token. Only the first may discard the session: by then, the others may
        # see the session of a newer login.
        if answer.status == 401 and self._session == session:
            self._session = None
        return answer.status == 401

    def _read(self, answer: CloudResponse, service: str) -> Any:
        whose = f"{self.place.name} ({service})"
        if 200 <= answer.status < 300:
            try:
                return msgspec.json.decode(answer.body) if answer.body else None
            except msgspec.DecodeError as error:
                raise CloudUnavailable(f"{whose} returned an incomplete response: {one_line(str(error))}") from error
        text = _message(answer.body)
        words = f"{whose} returned status {answer.status}" + (f": {text}" if text else "")
        if answer.status in (429, 503):
            raise CloudUnavailable(words, patience_s(answer.headers))
        # For quotas, Nova returns 403, Neutron 409, and Cinder 413; only the text distinguishes them from other errors.
        if answer.status in (403, 409, 413) and (_FULL.search(text) or _NO_HOST.search(text)):
            raise OverQuota(words)
        if service == "image" and 400 <= answer.status < 500 and answer.status not in (401, 408):
            raise OpenStackRefused(answer.status, words)  # errors may be HTML pages; 413: too large
        # Outside Glance, 413 is an old code for too many requests (now 429).
        if answer.status == 413:
            raise CloudUnavailable(words, patience_s(answer.headers))
        # A response without a message comes from something in front of the service, which says nothing about the
        # request.
        if answer.status >= 500 or answer.status < 400 or answer.status in (401, 408) or not text:
            raise CloudUnavailable(words) if answer.status != 404 else OpenStackRefused(404, words)
        raise OpenStackRefused(answer.status, words)

    async def every(self, service: str, path: str, members: str, query: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the members of all pages of a list."""
        found, marker = list[Any](), ""
        for _ in range(PAGES_MAX):
            page_query = {**(query or {}), **({"marker": marker} if marker else {})}
            answer = await self.call("GET", service, path, query=page_query)
            page = answer.get(members) if isinstance(answer, dict) else None
            if not isinstance(page, list):
                raise CloudUnavailable(f"{self.place.name} ({service}) returned no {members}")
            found += page
            # Nova and Cinder put links into `servers_links`, and Glance into `next`. A page with neither is the last
            # one.
            links = answer.get(f"{members}_links") or ([{"rel": "next"}] if answer.get("next") else [])
            if not page or not any(isinstance(one, dict) and one.get("rel") == "next" for one in links):
                return found
            following = str(page[-1].get("id", ""))
            # A server that ignores the marker sends the same page forever.
            if following == marker:
                break
            marker = following
        raise CloudUnavailable(f"{self.place.name} ({service}) keeps sending more pages of {members}")

    async def _servers(self) -> list[dict[str, Any]]:
        return await self.every("compute", "/servers/detail", "servers")


def _message(body: bytes) -> str:
    """Return the message of an error; each service nests it differently."""
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ""
    # Nova: {"forbidden": {"code": 403, "message": "..."}}; Neutron: {"NeutronError": {"type": "...", "message":
    # "..."}}.
    inner = next(iter(answer.values()), "") if isinstance(answer, dict) else ""
    if isinstance(inner, dict):
        inner = f"{inner.get('type', '')} {inner.get('message', '')}".strip()
    return one_line(str(inner).replace("<br />", " "))


def dead(name: str, reported: str, fault: Mapping[str, Any] | None) -> Exception:
    """Return the error for a server that will never run: OverQuota for lack of capacity, otherwise LaunchFailed."""
    message = one_line(str((fault or {}).get("message", "")))
    text = f"the server is in {reported}" + (f": {message}" if message else "")
    kind = OverQuota if _FULL.search(message) or _NO_HOST.search(message) else LaunchFailed
    return kind(f"{name} says: {text}")


def address_description(tags: Mapping[str, str]) -> str:
    """Return the description of an address, with as many tags as fit: an address cannot be created with tags."""
    shown: dict[str, str] = {}
    # The tags that identify the owner come first; an operator's tags may be too long to fit.
    for name in sorted(tags, key=lambda name: not name.startswith("zuul_")):
        # A tag is complete or left out, because truncated JSON could not be read back.
        if len(_text({**shown, name: tags[name]})) <= DESCRIPTION_MAX:
            shown[name] = tags[name]
    return _text(shown)


def _text(tags: Mapping[str, str]) -> str:
    return f"headgate {msgspec.json.encode(tags).decode()}"


def address_tags(description: str) -> dict[str, str]:
    """Return the tags in a description; empty if Headgate did not write it."""
    found = _TAGS.match(description or "")
    try:
        return msgspec.json.decode(found[1], type=dict[str, str]) if found else {}
    except msgspec.DecodeError:
        return {}


def addresses_of(server: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the public IPv4, the private IPv4 and the IPv6 address of a server; empty strings for missing ones."""
    public, private, six = str(server.get("accessIPv4") or ""), "", str(server.get("accessIPv6") or "")
    for one in (one for network in (server.get("addresses") or {}).values() for one in network):
        address, floats = str(one["addr"]), one.get("OS-EXT-IPS:type") == "floating"
        if one.get("version") == 6:
            six = six or address
        # On a provider network, the server's own address of type "fixed" is public.
        elif floats or ipaddress.ip_address(address).is_global:
            public = public or address
        else:
            private = private or address
    return public, private, six


async def lend_address(cloud: OpenStack, wanted: MachineSpec, server: str) -> str:
    """Assign a floating IP address to a server with one request, and return it; empty if the cloud has none. Calling
    this again returns the same address. Raise OverQuota, OpenStackRefused, CloudUnavailable."""
    try:
        ports = await cloud.every("network", "/ports", "ports", {"device_id": server})
    except NoService:
        return ""
    four = [one for one in ports if any("." in fixed["ip_address"] for fixed in one.get("fixed_ips", ()))]
    outside = await cloud.every("network", "/networks", "networks", {"router:external": "true"})
    # A port on an external network needs no floating address.
    if not four or any(one["network_id"] in {net["id"] for net in outside} for one in four):
        return ""
    # The request must not be repeated: an earlier one, whose response was lost, may have assigned an address.
    lent = [one for one in await _every(cloud) if one.get("port_id") in {port["id"] for port in four}]
    if lent:
        return str(lent[0]["floating_ip_address"])
    for network in outside:
        wanted_address = {
            "floating_network_id": network["id"],
            "port_id": four[0]["id"],
            "description": address_description(wanted.tags),
        }
        try:
            answer = await cloud.call("POST", "network", "/floatingips", {"floatingip": wanted_address})
        except OpenStackRefused as error:
            if error.status != 404:  # 404: no router connects this network to the server's
                raise
            continue
        return str(answer["floatingip"]["floating_ip_address"])
    return ""


async def _every(cloud: OpenStack) -> list[dict[str, Any]]:
    try:
        return await cloud.every("network", "/floatingips", "floatingips")
    except NoService:
        return []


async def our_addresses(cloud: OpenStack) -> list[tuple[str, dict[str, str]]]:
    """Return the id and the tags of each address that the project has."""
    return [(str(one["id"]), address_tags(str(one.get("description") or ""))) for one in await _every(cloud)]


async def give_back_address(cloud: OpenStack, node: str) -> None:
    """Release the addresses of a node."""
    for name, tags in await our_addresses(cloud):
        if tags.get(NODE_TAG) == node:
            await release_address(cloud, name)


async def release_address(cloud: OpenStack, name: str) -> None:
    """Release an address; a missing one is no error."""
    try:
        await cloud.call("DELETE", "network", f"/floatingips/{name}")
    except OpenStackRefused as error:
        if error.status != 404:
            raise
