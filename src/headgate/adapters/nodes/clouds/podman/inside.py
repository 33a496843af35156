"""Make a machine of a container: an ssh server whose key is known before it begins, and who may log in."""

from __future__ import annotations

import io
import tarfile

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

PLACE = "etc/headgate-machine"
COMMAND = ("/usr/sbin/sshd", "-D", "-e", "-f", f"/{PLACE}/sshd_config")
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


def host_key() -> tuple[bytes, str]:
    """Return a new key, and its public half in the format of `known_hosts`."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def archive(private: bytes, authorized: bytes) -> bytes:
    """Return a tar archive for the root of the container."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        # sshd does not start without `/run/sshd`, which a service manager makes elsewhere.
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
