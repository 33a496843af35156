"""Wrap a command for a container, and offer the container of a build as a host of its playbooks.

Bubblewrap runs in a user namespace in which the root user of the container has an id that nothing else on this machine
uses.  Processes, network, control group, filter of system calls and limits are like those of every job.

If the container is a host of playbooks, a command of ours holds its namespaces, and its supervisor starts what Ansible
requests at a socket, see `confinement.server`.  Such commands have the network, limits, filter and capabilities of
untrusted programs in the container, regardless of who wrote the playbook.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.adapters.process.bounds import machine
from headgate.adapters.process.confinement import boxes
from headgate.adapters.process.confinement.server import HOLD
from headgate.adapters.process.containers.store import NUMBERS, Image
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.sandbox import Confined, Network, Sandbox, SandboxInputs
from headgate.base.tasks import end

# Without SYS_ADMIN, MKNOD, NET_ADMIN, NET_RAW and SYS_PTRACE, there are no mounts, devices, raw packets, network rules
# or tracing.
_NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18,
    "SETFCAP": 31,
}  # fmt: skip
CAPABILITIES = tuple(_NUMBERS)
"""Capabilities of the container's root over the container's own resources, as needed to install packages."""
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path for programs if the image sets none."""
MEMORY = ("/tmp",)  # noqa: S108 - the container's own
DIRECTORIES = ("/proc", "/dev", "/sys", "/etc")
"""Directories that are mount points or get files."""
CONNECTION = "headgate_container"
"""Name of the connection plugin in Ansible."""
HOST_NAME = "container"
"""Name of the host if the job's nodeset names none."""
# The playbook must reach its limit first, so that the log names the playbook.
LONGER_S = 60.0
"""How much longer than the playbook the container may live."""


@dataclass(frozen=True, slots=True)
class Boxed:
    """Hold a command line, and its box."""

    confined: Confined
    box: dict[str, Any]  # JSON, see boxes


@dataclass(slots=True)
class Container:
    """Represent the container of a build."""

    image: Image
    place: Path
    """Directory of the build for changes to the container's root file system; they last as long as the build."""

    def replace_image(self, image: Image) -> None:
        """Run on another image: a layer on the first one."""
        self.image = image

    @property
    def owner(self) -> int:
        """Return the user id of the container's root on this machine."""
        return NUMBERS.first

    def prepare(self) -> None:
        """Prepare the container. Raise OSError."""
        for name in ("upper", "scratch"):
            (self.place / name).mkdir(parents=True, exist_ok=True)
        # The owner and mode of this directory become those of the container's root directory.
        os.chown(self.place / "upper", self.owner, self.owner)
        (self.place / "upper").chmod(0o755)


