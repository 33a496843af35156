"""Read the properties of a requested node for cloud drivers, and describe a node that was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.ports.clouds import LaunchFailed, MachineSpec


def key(wanted: MachineSpec, name: str) -> Any:
    """Return the value that the label sets, or else its flavor, or else its image; None if none of them sets it."""
    for kind in (wanted.label, wanted.flavor, wanted.image):
        if kind.get(name) is not None:
            return kind[name]
    return None


def number(wanted: MachineSpec, name: str) -> int | None:
    """Return an integer from the settings, or None if it is not set. Raise LaunchFailed for any other value."""
    value = key(wanted, name)
    if value is None:
        return None
    # A bool is an int in Python, so without this check `volume-size: yes` would mean 1.
    if isinstance(value, bool) or not isinstance(value, int):
        raise LaunchFailed(f"{name} must be a whole number, not {value!r:.80}")
    return value


def texts(wanted: MachineSpec, name: str) -> list[str]:
    """Return a list of strings from the settings; a single string counts as a list. Raise LaunchFailed for any other
    value."""
    value = key(wanted, name)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise LaunchFailed(f"{name} must be a list of strings")
    return list(value)


def host(image: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Return the Ansible variables of a machine at an address."""
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
    """Return the addresses for the variable `nodepool` of jobs; `interface_ip` is the one that Headgate uses."""
    reached = (public_ipv4 or public_ipv6) if prefer_public else ""
    return {
        "interface_ip": reached or private_ipv4 or public_ipv4 or public_ipv6,
        "public_ipv4": public_ipv4,
        "private_ipv4": private_ipv4 or public_ipv4,
        "public_ipv6": public_ipv6,
        "private_ipv6": "",
    }
