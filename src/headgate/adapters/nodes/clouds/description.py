"""Read what drivers of clouds need of a node that is wanted, and describe one that is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.ports.cloud import LaunchFailed, MachineSpec


def key(wanted: MachineSpec, name: str) -> Any:
    """Return what the label says, else its flavor, else its image; None: nobody says it."""
    for kind in (wanted.label, wanted.flavor, wanted.image):
        if kind.get(name) is not None:
            return kind[name]
    return None


def number(wanted: MachineSpec, name: str) -> int | None:
    """Return a number that is said.  Raise LaunchFailed for what is none."""
    value = key(wanted, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise LaunchFailed(f"{name}: a whole number is meant, not {value!r:.80}")
    return value


def texts(wanted: MachineSpec, name: str) -> list[str]:
    """Return a list that is said; one text is a list of one.  Raise LaunchFailed for what is none."""
    value = key(wanted, name)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise LaunchFailed(f"{name}: a list of texts is meant")
    return list(value)


def host(image: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Return Ansible's variables of a machine at an address."""
    connection = image.get("connection-type") or "ssh"
    found: dict[str, Any] = {
        "ansible_host": address,
        "ansible_port": int(image.get("connection-port") or (5986 if connection == "winrm" else 22)),
        "ansible_connection": connection,
    }
    for name, variable in (("username", "ansible_user"), ("shell-type", "ansible_shell_type")):
        if image.get(name):
            found[variable] = image[name]
    return found


def addresses(public_ipv4: str, private_ipv4: str, public_ipv6: str, prefer_public: bool) -> dict[str, str]:
    """Return what jobs see as `nodepool` of its addresses; `interface_ip` is how it is reached."""
    reached = (public_ipv4 or public_ipv6) if prefer_public else ""
    return {
        "interface_ip": reached or private_ipv4 or public_ipv4 or public_ipv6,
        "public_ipv4": public_ipv4,
        "private_ipv4": private_ipv4 or public_ipv4,
        "public_ipv6": public_ipv6,
        "private_ipv6": "",
    }