def boxed(
    sandbox: Sandbox, container: Container, words: Sequence[str], network: Network, *, writable: Sequence[Path],
    readable: Sequence[Path], directory: Path, environment: Mapping[str, str],
) -> Boxed:  # fmt: skip
    """Return the command line and the box of a command in a container, with the variables of `environment`. Its network
    is the one in which it is started."""
    # Use the paths of untrusted jobs even for a trusted command: an image is as untrusted as a change.
    inputs, paths, image = SandboxInputs(), sandbox.paths[False], container.image
    arguments = [
        *("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(("--unshare-net",) if network.cut else ()),
        *("--cap-drop", "ALL"),
        *(arg for name in CAPABILITIES for arg in ("--cap-add", f"CAP_{name}")),
        # This is the root file system that the supervisor has mounted. /proc shows the process namespace, and so only
        # this build.
        *("--bind", boxes.PLACE, "/", "--dev", "/dev", "--proc", "/proc", *machine.kernel()),
        # The /dev/shm in bubblewrap's /dev has no size limit.
        *("--size", str(sandbox.tmp_size_bytes), "--perms", "1777", "--tmpfs", "/dev/shm"),  # noqa: S108 - the container's own
        *("--remount-ro", "/dev", "--chdir", str(directory)),
        *(arg for pair in _variables(image, environment) for arg in ("--setenv", *pair)),
    ]
    if machine.filter_known():
        arguments += ["--seccomp", str(inputs.add(machine.call_filter(nesting=paths.nesting)))]
    box = boxes.box_of(
        store=str(image.store), layers=image.layers, upper=str(container.place / "upper"),
        scratch=str(container.place / "scratch"), files=_files(network), directories=DIRECTORIES, memory=MEMORY,
        memory_size_bytes=sandbox.tmp_size_bytes, owner=container.owner,
        binds=[
            *_bound((*map(Path, machine.PROCESSORS), *paths.readable), writable=False),
            *_bound(paths.writable, writable=True),
            # Covers come after the operator's paths, which they hide, and before the build's own, which may be below.
            *_covers(sandbox.hidden, (*paths.readable, *paths.writable)),
            *_bound(readable, writable=False),
            *_bound(writable, writable=True),
        ],
    )  # fmt: skip
    return Boxed(Confined([sandbox.program, *arguments, "--", *words], inputs.texts), box)


def served(sandbox: Sandbox, container: Container, place: Path, owner: int) -> dict[str, Any]:
    """Return the request for `confinement.server`, by which other commands start in a container with the rights of its
    programs. JSON."""
    nesting = sandbox.paths[False].nesting
    return {
        "directory": str(place),
        "owner": owner,
        "capabilities": sum(1 << number for number in _NUMBERS.values()),
        "filter": base64.b64encode(machine.call_filter(nesting=nesting) if machine.filter_known() else b"").decode(),
        "environment": {"LANG": "C.UTF-8", **dict(_variables(container.image, {}))},
    }


def _variables(image: Image, job_variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the image adds to those of a job. Bubblewrap sets them only for the command, so that no
    program outside gets them."""
    yield from ((name, value) for name, value in image.environment.items() if name not in job_variables)
    yield "PATH", image.environment.get("PATH", SEARCHED)


def _files(network: Network) -> dict[str, str]:
    files = {"/etc/hosts": machine.HOSTS.encode(), "/etc/resolv.conf": b"", **network.files}
    return {path: text.decode(errors="replace") for path, text in files.items()}


def _covers(hidden: Iterable[Path], visible: Sequence[Path]) -> Iterator[tuple[str, str, bool]]:
    """Yield a bind that hides each of the `hidden` paths that would be visible."""
    for path in hidden:
        if any(path.is_relative_to(seen) for seen in visible) and path.exists():
            yield "" if path.is_dir() else "/dev/null", str(path), False


def _bound(paths: Iterable[Path], *, writable: bool) -> Iterator[tuple[str, str, bool]]:
    for path in paths:
        if path.exists():
            yield str(path), str(path), writable


def host() -> dict[str, Any]:
    """Return Ansible's variables for the container. JSON."""
    return {"ansible_connection": CONNECTION, "ansible_user": "root"}


def with_container(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the hosts, with the container instead of this machine."""
    is_local = {name: found.get("ansible_connection") == "local" for name, found in hosts.items()}
    return {name: host() if is_local[name] else dict(found) for name, found in hosts.items()} or {HOST_NAME: host()}


@dataclass(frozen=True, slots=True)
class BuildNode:
    """Make the container of a build available as a host of its playbooks."""

    sandbox: Sandbox
    container: Container
    place: Path
    """Directory of the socket."""
    owner: int
    """User who may connect."""
    exposed: Sequence[Path]
    """Paths that are read-only in the container."""
    network: Network

    @asynccontextmanager
    async def running(
        self, start: Callable[..., Awaitable[int | str]], log: JobLog, cancel: asyncio.Event, timeout_s: float
    ) -> AsyncIterator[asyncio.Event]:
        """Run the container for the context; `start` is `ProcessKeeper.run` with the arguments that all commands of the
        build share. Yield an event that is set when the playbook must end because it was cancelled or the container has
        ended. Raise Exceeded, OSError."""
        found = boxed(
            self.sandbox, self.container, HOLD, self.network, writable=(), readable=self.exposed, directory=Path("/"),
            environment={},
        )  # fmt: skip
        # Only `enough` ends the container: its playbook must end first.
        over, enough = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            try:
                status = await start(
                    found.confined, environment={}, directory=Path("/"), cancel=enough, box=found.box,
                    timeout_s=timeout_s + LONGER_S,
                    serve=served(self.sandbox, self.container, self.place, self.owner),
                )  # fmt: skip
            # A playbook without its container would wait for its connection until its own time limit.
            except BaseException:
                over.set()
                raise
            if not enough.is_set():
                log.say(f"The container ended before the playbook: its {HOLD[0]} ended with {status}")

        async def cancelled() -> None:
            await cancel.wait()
            over.set()

        holding, waiting = asyncio.ensure_future(held()), asyncio.ensure_future(cancelled())
        try:
            yield over
            enough.set()
            # If the container reached a limit, this raises Exceeded instead of the playbook's own failure.
            await holding
        finally:
            await end(holding, waiting)
