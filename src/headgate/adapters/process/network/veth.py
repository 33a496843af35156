"""Make networks of builds if this process is root: with interfaces, rules and forwarding of this machine.

Each build has a pair of interfaces: one end is in its network, the other, named `hg<executor>-<build>`, is here.
Packets that arrive through it are routed, with an address of this machine as their source, unless they are for this
machine, for another build, or for a denied address.  The rules name interfaces by pattern, so they are made once, and
builds need no rules of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.adapters.blocklist import DeniedNetworks
from headgate.adapters.process.confinement import netlink
from headgate.adapters.process.confinement.users import NumberClaim, claim, claim_any
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.sandbox import NOWHERE_ELSE
from headgate.base.tasks import run_to_end

log = logging.getLogger("headgate.executor")

_IPV6 = Path("/proc/sys/net/ipv6/conf")
ADDRESSES6 = Path("/proc/net/if_inet6")
_GLOBAL = "00"
"""Scope of addresses in that file that are reachable from outside."""
OURS = "hg"
"""Prefix of the names of the network interfaces of builds."""
KIND = "network"
# Two addresses for each of 65,536 builds fill exactly 198.18.0.0/15, the range for benchmarks (RFC 2544), which is not
# routed anywhere. The IPv6 prefix is a local one that spells "Headg" after `fd`.
EXECUTORS_MAX, BUILDS_MAX = 256, 256
"""Maximum numbers of executors on one machine, and of concurrent builds of one executor. Each build has a pair of
addresses."""
FIRST4, FIRST6 = ipaddress.IPv4Address("198.18.0.0"), ipaddress.IPv6Address("fd48:6561:6467::")
FLOWS_MAX = 4_000
"""Maximum number of tracked connections of one build, since the kernel's limit is for the entire machine."""
INTERFACE = re.compile(r"hg(\d{1,3})-\d{1,3}")
ACCEPTING = "accepting"
"""Name of the set of interfaces that accept router advertisements, see `keep_listening`."""
WITHOUT_SIX = "Jobs reach the outside over IPv4 only: {}"
FIREWALL = (
    "A firewall of this machine drops forwarded packets (%s): builds may have no way out. Let it accept packets from "
    'and to interfaces named "hg*".'
)


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Switch the forwarding of one IP version."""

    name: str
    """Name of the switch, for messages."""
    switch: Path
    guard: str
    """Name of the chain with which this executor notes, in its table, that forwarding was off and is now on only for
    builds."""
    family: str
    """Name of the family in nft."""

    @property
    def on(self) -> bool:
        return self.switch.exists() and self.switch.read_text().strip() != "0"

    def turn(self, *, on: bool) -> None:
        """Turn the switch on or off. Raise OSError."""
        try:
            self.switch.write_text("1" if on else "0")
        except OSError as error:
            raise OSError(f"{self.name} is {0 if on else 1} and cannot be changed here ({error.strerror})") from error


FOUR = Forwarding("net.ipv4.ip_forward", Path("/proc/sys/net/ipv4/ip_forward"), "guard", "ipv4")
SIX = Forwarding("net.ipv6.conf.all.forwarding", _IPV6 / "all/forwarding", "guard6", "ipv6")


def has_six(text: str) -> bool:
    """Return whether the machine has an IPv6 address that is reachable from outside; `text` is /proc/net/if_inet6."""
    found = (line.split() for line in text.splitlines())
    return any(len(line) == 6 and line[3] == _GLOBAL and not line[5].startswith((OURS, "lo")) for line in found)


def keep_listening() -> list[str]:
    """Let interfaces accept router advertisements although the machine forwards; return their names. Otherwise a
    forwarding machine would lose its addresses and its default route."""
    names = []
    for place in sorted(_IPV6.iterdir()):
        # Write to each interface: "all" and "default" do not change existing interfaces.
        if place.name in ("all", "default", "lo") or place.name.startswith(OURS):
            continue
        with contextlib.suppress(OSError):
            if (place / "accept_ra").read_text().strip() == "1" and (place / "forwarding").read_text().strip() == "0":
                # 2: accept router advertisements even when forwarding.
                (place / "accept_ra").write_text("2")
                names.append(place.name)
    return names


def listen_as_before(names: Iterable[str]) -> None:
    """Undo `keep_listening`, once the machine no longer forwards."""
    for name in names:
        with contextlib.suppress(OSError):
            # Check first, since an administrator may have changed it in the meantime.
            if (_IPV6 / name / "accept_ra").read_text().strip() == "2":
                (_IPV6 / name / "accept_ra").write_text("1")


GUARDED = {FOUR: "guarded", SIX: "guarded6"}
"""Switch -> name of the set of interfaces that existed when forwarding was turned on."""


class Veth:
    """Manage pairs of interfaces: call `begin` before the first build, `close` after the last."""

    def __init__(self, keeper: ProcessKeeper, remove: Callable[[str], None] = netlink.remove) -> None:
        """Prepare nothing yet.  `remove` removes an interface of this machine."""
        self._keeper, self._remove_interface = keeper, remove
        self._claim: NumberClaim | None = None
        self._used: dict[int, int | None] = {}
        """Number of a build -> its network namespace; None while it is being made."""
        self._six = False
        self._denied: DeniedNetworks | None = None
        self.lacks: list[str] = []
        """Messages about what builds lack."""

    @property
    def _number(self) -> int:
        assert self._claim is not None, "requires `begin`"
        return self._claim.number

    @property
    def _table(self) -> str:
        return f"headgate{self._number}"

    async def begin(self, denied: DeniedNetworks) -> None:
        """Prepare the rules. Raise OSError if this machine does not permit that."""
        # Sweep before claiming a number: interfaces that a dead executor left could have the names of ours.
        await self._sweep()
        # The names of interfaces and tables contain the number, so that a sweep can tell which executors are dead.
        self._claim = claim_any(KIND, 0, EXECUTORS_MAX)
        if self._claim is None:
            raise OSError(f"there are already {EXECUTORS_MAX} executors with networks on this machine")
        try:
            guards, accepting = await self._forwarding()
            self._six = SIX.on
            await self._nft("\n".join(self._rules(denied, guards, accepting)))
            for one in guards:
                one.turn(on=True)  # another executor that ended may just have turned it off
            self._denied = denied
        except OSError:
            self._claim.close()
            self._claim = None
            raise
        for chain in await self._dropping():
            log.warning(FIREWALL, chain)

    async def deny(self, denied: DeniedNetworks) -> None:
        """Change the denied networks from now on, even for running builds. Raise OSError."""
        if denied != self._denied:
            sets = "\n".join(denied.sets())
            # Use one transaction: if the sets were empty for a moment, a build could reach the fleet.
            flush = "".join(f"flush set inet {self._table} denied{version}\n" for version in (4, 6))
            await self._nft(f"{flush}table inet {self._table} {{\n{sets}\n}}\n")
            self._denied = denied

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[int]:
        """Provide a network namespace with a way out: its descriptor. Raise OSError."""
        number = next((n for n in range(BUILDS_MAX) if n not in self._used), None)
        if number is None:
            raise OSError(f"an executor can have networks for at most {BUILDS_MAX} builds at a time")
        self._used[number] = None
        try:
            # Wait for its end: otherwise it would continue, and might make the interface after its removal.
            await run_to_end(self._make(number))
            made = self._used[number]
            assert made is not None, "just made"
            yield made
        finally:
            # Do this even after a cancellation: an interface that is left behind would make the next build fail. The
            # number is free only once the interface is gone.
            await run_to_end(self._remove(number))

    async def _make(self, number: int) -> None:
        place = 2 * (BUILDS_MAX * self._number + number)
        links = [
            netlink.Link(str(first + place), str(first + place + 1), length)
            for first, length in [(FIRST4, 31), *([(FIRST6, 127)] if self._six else [])]
        ]
        out = {"name": f"hg{self._number}-{number}", "links": links}
        self._used[number] = (await self._keeper.errand(do="net", out=out)).made

    async def _remove(self, number: int) -> None:
        try:
            # It would also disappear with the namespace, but only once nothing holds that any longer.
            await self._gone(f"hg{self._number}-{number}")
        finally:
            made = self._used.pop(number)
            if made is not None:
                os.close(made)

    async def close(self) -> None:
        if self._claim is not None:
            await self._end(self._number)
            self._claim.close()
            self._claim = None

    async def _sweep(self) -> None:
        """Remove interfaces and tables of dead executors, whose numbers are free."""
        numbers = {int(name.removeprefix("headgate")) for name in await self._tables()}
        numbers |= {int(found[1]) for name in await self._interfaces() if (found := INTERFACE.fullmatch(name))}
        for number in sorted(numbers):
            held = claim(KIND, number)
            # Claim the number while removing its remains, so that a starting executor does not take it in the meantime.
            if held is not None:
                await self._end(number)
                held.close()

    async def _end(self, number: int) -> None:
        """Remove everything of an executor.  The last executor that turned forwarding on turns it off again."""
        table, accepting = f"headgate{number}", await self._elements(ACCEPTING)
        guarded = {one: await self._elements(GUARDED[one]) for one in GUARDED if table in await self._guarded(one)}
        # Add the table first, since deleting a table that does not exist is an error.
        await self._nft(f"table inet {table} {{}}\ndelete table inet {table}")
        # If there are no tables, there is no other executor whose builds would lose their way out.
        if guarded and not await self._tables():
            bridges = set(await self._interfaces("bridge"))
            for one, names in guarded.items():
                # Other bridges belong to a container engine that started later and needs forwarding.
                if bridges <= names:
                    one.turn(on=False)
            if not SIX.on:
                listen_as_before(accepting)
        for name in await self._interfaces():
            if name.startswith(f"hg{number}-"):
                await self._gone(name)

    async def _interfaces(self, kind: str = "veth") -> list[str]:
        """List the interfaces of a kind, whoever made them; the ends of pairs are of the kind `veth`."""
        words = ["ip", "-o", "link", "show", "type", kind]
        lines = (await self._keeper.program(NOWHERE_ELSE, words)).splitlines()
        return [line.split()[1].partition("@")[0].rstrip(":") for line in lines]

    async def _gone(self, name: str) -> None:
        with contextlib.suppress(OSError):  # already removed
            # In a thread: the kernel waits for other processors before it returns.
            await asyncio.to_thread(self._remove_interface, name)

    async def _forwarding(self) -> tuple[dict[Forwarding, set[str]], set[str]]:
        """Turn forwarding on. Return the switches that were off before the first executor, with the interfaces of that
        time, and the interfaces that still accept router advertisements. Raise OSError."""
        guards, accepting = dict[Forwarding, set[str]](), await self._elements(ACCEPTING)
        interfaces = {name for _, name in socket.if_nameindex() if not name.startswith(OURS)}
        for forwarding in (FOUR, SIX):
            if forwarding.on:
                # If another executor turned it on, copy its note, because the last executor to end must turn it off,
                # which may be this one.
                if await self._guarded(forwarding):
                    guards[forwarding] = await self._elements(GUARDED[forwarding]) or interfaces
            elif forwarding is FOUR:
                forwarding.turn(on=True)
                guards[forwarding] = interfaces
            elif ADDRESSES6.exists() and has_six(ADDRESSES6.read_text()):
                # Do this before turning forwarding on: as soon as the kernel forwards, it drops the routes that it
                # learned from advertisements.
                names = keep_listening()
                try:
                    forwarding.turn(on=True)
                    guards[forwarding] = interfaces
                    accepting |= set(names)
                except OSError as error:
                    listen_as_before(names)
                    self.lacks.append(WITHOUT_SIX.format(error))
        return guards, accepting

    def _rules(
        self, denied: DeniedNetworks, guards: Mapping[Forwarding, Collection[str]], accepting: Collection[str]
    ) -> Iterator[str]:
        own_builds, any_build = f'"hg{self._number}-*"', '"hg*"'
        refused = "reject with icmpx admin-prohibited"
        sources = ipaddress.ip_network((int(FIRST4) + 2 * BUILDS_MAX * self._number, 23))
        yield f"table inet {self._table} {{"
        yield from denied.sets()
        yield f"set flows {{ typeof iifname; flags dynamic; size {BUILDS_MAX}; }}"
        # This precedes connection tracking: packets with a forged source must not use entries of the machine's table.
        yield "chain coming { type filter hook prerouting priority raw - 10;"
        yield f"iifname {own_builds} fib saddr . iif oif missing drop;"
        yield "}"
        # Refuse packets for this machine itself, at any of its addresses: the executor's API, the store, local
        # services.
        yield "chain here { type filter hook input priority filter - 10;"
        # Without these, a build could not find the hardware address of its IPv6 gateway.
        yield f"iifname {own_builds} icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept;"
        yield f"iifname {own_builds} {refused};"
        yield "}"
        yield "chain passing { type filter hook forward priority filter - 10;"
        yield f"iifname {own_builds} jump leaving;"
        # Accept only answers: nobody outside may open a connection to a build.
        yield f"oifname {own_builds} ct state established,related accept;"
        yield f"oifname {own_builds} drop;"
        yield "}"
        yield "chain leaving {"
        # Builds of other executors are refused, too.
        yield f"oifname {any_build} {refused};"
        yield f"ip daddr @denied4 {refused};"
        yield f"ip6 daddr @denied6 {refused};"
        yield f"ct state new add @flows {{ iifname ct count over {FLOWS_MAX} }} {refused};"
        yield "accept;"
        yield "}"
        yield from _names(ACCEPTING, accepting)
        # Networks between which the machine did not forward before stay separate; later ones may use forwarding.
        for one, names in guards.items():
            yield from _names(GUARDED[one], names)
            yield f"chain {one.guard} {{ type filter hook forward priority filter - 9;"
            yield f"meta nfproto != {one.family} accept;"
            yield f"oifname {any_build} accept;"
            yield "ct state established,related accept;"
            yield "ct status dnat accept;"
            # Forwarding for builds must not make this machine a router between its other networks.
            yield f"iifname @{GUARDED[one]} drop;"
            yield "}"
        yield "chain hidden { type nat hook postrouting priority srcnat;"
        yield f"ip saddr {sources} oifname != {any_build} masquerade;"
        if self._six:
            six = ipaddress.ip_network((int(FIRST6) + 2 * BUILDS_MAX * self._number, 119))
            yield f"ip6 saddr {six} oifname != {any_build} masquerade;"
        yield "}"
        yield "}"

    async def _chains(self) -> list[dict[str, str]]:
        listing = json.loads(await self._nft("", "-j", "list", "chains"))
        return [one["chain"] for one in listing.get("nftables", []) if "chain" in one]

    async def _tables(self) -> list[str]:
        """Return the names of the tables of executors."""
        listing = json.loads(await self._nft("", "-j", "list", "tables"))
        names = [one["table"]["name"] for one in listing.get("nftables", []) if "table" in one]
        return [name for name in names if name.startswith("headgate") and name.removeprefix("headgate").isdigit()]

    async def _guarded(self, kind: Forwarding) -> set[str]:
        """Return the tables of executors that found forwarding turned off."""
        return {one["table"] for one in await self._chains() if one["name"] == kind.guard}

    async def _elements(self, name: str) -> set[str]:
        """Return the elements of the sets with that name in the tables of all executors."""
        listing = json.loads(await self._nft("", "-j", "list", "sets", "inet"))
        sets = [one["set"] for one in listing.get("nftables", []) if "set" in one]
        return {element for one in sets if one["name"] == name for element in one.get("elem", [])}

    async def _dropping(self) -> list[str]:
        """List other programs' chains that drop forwarded packets unless a rule accepts them."""
        chains = await self._chains()
        return [
            f"{one['family']} {one['table']} {one['name']}"
            for one in chains
            if one.get("hook") == "forward" and one.get("policy") == "drop"
        ]

    async def _nft(self, rules: str, *words: str) -> str:
        """Call nft with these arguments, or with these rules, and return its output. Raise OSError."""
        return await self._keeper.program(NOWHERE_ELSE, ["nft", *(words or ("-f", "-"))], rules)


def _names(name: str, interfaces: Collection[str]) -> Iterator[str]:
    """Yield the definition of a set with these interfaces for nft; nothing if there are none."""
    if interfaces:
        elements = ", ".join(f'"{one}"' for one in sorted(interfaces))
        yield f"set {name} {{ type ifname; elements = {{ {elements} }}; }}"
