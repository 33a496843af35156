"""Wrap a command for a container: in the same bubblewrap, on the file system of an image.

Bubblewrap runs in a user namespace in which the root user of the container is one of nobody else's numbers.  Processes,
network, control group, filter of system calls and limits are those of every job.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.adapters.process.bounds import machine, seccomp
from headgate.adapters.process.confinement import boxes
from headgate.adapters.process.confinement.spaces import Network
from headgate.adapters.process.containers.store import NUMBERS, Image
from headgate.adapters.process.sandbox import Confined, Sandbox, SandboxInputs

# No SYS_ADMIN, MKNOD, NET_ADMIN, NET_RAW or SYS_PTRACE: no mounts, devices, raw packets, or rules of the network.
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


@dataclass(frozen=True, slots=True)
class Boxed:
    """Hold a command as it is started, and its box."""

    confined: Confined
    box: dict[str, Any]  # JSON, see boxes


@dataclass(slots=True)
class Container:
    """Represent the container of a build."""

    image: Image
    place: Path
    """Directory of the build for changes to the root file system, which last as long as the build."""

    @property
    def owner(self) -> int:
        """Return the number of its root on this machine."""
        return NUMBERS.first

    def prepare(self) -> None:
        """Prepare the container. Raise OSError."""
        for name in ("upper", "scratch"):
            (self.place / name).mkdir(parents=True, exist_ok=True)
        # Its owner and mode become those of the container's root directory.
        os.chown(self.place / "upper", self.owner, self.owner)
        (self.place / "upper").chmod(0o755)


def boxed(
    sandbox: Sandbox, container: Container, words: Sequence[str], network: Network, *, writable: Sequence[Path],
    readable: Sequence[Path], directory: Path, environment: Mapping[str, str],
) -> Boxed:  # fmt: skip
    """Return the command line and the box of a command in a container, with the variables of `environment`; its network
    is the one that it is started in."""
    # Always the paths of untrusted jobs, whoever wrote the command: an image is as untrusted as a change.
    inputs, paths, image = SandboxInputs(), sandbox.paths[False], container.image
    arguments = [
        *("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(("--unshare-net",) if network.cut else ()),
        *("--cap-drop", "ALL"),
        *(arg for name in CAPABILITIES for arg in ("--cap-add", f"CAP_{name}")),
        # The root file system that the supervisor has mounted. /proc shows the process namespace, and so only this
        # build.
        *("--bind", boxes.PLACE, "/", "--dev", "/dev", "--proc", "/proc", *machine.kernel()),
        # bubblewrap's /dev comes with a /dev/shm that has no limit of its own.
        *("--size", str(sandbox.tmp_size_bytes), "--perms", "1777", "--tmpfs", "/dev/shm"),  # noqa: S108 - the container's own
        *("--remount-ro", "/dev", "--chdir", str(directory)),
        *(arg for pair in _variables(image, environment) for arg in ("--setenv", *pair)),
    ]
    if seccomp.known():
        arguments += ["--seccomp", str(inputs.add(seccomp.program(nesting=paths.nesting)))]
    box = boxes.box_of(
        store=str(image.store), layers=image.layers, upper=str(container.place / "upper"),
        scratch=str(container.place / "scratch"), files=_files(network), directories=DIRECTORIES, memory=MEMORY,
        memory_size_bytes=sandbox.tmp_size_bytes, owner=container.owner,
        binds=[
            *_bound((*map(Path, machine.PROCESSORS), *paths.readable), writable=False),
            *_bound(paths.writable, writable=True),
            # Between the operator's paths, which it covers, and the build's own, which may lie beneath.
            *_covers(sandbox.hidden, (*paths.readable, *paths.writable)),
            *_bound(readable, writable=False),
            *_bound(writable, writable=True),
        ],
    )  # fmt: skip
    return Boxed(Confined([sandbox.program, *arguments, "--", *words], inputs.texts), box)


def served(sandbox: Sandbox, container: Container, place: Path, owner: int) -> dict[str, Any]:
    """Return how other commands start in a container, see `server`: with the rights of its programs. JSON."""
    nesting = sandbox.paths[False].nesting
    return {
        "directory": str(place),
        "owner": owner,
        "capabilities": sum(1 << number for number in _NUMBERS.values()),
        "filter": base64.b64encode(seccomp.program(nesting=nesting) if seccomp.known() else b"").decode(),
        "environment": {"LANG": "C.UTF-8", **dict(_variables(container.image, {}))},
    }


def _variables(image: Image, job_variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the image adds to those of a job: bubblewrap sets them for the command alone, so that no
    program outside sees them."""
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
