"""Make containers of podman that are machines: with their own ssh server, users, addresses and limits.

They are on the machine that this process is on, and reached from there alone: so are the executors that use them.
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
from headgate.base.tasks import end, run_to_end
from headgate.ports import clouds

FETCH_MAX_S = 1_800.0
CORES, RAM_MIB, PIDS = 1.0, 2_048, 4_096
"""Resources of a machine whose flavor does not set them."""
FILES_MAX = 65_536
KEY_LABEL, NUMBER_LABEL = "headgate_host_key", "headgate_number"
CONTAINER, NETWORK = "container", "network"
_IMAGE = re.compile(
    r"(?!(?:dir|docker|oci|ostree|sif):)[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+/)?[A-Za-z0-9._/-]*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@sha256:[0-9a-f]{64})?"
)
"""Name of an image in a registry, or of a local one; podman itself would also accept paths."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Podman:
    """See `ports.clouds.Cloud`."""

    def __init__(self, words: Sequence[str], authorized: bytes, deny: Sequence[Net] = ()) -> None:
        """Take the command line of podman (`words`), the keys that may log in, and the networks that machines do not
        reach."""
        self._engine, self._authorized, self._deny = Engine(words), authorized, tuple(deny)
        self.images = PodmanImages(self._engine)
        self._turn = asyncio.Lock()
        self._guarded = False
        self._fetching: dict[str, asyncio.Task[str]] = {}
        """Image -> the task that fetches it and returns the error, empty if there is none."""

    async def close(self) -> None:
        """Stop fetching images; machines stay."""
        await end(*self._fetching.values())
        await self.images.close()

    async def uses(self, wanted: clouds.MachineSpec) -> clouds.Amounts:
        """Return the resources of the flavor."""
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
        # podman has no option to ignore a missing network, and a container that just ended is busy for a moment:
        # the caller checks whether it is gone, and tries again. "no such file" is about storage that is broken.
        why = done.why.lower()
        passing = ("not found", "no such container", "no such network", "resource busy")
        if done.status and not any(words in why for words in passing):
            raise clouds.LaunchFailed(f"podman does not remove {resource.id}: {done.why}")

    async def remove(self, wanted: clouds.MachineSpec, state: clouds.State) -> bool:
        """Remove the container first, since a network that is in use cannot be removed. Raise LaunchFailed."""
        for kind in (CONTAINER, NETWORK):
            for one in await self._of(wanted, kind):
                await self.delete(wanted.provider, one)
        return not [*await self._of(wanted, CONTAINER), *await self._of(wanted, NETWORK)]

    async def _of(self, wanted: clouds.MachineSpec, kind: str) -> list[clouds.Resource]:
        tags = {(tag, wanted.tags[tag]) for tag in (clouds.SYSTEM_TAG, clouds.NODE_TAG)}
        return [one for one in await self.resources(wanted.provider) if one.kind == kind and tags <= one.tags.items()]

    async def advance(self, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending | clouds.Made:
        """Fetch the image, then make network and container, then start it."""
        name, image = _name(wanted), _image(wanted)
        _limits(wanted)
        found = await self._engine.inspected(name)
        if found is not None and found["State"]["Status"] in ("created", "configured", "initialized"):
            await self._engine.run("rm", "-f", "-v", "-i", name)  # left by an earlier attempt
            found = None
        if found is None:
            if await self._lacks(image):
                return clouds.MachinePending({}, f"the image {image} is fetched")
            async with self._turn:
                await self._guard()
                await self._make(wanted, image, await self._number(wanted))
            found = await self._engine.inspected(name)
        if found is None:
            raise clouds.LaunchFailed(f"the container {name} is gone")
        return await self._there(wanted, name, found)

    async def _lacks(self, image: str) -> bool:
        """Begin to fetch a missing image. Raise LaunchFailed."""
        task = self._fetching.get(image)
        if task is not None and task.done():
            del self._fetching[image]
            if wrong := task.result():
                raise clouds.LaunchFailed(wrong)
        # Asked after each fetch too: somebody may have removed the image since.
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
        """Make the rules before the first machine."""
        if not self._guarded:
            done = await Engine(["nft"]).run("-f", "-", stdin=guest.rules(self._deny).encode())
            if done.status:
                raise clouds.LaunchFailed(f"this machine takes no rules for the network of machines: {done.why}")
            self._guarded = True

    async def _number(self, wanted: clouds.MachineSpec) -> int:
        """Make a network for it, unless it has one; a number belongs to the first process on this machine that takes
        it."""
        for one in await self._of(wanted, NETWORK):
            return int(one.id.removeprefix(guest.NAME))
        used = {str(one["name"]) for one in await self._engine.listed("network", "ls")}
        labels = [f"--label={tag}={wanted.tags[tag]}" for tag in wanted.tags]
        for number in range(guest.COUNT):
            if guest.network(number) not in used:
                subnet = f"--subnet={guest.subnet(number)}"
                # The name is the lock: podman refuses a second network of this name, also from another process.
                done = await self._engine.run("network", "create", subnet, *labels, guest.network(number))
                if done.status == 0:
                    # the lease of a machine that podman did not finish removing would leave the new one no address
                    await run_to_end(asyncio.to_thread(remove, guest.LEASES / guest.network(number)))
                    return number
                # Another process took the number since the list was read, or something else uses its addresses; the
                # next one may do.
                if "exists" not in done.why and "used" not in done.why:
                    raise clouds.LaunchFailed(f"podman makes no network: {done.why}")
        raise clouds.OverQuota(f"this machine has addresses for {guest.COUNT} machines, not for more")

    async def _make(self, wanted: clouds.MachineSpec, image: str, number: int) -> None:
        """Create the container. Raise LaunchFailed."""
        name, (cores, ram, pids) = _name(wanted), _limits(wanted)
        # Made here, so that builds know the host key without a first connection in which somebody could pose as the
        # machine.
        private, public = guest.host_key()
        own = {KEY_LABEL: public, NUMBER_LABEL: number, "headgate_cores": cores, "headgate_ram": ram}
        labels = [f"--label={key}={value}" for key, value in {**wanted.tags, **own}.items()]
        files = min(FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        done = await self._engine.run(
            "create", f"--name={name}", f"--hostname={name[:63]}", f"--network={guest.network(number)}", *labels,
            # Users of its own: root in one machine is nobody on this host and in the other machines.
            f"--uidmap={guest.users(number)}", f"--gidmap={guest.users(number)}", "--pull=never",
            f"--cpus={cores}", f"--memory={ram}m", f"--memory-swap={ram}m", f"--pids-limit={pids}",
            f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={pids}:{pids}", "--cap-drop=net_raw,mknod",
            "--sysctl=net.ipv6.conf.all.disable_ipv6=1", f"--entrypoint={guest.SSHD[0]}", "--user=0",
            "--", image, *guest.SSHD[1:],
        )  # fmt: skip
        if done.status == 0:
            # Copied into the container before it starts, not mounted: no file of the host is within its reach.
            archive = guest.ssh_archive(private, self._authorized)
            done = await self._engine.run("cp", "-", f"{name}:/", stdin=archive)
        if done.status == 0:
            done = await self._engine.run("start", name)
        if done.status:
            raise clouds.LaunchFailed(f"podman does not make it: {done.why}")

    async def _there(self, wanted: clouds.MachineSpec, name: str, found: Mapping[str, Any]) -> clouds.Made:
        status, labels = found["State"]["Status"], found["Config"]["Labels"] or {}
        if (
            labels.get(clouds.NODE_TAG) != wanted.tags[clouds.NODE_TAG]
            or labels.get(clouds.SYSTEM_TAG) != wanted.tags[clouds.SYSTEM_TAG]
        ):
            raise clouds.LaunchFailed(f"the container {name} is there, and is not Headgate's")
        if status != "running":
            last = (await self._engine.run("logs", "--tail", "3", name)).why
            raise clouds.LaunchFailed(f"the container is {status}, its ssh server said: {last or 'nothing'}")
        # podman gives the first address of the subnet to the bridge, and the next one to the only container.
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
        raise clouds.LaunchFailed(f"the node {wanted.node!r} has a name that no container can have")
    return f"headgate-{wanted.node}"


def _image(wanted: clouds.MachineSpec) -> str:
    """Return the image's name. Raise LaunchFailed."""
    image = wanted.image.get("image-id")
    if not isinstance(image, str) or not image:
        raise clouds.LaunchFailed(f"the image {wanted.image.get('name')} needs an image-id: what podman is to fetch")
    if not _IMAGE.fullmatch(image):
        raise clouds.LaunchFailed(
            f"the image-id {image!r:.200} is not a name in a registry: files of this machine are no images here"
        )
    return image


def _limits(wanted: clouds.MachineSpec) -> tuple[float, int, int]:
    """Return cores, memory and processes.  Raise LaunchFailed."""
    limits = [wanted.flavor.get(key, usual) for key, usual in (("cores", CORES), ("ram", RAM_MIB), ("pids", PIDS))]
    with suppress(TypeError, ValueError):
        cores, ram, pids = float(limits[0]), int(limits[1]), int(limits[2])
        if cores > 0 and ram >= 16 and pids >= 16:
            return cores, ram, pids
    raise clouds.LaunchFailed(f"the flavor {wanted.flavor.get('name')} has limits that no machine can have: {limits}")


def connect(given: CloudDriverOptions) -> Podman:
    """Connect to podman. Raise UserError if this process cannot run machines."""
    options = given.options
    if os.geteuid() != 0:
        raise UserError("only root has containers that are machines: this launcher is another user's")
    file = given.directory / options["authorized_keys"]
    try:
        authorized = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        deny = read_nets(options.get("deny", ""))
    except ValueError as error:
        raise UserError(f"deny: {error}") from error
    runtime = ["--runtime", options["runtime"]] if options.get("runtime") else []
    # podman asks systemd for control groups unless told otherwise, and systemd does not run everywhere.
    groups = [] if Path("/run/systemd/system").exists() else ["--cgroup-manager", "cgroupfs"]
    return Podman(["podman", *runtime, *groups], authorized, deny)
