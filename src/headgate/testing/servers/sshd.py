"""Run ssh servers as this user, on loopback.  Needs Debian's package `openssh-server`."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.testing.servers.program import Program, free_ports

SBIN = "/usr/sbin/sshd"
KEY_EXCHANGE = "curve25519-sha256"
"""The default withstands quantum computers, and takes most of the processor time of a short connection."""


def program() -> str | None:
    return shutil.which("sshd") or (SBIN if Path(SBIN).exists() else None)


class Lab:
    """Provide machines that are all this machine; `key` logs in to them."""

    def __init__(self, root: Path) -> None:
        self.root, self.key = root, root / "key"
        root.mkdir()
        for key in ("key", "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / key)], check=True)

    @property
    def host_key(self) -> str:
        """Return the host key of all of them."""
        return " ".join((self.root / "host.pub").read_text().split()[:2])

    @contextmanager
    def server(self, **options: str) -> Iterator[int]:
        """Start a server, and provide its port. `options` are further lines of sshd_config."""
        (port,) = free_ports(1)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where it wants to live when it is root's
        settings = {
            "Port": port, "ListenAddress": "127.0.0.1", "HostKey": self.root / "host", "StrictModes": "no",
            "AuthorizedKeysFile": self.root / "key.pub", "UsePAM": "no", "PidFile": "none",
            "PasswordAuthentication": "no", "PermitRootLogin": "prohibit-password", "Subsystem": "sftp internal-sftp",
            "KexAlgorithms": KEY_EXCHANGE, **options,
        }  # fmt: skip
        directory = self.root / str(port)
        directory.mkdir()
        config = directory / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        running = Program([program() or SBIN, "-D", "-e", "-f", str(config)], directory)
        running.start()
        try:
            running.until(lambda: _listens(port))
            yield port
        finally:
            running.kill()

    def properties(self, port: int) -> dict[str, str]:
        """Return the properties of an inventory machine that is reachable at this port."""
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": str(port),
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_python_interpreter": sys.executable,
        }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
