"""Provide a separate podman with an image that has an ssh server: the needed files of this machine, and busybox."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.nodes.clouds.podman import guest
from headgate.adapters.nodes.clouds.podman.driver import Podman
from headgate.ports.clouds import HOST_KEY_VARIABLE, NODE_TAG, SYSTEM_TAG, MachineSpec, Made
from headgate.testing.servers.images import archive, shell
from headgate.testing.servers.kubernetes.containers import ContainerEngine
from headgate.testing.servers.sshd import program

IMAGE = "localhost/machine:1"
PROGRAMS = ("podman", "runc", "nft", "ssh")
NEEDS = pytest.mark.skipif(
    os.geteuid() != 0 or program() is None or not all(map(shutil.which, PROGRAMS)),
    reason="needs root, and podman, runc, nft and ssh with its server; make test installs them",
)
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n"


@dataclass(frozen=True, slots=True)
class Site:
    """Settings of the driver."""

    words: list[str]
    key: Path
    """The key that opens the machines."""

    def driver(self, **more: Any) -> Podman:
        """Return a driver without any state."""
        return Podman(self.words, self.key.with_suffix(".pub").read_bytes(), **more)

    @staticmethod
    def opens() -> None:
        """Remove the rules that keep machines from reaching each other."""
        subprocess.run(["nft", "delete", "table", "inet", guest.TABLE], check=True)

    def podman(self, *words: str) -> str:
        """Return podman's output."""
        return subprocess.run([*self.words, *words], capture_output=True, text=True, check=True).stdout

    async def ssh(self, node: Made, command: str) -> tuple[int, str]:
        """Run a command on a machine with its key; return its exit status and output."""
        assert node.host is not None
        address = node.host["ansible_host"]
        known = self.key.with_name("known_hosts")
        known.write_text(f"{address} {node.host[HOST_KEY_VARIABLE]}\n")
        options = ["-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]
        words = ["ssh", *options, "-i", str(self.key), f"{node.host['ansible_user']}@{address}", command]
        process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        out, wrong = await process.communicate()
        return process.returncode or 0, (out + wrong).decode()


@contextmanager
def site() -> Iterator[Site]:
    """Provide it and remove everything afterwards. One at a time on this machine, because all have the same
    addresses."""
    engine, place = ContainerEngine(), Path(tempfile.mkdtemp(prefix="hg-site-"))
    with open(Path(tempfile.gettempdir()) / "headgate-machines.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = Site([*engine.words, "--network-config-dir", str(place / "networks")], place / "key")
        try:
            (place / "networks").mkdir()
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(found.key)], check=True)
            engine.load(
                IMAGE, archive({**shell(**{"etc__passwd": (0o644, PASSWD)}), "root/.profile": b"", **_server()})
            )
            yield found
        finally:
            found.podman("rm", "-af", "-t", "0")
            for name in found.podman("network", "ls", "--format", "{{.Name}}").split():
                if name.startswith(guest.NAME):
                    found.podman("network", "rm", name)
                    shutil.rmtree(f"/var/lib/cni/networks/{name}", ignore_errors=True)
            subprocess.run(["nft", "delete", "table", "inet", guest.TABLE], capture_output=True, check=False)
            engine.close()
            shutil.rmtree(place)


def _server() -> dict[str, bytes]:
    """Return sshd and the libraries that it needs."""
    sshd = program() or ""
    output = subprocess.run(["ldd", sshd], capture_output=True, text=True, check=True).stdout
    files = [word for line in output.splitlines() for word in line.split() if word.startswith("/")]
    return {"usr/sbin/sshd": Path(sshd).read_bytes(), **{file.lstrip("/"): Path(file).read_bytes() for file in files}}


def machine(node: str = "n1", image: str = IMAGE, **flavor: Any) -> MachineSpec:
    """Return a node."""
    limits = {"name": "small", "ram": 128, "pids": 100, **flavor}
    tags = {SYSTEM_TAG: "9f0e", NODE_TAG: node, "team": "blue"}
    return MachineSpec(node, {"name": "debian"}, {"name": "debian", "image-id": image}, limits, {"name": "here"}, tags)
