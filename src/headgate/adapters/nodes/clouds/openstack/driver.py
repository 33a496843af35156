"""Make machines on OpenStack, in steps of a few calls that can be repeated."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headgate.adapters.nodes.clouds.description import addresses, host, key, number, texts
from headgate.adapters.nodes.clouds.http import Http, understood
from headgate.adapters.nodes.clouds.openstack import api
from headgate.adapters.nodes.clouds.openstack.config import Place, place
from headgate.adapters.nodes.clouds.openstack.images import GlanceImages
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.ports import clouds

GONE = ("DELETED", "SOFT_DELETED")
METADATA_MAX = 255
T = TypeVar("T")
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


def connect(given: CloudDriverOptions) -> Machines:
    """Return the cloud that a connection names.  Raise UserError if `clouds.yaml` does not describe it."""
    file = given.options.get("config_file", "")
    where = str(given.directory / Path(file).expanduser()) if file else ""
    return Machines(given.name, place(given.options.get("cloud", ""), where, os.environ))


class Machines:
    """Drive one project; each region is called separately."""

    def __init__(self, name: str, place: Place, now_s: Callable[[], float] = time.time) -> None:
        """Create a driver for the cloud `place`; `name` is the name of the connection."""
        self.name, self._place, self._now_s = name, place, now_s
        self._http = Http(place.verify)
        self._regions: dict[str, api.OpenStack] = {}
        self.images = GlanceImages(self._at, now_s)

    def _at(self, provider: Mapping[str, Any]) -> api.OpenStack:
        region = str(provider.get("region") or "")
        if region not in self._regions:
            self._regions[region] = api.OpenStack(self._place, region, self._http, self._now_s)
        return self._regions[region]

    @understood
    async def uses(self, wanted: clouds.MachineSpec) -> clouds.Amounts:
        flavor = await self._flavor(self._at(wanted.provider), wanted)
        found = {"instances": 1.0, "cores": float(flavor["vcpus"]), "ram": float(flavor["ram"])}
        if key(wanted, "boot-from-volume"):
            found |= {"volumes": 1.0, "volume-gb": float(number(wanted, "volume-size") or flavor["disk"])}
        return found

    async def _flavor(self, cloud: api.OpenStack, wanted: clouds.MachineSpec) -> dict[str, Any]:
        name = wanted.flavor.get("flavor-name")
        for one in await _heard(cloud.every("compute", "/flavors/detail", "flavors")):
            if name and name in (one["name"], one["id"]):
                return dict(one)
        raise clouds.LaunchFailed(f"{cloud.place.name} has no flavor {name!r:.80}")

    @understood
    async def advance(self, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending | clouds.Made:
        try:
            return await self._advance(self._at(wanted.provider), wanted, state)
        except api.NoService as error:
            raise clouds.LaunchFailed(str(error)) from error

    async def _advance(
        self, cloud: api.OpenStack, wanted: clouds.MachineSpec, state: clouds.State
    ) -> clouds.MachinePending | clouds.Made:
        servers = await self._mine(cloud, wanted, state)
        if servers:
            # There are several if a call whose response was lost was still running when it was repeated.
            for extra in servers[1:]:
                await _delete(cloud, extra["id"])
            return await self._look(cloud, wanted, servers[0])
        if "server" in state:
            raise clouds.LaunchFailed(f"the server {state['server']} no longer exists in {cloud.place.name}")
        # Nova has no token for repeated calls. After a lost response, the next step finds the server by its tag; if
        # both calls made one, the younger one is deleted above.
        answer = await cloud.call("POST", "compute", "/servers", {"server": await self._server(cloud, wanted)})
        return clouds.MachinePending({"server": str(answer["server"]["id"])}, "the server is BUILD")

    async def _mine(
        self, cloud: api.OpenStack, wanted: clouds.MachineSpec, state: clouds.State
    ) -> list[dict[str, Any]]:
        """Return the servers of a node; the first one is the one to use."""
        found = [
            one
            for one in await cloud.servers()
            if one["status"] not in GONE
            and ((one.get("metadata") or {}).get(clouds.NODE_TAG) == wanted.node or one["id"] == state.get("server"))
        ]
        # The known one first; otherwise the oldest, so that every step chooses the same one.
        return sorted(found, key=lambda one: (one["id"] != state.get("server"), one.get("created", ""), one["id"]))

    async def _server(self, cloud: api.OpenStack, wanted: clouds.MachineSpec) -> dict[str, Any]:
        flavor, image = await self._flavor(cloud, wanted), await self._image(cloud, wanted)
        drive, userdata = key(wanted, "config-drive"), key(wanted, "userdata")
        server: dict[str, Any] = {
            "name": f"{wanted.label.get('name', 'node')}-{wanted.node}"[:METADATA_MAX],
            "flavorRef": flavor["id"],
            "metadata": {name[:METADATA_MAX]: value[:METADATA_MAX] for name, value in wanted.tags.items()},
            # Without a config drive, a server gets its keys from the cloud's metadata service, which not every network
            # has.
            "config_drive": drive is not False,
            "networks": await self._networks(cloud, wanted),
        }
        for name, value in (
            ("key_name", key(wanted, "key-name")),
            ("availability_zone", key(wanted, "az")),
            ("user_data", base64.b64encode(userdata.encode()).decode() if isinstance(userdata, str) else None),
            ("security_groups", [{"name": one} for one in texts(wanted, "security-groups")]),
        ):
            if value:
                server[name] = value
        if key(wanted, "boot-from-volume"):
            server["block_device_mapping_v2"] = [
                {
                    "boot_index": 0,
                    "uuid": image,
                    "source_type": "image",
                    "destination_type": "volume",
                    "volume_size": number(wanted, "volume-size") or flavor["disk"],
                    "delete_on_termination": True,
                }
            ]
        else:
            server["imageRef"] = image
        return server

    async def _image(self, cloud: api.OpenStack, wanted: clouds.MachineSpec) -> str:
        name = str(wanted.image.get("image-id") or "")
        if not name:
            raise clouds.LaunchFailed(f"image {wanted.image.get('name', '')}: image-id is missing")
        if _UUID.fullmatch(name):
            return name
        found = await cloud.every("image", "/images", "images", {"name": name, "status": "active"})
        if not found:
            raise clouds.LaunchFailed(f"{cloud.place.name} has no image {name!r:.80}")
        return str(max(found, key=lambda one: (str(one.get("created_at", "")), one["id"]))["id"])

    async def _networks(self, cloud: api.OpenStack, wanted: clouds.MachineSpec) -> list[dict[str, str]] | str:
        named = texts(wanted, "networks")
        found = []
        for name in named:
            known = (
                [] if _UUID.fullmatch(name) else await cloud.every("network", "/networks", "networks", {"name": name})
            )
            if not known and not _UUID.fullmatch(name):
                raise clouds.LaunchFailed(f"{cloud.place.name} has no network {name!r:.80}")
            if len(known) > 1:
                raise clouds.LaunchFailed(
                    f"{cloud.place.name} has {len(known)} networks {name!r:.80}: use the id instead"
                )
            found.append({"uuid": str(known[0]["id"]) if known else name})
        return found or "auto"

    async def _look(
        self, cloud: api.OpenStack, wanted: clouds.MachineSpec, server: Mapping[str, Any]
    ) -> clouds.MachinePending | clouds.Made:
        state, reported = {"server": str(server["id"])}, str(server["status"])
        # UNKNOWN says nothing about the server: either it passes, or the launch times out.
        if reported in ("BUILD", "REBUILD", "UNKNOWN"):
            return clouds.MachinePending(state, f"the server is {reported}")
        if reported != "ACTIVE":
            raise api.dead(cloud.place.name, reported, server.get("fault"))
        public, private, six = api.addresses_of(server)
        if not public and key(wanted, "auto-floating-ip") is not False:
            public = await api.lend_address(cloud, wanted, state["server"])
        where = addresses(public, private, six, prefer_public=True)
        if not where["interface_ip"]:
            return clouds.MachinePending(state, "the server runs, but has no address yet")
        if key(wanted, "boot-from-volume"):
            await self._tag_volumes(cloud, wanted, server)
        about: dict[str, Any] = {
            **where,
            "az": server.get("OS-EXT-AZ:availability_zone") or "",
            "cloud": self.name,
            "region": str(wanted.provider.get("region") or self._place.region),
            "host_id": server.get("hostId") or "",
            "external_id": state["server"],
            "node_properties": {},
        }
        return clouds.Made(state["server"], state, host(wanted.image, where["interface_ip"]), about)

    async def _tag_volumes(self, cloud: api.OpenStack, wanted: clouds.MachineSpec, server: Mapping[str, Any]) -> None:
        """Tag the volumes that Nova made: they should be deleted with their server, and the tag identifies those that
        are not."""
        for one in server.get("os-extended-volumes:volumes_attached") or ():
            try:
                await cloud.call(
                    "POST", "block-storage", f"/volumes/{one['id']}/metadata", {"metadata": dict(wanted.tags)}
                )
            except (api.NoService, api.OpenStackRefused):
                return

    @understood
    async def remove(self, wanted: clouds.MachineSpec, state: clouds.State) -> bool:
        cloud = self._at(wanted.provider)
        left = await _as_away(self._mine(cloud, wanted, state))
        try:
            await _as_itself(api.give_back_address(cloud, wanted.node))
        finally:
            for one in left:
                if one.get("OS-EXT-STS:task_state") != "deleting":
                    await _as_itself(_delete(cloud, str(one["id"])))
        return not left

    @understood
    async def resources(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        return await _as_away(self._resources(self._at(provider)))

    async def _resources(self, cloud: api.OpenStack) -> list[clouds.Resource]:
        found = []
        for one in await cloud.servers():
            flavor = one.get("flavor") or {}
            taken = {"instances": 1.0, "cores": float(flavor.get("vcpus", 0)), "ram": float(flavor.get("ram", 0))}
            if one["status"] not in GONE:
                found.append(clouds.Resource(str(one["id"]), "server", dict(one.get("metadata") or {}), taken))
        for name, tags in await api.our_addresses(cloud):
            found.append(clouds.Resource(name, "floating-ip", tags, {}))
        try:
            volumes = await cloud.every("block-storage", "/volumes/detail", "volumes")
        except api.NoService:
            volumes = []
        for one in volumes:
            size = {"volumes": 1.0, "volume-gb": float(one.get("size") or 0)}
            found.append(clouds.Resource(str(one["id"]), "volume", dict(one.get("metadata") or {}), size))
        return found

    async def delete(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        cloud = self._at(provider)
        if resource.kind == "server":
            await _as_itself(_delete(cloud, resource.id))
        elif resource.kind == "floating-ip":
            await _as_itself(api.release_address(cloud, resource.id))
        else:
            await _as_itself(_delete_volume(cloud, resource.id))

    @understood
    async def limits(self, provider: Mapping[str, Any]) -> clouds.Amounts:
        return await _as_away(self._limits(self._at(provider)))

    async def _limits(self, cloud: api.OpenStack) -> clouds.Amounts:
        names = {
            "compute": {"instances": "maxTotalInstances", "cores": "maxTotalCores", "ram": "maxTotalRAMSize"},
            "block-storage": {"volumes": "maxTotalVolumes", "volume-gb": "maxTotalVolumeGigabytes"},
        }
        found = dict[str, float]()
        for service, kinds in names.items():
            try:
                answer = await cloud.call("GET", service, "/limits")
            except api.NoService:
                continue
            absolute = ((answer or {}).get("limits") or {}).get("absolute") or {}
            # Nova and Cinder say -1 for an unlimited resource.
            found |= {kind: float(absolute[name]) for kind, name in kinds.items() if absolute.get(name, -1) >= 0}
        return found

    async def close(self) -> None:
        await self.images.close()
        await self._http.close()


async def _delete(cloud: api.OpenStack, name: str) -> None:
    try:
        await cloud.call("DELETE", "compute", f"/servers/{name}")
    except api.OpenStackRefused as error:
        if error.status not in (404, 409):  # 409: it is being deleted, or cannot be deleted now
            raise


async def _delete_volume(cloud: api.OpenStack, name: str) -> None:
    try:
        await cloud.call("DELETE", "block-storage", f"/volumes/{name}")
    except api.OpenStackRefused as error:
        if error.status != 404:
            raise


async def _heard(call: Awaitable[T]) -> T:
    try:
        return await call
    except api.NoService as error:
        raise clouds.CloudUnavailable(str(error)) from error


async def _as_itself(call: Awaitable[T]) -> T:
    """Return the result of a call for one resource. Translate errors that are not about this resource into
    CloudUnavailable."""
    try:
        return await call
    except (clouds.OverQuota, api.NoService) as error:
        raise clouds.CloudUnavailable(str(error)) from error


async def _as_away(call: Awaitable[T]) -> T:
    """Return the result of a call that is not about one node. Translate all its errors into CloudUnavailable, so that
    it is repeated."""
    try:
        return await call
    except (clouds.LaunchFailed, clouds.OverQuota, api.NoService) as error:
        raise clouds.CloudUnavailable(str(error)) from error
