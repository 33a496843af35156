"""Define what makes a container a machine: addresses, users, firewall rules, and an ssh server."""

from __future__ import annotations

import io
import ipaddress
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from headgate.adapters.blocklist import DeniedNetworks, Net

MACHINES = ipaddress.IPv4Network("198.19.240.0/20")
"""Addresses of machines: part of the range that builds must not reach, the part of the last of 256 executors on one
host."""
COUNT = 1_024
"""Limit on the machines; each has a network of four addresses."""
FIRST_USER, USERS = 1_901_000_000, 65_536
"""First user id of the first machine on this host, and number of ids per machine."""
NAME = "hg-machine-"
TABLE = "headgate_machines"
LEASES = Path("/var/lib/cni/networks")
"""Podman's directory of used addresses, by network; versions without CNI have no such directory."""
PLACE = "etc/headgate-machine"
"""Directory in the container with the files of its ssh server."""
SSHD = ("/usr/sbin/sshd", "-D", "-e", "-f", f"/{PLACE}/sshd_config")
_CONFIG = f"""Port 22
HostKey /{PLACE}/host_key
AuthorizedKeysFile /{PLACE}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""


def network(number: int) -> str:
    """Return the name of a machine's network."""
    return f"{NAME}{number}"


def subnet(number: int) -> ipaddress.IPv4Network:
    """Return the addresses of a machine's network."""
    return ipaddress.IPv4Network((int(MACHINES.network_address) + 4 * number, 30))


def users(number: int) -> str:
    """Return the mapping of a machine's user ids: no two machines share any, and root in a machine has no rights on
    this host."""
    return f"0:{FIRST_USER + number * USERS}:{USERS}"


def rules(deny: Iterable[Net]) -> str:
    """Return the rules for nft: machines reach neither this host nor each other nor denied addresses, and only this
    host can open connections to them."""
    return "\n".join(
        [
            # nft applies the file atomically, so no packet passes between the old rules and the new ones. `add` comes
            # first, because deleting a missing table is an error.
            f"add table inet {TABLE}",
            f"delete table inet {TABLE}",
            f"table inet {TABLE} {{",
            *_table(DeniedNetworks.of(deny)),
            "}",
        ]
    )


def _table(denied: DeniedNetworks) -> Iterator[str]:
    yield from denied.sets()
    # A drop is final, whatever other tables accept before or after it. Answers to the executors' connections pass.
    yield "chain input { type filter hook input priority filter - 5;"
    yield f"ip saddr {MACHINES} ct state established,related accept"
    yield f"ip saddr {MACHINES} drop"
    yield "}"
    yield "chain forward { type filter hook forward priority filter - 5;"
    yield f"ip daddr {MACHINES} ct state established,related accept"
    # This also drops connections from one machine to another, because each has its own network.
    yield f"ip daddr {MACHINES} drop"
    yield f"ip saddr {MACHINES} ip daddr @denied4 drop"
    yield "}"


def host_key() -> tuple[bytes, str]:
    """Return a new private host key, and its public key in the format of `known_hosts`."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def ssh_archive(private: bytes, authorized: bytes) -> bytes:
    """Return a tar archive with the files of the ssh server, for the root directory of the container."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        # sshd does not start without `/run/sshd`, which usually a service manager creates.
        for name in (PLACE, "run/sshd"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        # sshd refuses a host key that others can read.
        files = {"host_key": (0o600, private), "authorized_keys": (0o644, authorized)}
        for name, (mode, content) in {**files, "sshd_config": (0o644, _CONFIG.encode())}.items():
            info = tarfile.TarInfo(f"{PLACE}/{name}")
            info.mode, info.size = mode, len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()
