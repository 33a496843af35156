"""Make podman containers that work as machines: with their own ssh server, users, addresses and limits.

They run on this process's machine, and only that machine can reach them, so the executors that use them run there, too.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from headgate.adapters.blocklist import Net, read_nets
from headgate.adapters.nodes.clouds.podman import guest
from headgate.adapters.nodes.clouds.podman.engine import Engine, PodmanImages
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.adapters.work.directory import remove
from headgate.base.errors import UserError
from headgate.base.files import bytes_of
from headgate.base.tasks import end, run_to_end
from headgate.ports import clouds

FETCH_MAX_S = 1_800.0
CORES, RAM_MIB, PIDS = 1.0, 2_048, 4_096
"""Default resources of a machine, if the flavor does not set them."""
FILES_MAX = 65_536
KEY_LABEL, NUMBER_LABEL = "headgate_host_key", "headgate_number"
CONTAINER, NETWORK = "container", "network"
_IMAGE = re.compile(
    r"(?!(?:dir|docker|oci|ostree|sif):)[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+/)?[A-Za-z0-9._/-]*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@sha256:[0-9a-f]{64})?"
)
"""Name of an image in a registry, or of a local image. Podman would also accept paths, which jobs must not use."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Podman:
    """Drive podman on this machine; see `ports.clouds.Cloud`."""

    def __init__(self, words: Sequence[str], authorized: bytes, deny: Sequence[Net] = ()) -> None:
        """Create a driver from the command line of podman (`words`), the public keys that may log in, and the networks
        that machines must not reach."""
        self._engine, self._authorized, self._deny = Engine(words), authorized, tuple(deny)
        self.images = PodmanImages(self._engine)
        self._turn = asyncio.Lock()
        self._guarded = False
        self._fetching: dict[str, asyncio.Task[str]] = {}
        """Image -> task that fetches it and returns an error, or an empty string."""

    async def close(self) -> None:
        """Stop fetching images; machines stay."""
        await end(*self._fetching.values())
        await self.images.close()

    async def uses(self, wanted: clouds.MachineSpec) -> clouds.Amounts:
        """Return the resources of the flavor. Raise LaunchFailed for invalid ones."""
        cores, ram, _ = _limits(wanted)
        _image(wanted)
        return {"instances": 1, "cores": cores, "ram": ram}

    async def limits(self, provider: Mapping[str, Any]) -> clouds.Amounts:
        """Return the resources of this machine."""
        ram = psutil.virtual_memory().total >> 20
        return {"instances": guest.COUNT, "cores": os.cpu_count() or 1, "ram": ram}

    async def resources(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        """Return every container, and the networks of machines."""
        found = []
        for one in await self._engine.listed("ps", "-a"):
            labels = dict(one.get("Labels") or {})
            uses = {key: float(labels[f"headgate_{key}"]) for key in ("cores", "ram") if f"headgate_{key}" in labels}
            found.append(clouds.Resource(str(one["Names"][0]), CONTAINER, labels, {"instances": 1, **uses}))
        for one in await self._engine.listed("network", "ls"):
            if str(one["name"]).startswith(guest.NAME):
                found.append(clouds.Resource(str(one["name"]), NETWORK, dict(one.get("labels") or {}), {}))
        return found

    async def delete(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        """Remove the container with everything that runs in it, or the network. Raise LaunchFailed."""
        rm = ("rm", "-f", "-v", "-t", "0", "-i") if resource.kind == CONTAINER else ("network", "rm")
        done = await self._engine.run(*rm, resource.id)
        # podman has no option to ignore a missing network, and a container that just ended is busy for a moment: the
        # caller checks whether it is gone, and tries again. Only "no such file" means broken storage.
        why = done.why.lower()
        passing = ("not found", "no such container", "no such network", "resource busy")
        if done.status and not any(words in why for words in passing):
            raise clouds.LaunchFailed(f"podman cannot remove {resource.id}: {done.why}")

    async def remove(self, wanted: clouds.MachineSpec, state: clouds.State) -> bool:
        """Remove the container and the network; return whether both are gone. Raise LaunchFailed."""
        # The container first, because a network that is in use cannot be removed.
        for kind in (CONTAINER, NETWORK):
            for one in await self._of(wanted, kind):
                await self.delete(wanted.provider, one)
        return not [*await self._of(wanted, CONTAINER), *await self._of(wanted, NETWORK)]

    async def _of(self, wanted: clouds.MachineSpec, kind: str) -> list[clouds.Resource]:
        tags = {(tag, wanted.tags[tag]) for tag in (clouds.SYSTEM_TAG, clouds.NODE_TAG)}
        return [one for one in await self.resources(wanted.provider) if one.kind == kind and tags <= one.tags.items()]

    async def advance(self, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending | clouds.Made:
        """Fetch the image, make network and container, and start the container."""
        name, image = _name(wanted), _image(wanted)
        _limits(wanted)
        found = await self._engine.inspected(name)
        if found is not None and found["State"]["Status"] in ("created", "configured", "initialized"):
            await self._engine.run("rm", "-f", "-v", "-i", name)  # an earlier attempt did not complete it
            found = None
        if found is None:
            if await self._lacks(image):
                return clouds.MachinePending({}, f"podman is fetching the image {image}")
            async with self._turn:
                await self._guard()
                await self._make(wanted, image, await self._number(wanted))
            found = await self._engine.inspected(name)
        if found is None:
            raise clouds.LaunchFailed(f"the container {name} is gone")
        return await self._there(wanted, name, found)

    async def _lacks(self, image: str) -> bool:
        """Return whether the image is missing, and begin to fetch it. Raise LaunchFailed if it cannot be fetched."""
        task = self._fetching.get(image)
        if task is not None and task.done():
            del self._fetching[image]
            if wrong := task.result():
                raise clouds.LaunchFailed(wrong)
        # Checked after each fetch, too: another program may have removed the image since.
        if (await self._engine.run("image", "exists", image)).status == 0:
            return False
        if image not in self._fetching:
            self._fetching[image] = asyncio.ensure_future(self._fetched(image))
        return True

    async def _fetched(self, image: str) -> str:
        try:
            done = await self._engine.run("pull", "-q", "--", image, max_s=FETCH_MAX_S)
        except clouds.CloudUnavailable as away:
            return str(away)
        return f"the image {image} cannot be fetched: {done.why}" if done.status else ""

    async def _guard(self) -> None:
        """Load the firewall rules before the first machine."""
        if not self._guarded:
            done = await Engine(["nft"]).run("-f", "-", stdin=guest.rules(self._deny).encode())
            if done.status:
                raise clouds.LaunchFailed(f"the firewall rules for machines cannot be loaded: {done.why}")
            self._guarded = True

    async def _number(self, wanted: clouds.MachineSpec) -> int:
        """Return the number of the node's network, and make the network if it has none. A number belongs to the first
        process on this machine that uses it."""
        for one in await self._of(wanted, NETWORK):
            return int(one.id.removeprefix(guest.NAME))
        used = {str(one["name"]) for one in await self._engine.listed("network", "ls")}
        labels = [f"--label={tag}={wanted.tags[tag]}" for tag in wanted.tags]
        for number in range(guest.COUNT):
            if guest.network(number) not in used:
                subnet = f"--subnet={guest.subnet(number)}"
                # The name serves as a lock: podman refuses a second network with this name, even from another process.
                done = await self._engine.run("network", "create", subnet, *labels, guest.network(number))
                if done.status == 0:
                    # An address lease remains if podman did not finish removing an earlier machine; then the new one
                    # would get no address.
                    await run_to_end(asyncio.to_thread(remove, guest.LEASES / guest.network(number)))
                    return number
                # Another process may have used the number since the list was read, or another network has its
                # addresses. Then the next number is tried.
                if "exists" not in done.why and "used" not in done.why:
                    raise clouds.LaunchFailed(f"podman cannot make a network: {done.why}")
        raise clouds.OverQuota(f"this machine has addresses for at most {guest.COUNT} machines")

    async def _make(self, wanted: clouds.MachineSpec, image: str, number: int) -> None:
        """Create and start the container. Raise LaunchFailed."""
        name, (cores, ram, pids) = _name(wanted), _limits(wanted)
        # Generated here, so that builds know the host key in advance, and nothing else can pose as the machine at the
        # first connection.
        private, public = guest.host_key()
        own = {KEY_LABEL: public, NUMBER_LABEL: number, "headgate_cores": cores, "headgate_ram": ram}
        labels = [f"--label={key}={value}" for key, value in {**wanted.tags, **own}.items()]
        files = min(FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        done = await self._engine.run(
            "create", f"--name={name}", f"--hostname={name[:63]}", f"--network={guest.network(number)}", *labels,
            # Separate user ids: root in one machine has no rights on this host or in other machines.
            f"--uidmap={guest.users(number)}", f"--gidmap={guest.users(number)}", "--pull=never",
            f"--cpus={cores}", f"--memory={ram}m", f"--memory-swap={ram}m", f"--pids-limit={pids}",
            f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={pids}:{pids}", "--cap-drop=net_raw,mknod",
            "--sysctl=net.ipv6.conf.all.disable_ipv6=1", f"--entrypoint={guest.SSHD[0]}", "--user=0",
            "--", image, *guest.SSHD[1:],
        )  # fmt: skip
        if done.status == 0:
            # Copied into the container before it starts, not mounted, so that it has access to no file of the host.
            archive = guest.ssh_archive(private, self._authorized)
            done = await self._engine.run("cp", "-", f"{name}:/", stdin=archive)
        if done.status == 0:
            done = await self._engine.run("start", name)
        if done.status:
            raise clouds.LaunchFailed(f"podman cannot make the container: {done.why}")

    async def _there(self, wanted: clouds.MachineSpec, name: str, found: Mapping[str, Any]) -> clouds.Made:
        status, labels = found["State"]["Status"], found["Config"]["Labels"] or {}
        if (
            labels.get(clouds.NODE_TAG) != wanted.tags[clouds.NODE_TAG]
            or labels.get(clouds.SYSTEM_TAG) != wanted.tags[clouds.SYSTEM_TAG]
        ):
            raise clouds.LaunchFailed(f"the container {name} exists, but is not Headgate's")
        if status != "running":
            last = (await self._engine.run("logs", "--tail", "3", name)).why
            raise clouds.LaunchFailed(f"the container is {status}; the last output of its ssh server: {last or 'none'}")
        # podman gives the first address of the subnet to the bridge, and the second one to the only container.
        address = str(guest.subnet(int(labels[NUMBER_LABEL]))[2])
        host = {
            "ansible_connection": "ssh",
            "ansible_host": address,
            "ansible_port": 22,
            "ansible_user": str(wanted.image.get("username") or "root"),
            clouds.HOST_KEY_VARIABLE: labels[KEY_LABEL],
        }
        return clouds.Made(
            name, {}, host, {"interface_ip": address, "private_ipv4": address, "host_id": os.uname().nodename}
        )


def _name(wanted: clouds.MachineSpec) -> str:
    """Return the container's name. Raise LaunchFailed."""
    if not _NODE.fullmatch(wanted.node):
        raise clouds.LaunchFailed(f"the name of the node {wanted.node!r} is not valid for a container")
    return f"headgate-{wanted.node}"


def _image(wanted: clouds.MachineSpec) -> str:
    """Return the image's name. Raise LaunchFailed."""
    image = wanted.image.get("image-id")
    if not isinstance(image, str) or not image:
        raise clouds.LaunchFailed(
            f"the image {wanted.image.get('name')} needs an image-id: the image that podman fetches"
        )
    if not _IMAGE.fullmatch(image):
        raise clouds.LaunchFailed(
            f"the image-id {image!r:.200} is not a name in a registry; files of this machine cannot be used"
        )
    return image


def _limits(wanted: clouds.MachineSpec) -> tuple[float, int, int]:
    """Return the limits on cores, memory (MiB) and processes.  Raise LaunchFailed for invalid ones."""
    limits = [wanted.flavor.get(key, usual) for key, usual in (("cores", CORES), ("ram", RAM_MIB), ("pids", PIDS))]
    with suppress(TypeError, ValueError):
        cores, ram, pids = float(limits[0]), int(limits[1]), int(limits[2])
        if cores > 0 and ram >= 16 and pids >= 16:
            return cores, ram, pids
    raise clouds.LaunchFailed(f"the flavor {wanted.flavor.get('name')} has invalid limits: {limits}")


def connect(given: CloudDriverOptions) -> Podman:
    """Connect to podman. Raise UserError if this process cannot run machines."""
    options = given.options
    if os.geteuid() != 0:
        raise UserError("this launcher must run as root: only root can make containers that work as machines")
    file = given.directory / options["authorized_keys"]
    try:
        authorized = bytes_of(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        deny = read_nets(options.get("deny", ""))
    except ValueError as error:
        raise UserError(f"deny: {error}") from error
    runtime = ["--runtime", options["runtime"]] if options.get("runtime") else []
    # By default, podman requests control groups from systemd, which does not run everywhere.
    groups = [] if Path("/run/systemd/system").exists() else ["--cgroup-manager", "cgroupfs"]
    return Podman(["podman", *runtime, *groups], authorized, deny)
