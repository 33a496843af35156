"""Switch the forwarding of packets on this machine: on for networks of builds, off again by the last executor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_IPV6 = Path("/proc/sys/net/ipv6/conf")
ADDRESSES6 = Path("/proc/net/if_inet6")
_GLOBAL = "00"
"""Scope in that file of addresses that are reachable from outside."""
OURS = "hg"
"""Prefix of the names of the network interfaces of builds."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Switch the forwarding of one IP version."""

    name: str
    """Name of the switch, for people."""
    switch: Path
    guard: str
    """Name of the chain in whose table this executor notes that forwarding was off and is now on for builds alone."""
    family: str
    """Name of the family in nft."""

    @property
    def on(self) -> bool:
        return self.switch.exists() and self.switch.read_text().strip() != "0"

    def turn(self, *, on: bool) -> None:
        """Raise OSError."""
        try:
            self.switch.write_text("1" if on else "0")
        except OSError as error:
            raise OSError(f"{self.name} is {0 if on else 1} and cannot be changed here ({error.strerror})") from error


FOUR = Forwarding("net.ipv4.ip_forward", Path("/proc/sys/net/ipv4/ip_forward"), "guard", "ipv4")
SIX = Forwarding("net.ipv6.conf.all.forwarding", _IPV6 / "all/forwarding", "guard6", "ipv6")


def has_six(text: str) -> bool:
    """Tell whether the machine has an IPv6 address that is reachable from outside; `text` is /proc/net/if_inet6."""
    found = (line.split() for line in text.splitlines())
    return any(len(line) == 6 and line[3] == _GLOBAL and not line[5].startswith((OURS, "lo")) for line in found)


def keep_listening() -> list[str]:
    """Let interfaces accept router advertisements although the machine forwards; return their names. A forwarding
    machine would otherwise lose its addresses and its default route."""
    names = []
    for place in sorted(_IPV6.iterdir()):
        # Written for each interface: "all" and "default" do not change interfaces that exist.
        if place.name in ("all", "default", "lo") or place.name.startswith(OURS):
            continue
        with contextlib.suppress(OSError):
            if (place / "accept_ra").read_text().strip() == "1" and (place / "forwarding").read_text().strip() == "0":
                # 2: accept router advertisements even when forwarding.
                (place / "accept_ra").write_text("2")
                names.append(place.name)
    return names


def listen_as_before(names: Iterable[str]) -> None:
    """Undo `keep_listening`, once the machine does not forward any more."""
    for name in names:
        with contextlib.suppress(OSError):
            # An administrator may have changed it since.
            if (_IPV6 / name / "accept_ra").read_text().strip() == "2":
                (_IPV6 / name / "accept_ra").write_text("1")
