"""Make the network of a build: none, one with access to the outside, or this machine's; and the listeners in it.

If this process is not root, the rules are in the network of the build, which belongs to a user namespace in which no
job has a capability.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headgate.adapters.blocklist import DeniedNetworks, Ip, Net, single
from headgate.adapters.process.confinement.errands import found_program
from headgate.adapters.process.network import sockets
from headgate.adapters.process.network.veth import Veth
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.sandbox import NOWHERE_ELSE, Network, Spaces
from headgate.base.tasks import end

log = logging.getLogger("headgate.executor")

NONE, OUTSIDE, HOST = "none", "outside", "host"
WITHOUT_NETWORK = "Jobs have no network: {}"
ADDRESSES_KNOWN_S = 60.0
"""How long the addresses of a machine of the fleet are cached."""
RESOLVE_AGAIN_S = 5.0
"""How long to wait before resolving a failed name again, since a resolver that is down delays each build."""
UNRESOLVED = (
    "The name %s of a machine of the fleet cannot be resolved: jobs can reach that machine, unless "
    "[executor] sandbox_network_deny contains its addresses"
)
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
DEVICE = Path("/dev/net/tun")
PROGRAMS = {
    "pasta": (
        "--foreground", "--quiet", "--config-net", "--no-map-gw", "--tcp-ports", "none", "--udp-ports", "none",
        "--tcp-ns", "none", "--udp-ns", "none", "{pid}",
    ),
    "slirp4netns": ("--configure", "--mtu=65520", "--disable-host-loopback", "--disable-dns", "{pid}", "tap0"),
}  # fmt: skip
"""The first installed program is used; neither gives access to this machine's loopback, even at another address."""
READY_TIMEOUT_S = 10.0
LOOK_INTERVAL_S = 0.01
OUTPUT_SIZE_MAX_BYTES = 4_000

Fleet = Callable[[], Collection[str]]
"""Names and addresses of the machines that run Headgate itself."""


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """Hold the settings for networks."""

    trusted: str = OUTSIDE
    """none | outside | host"""
    untrusted: str = OUTSIDE
    deny: tuple[Net, ...] = ()
    allow: tuple[sockets.NetworkTarget, ...] = ()
    """Targets that builds may reach although others are denied."""


class Networks:
    """Open networks; call `begin` first. What this machine does not support is logged once."""

    def __init__(self, keeper: ProcessKeeper, choice: NetworkChoice, fleet: Fleet) -> None:
        self._keeper, self._choice, self._fleet = keeper, choice, fleet
        self._way: Veth | Tap | None = None
        self.user: Spaces = NOWHERE_ELSE
        """User namespace in which this process is root; unused if it is root anyway."""
        self._known: dict[str, tuple[float, list[Ip]]] = {}
        """Name of a machine -> when its cached addresses expire, and the addresses that were found last."""
        self._unresolved = set[str]()
        """Names of the fleet whose failure to resolve was logged."""
        self.usable = False
        """Whether builds can have networks of their own."""
        self.lacks: list[str] = []

    async def begin(self, user: Spaces) -> None:
        """Prepare the networks. `user` is the user namespace in which this process is root, if it is not root
        anyway."""
        self.user, self.usable = user, bool(user) or os.geteuid() == 0
        if OUTSIDE not in (self._choice.trusted, self._choice.untrusted):
            return
        why = "this executor is not root, and has no user namespace" if not self.usable else ""
        # An executor that is root in a container may not be allowed to make rules on the host, but have /dev/net/tun.
        for begin in (self._begin_veth, self._begin_tap) if self.usable else ():
            try:
                await begin()
                return
            except OSError as error:
                why = "; ".join(text for text in (why, str(error)) if text)
        self.lacks.append(WITHOUT_NETWORK.format(why))
        log.warning(self.lacks[-1])

    async def _begin_veth(self) -> None:
        """Prepare networks with pairs of interfaces if this process is root, otherwise with tap.  Raise OSError."""
        if os.geteuid() != 0:
            return await self._begin_tap()
        veth = Veth(self._keeper)
        await veth.begin(await self._denied())
        self._way = veth
        self.lacks += veth.lacks
        for text in veth.lacks:
            log.warning(text)

    async def _begin_tap(self) -> None:
        """Try a network with tap, and use tap from now on if that works.  Raise OSError."""
        tap = Tap(self._keeper)
        tap.begin()
        # Try it once with a complete network: this machine may refuse the device, the program or the rules.
        async with self._made() as spaces, tap.way_out(spaces, await self._denied()):
            self._way = tap

    async def close(self) -> None:
        if isinstance(self._way, Veth):
            await self._way.close()
        self._way = None

    def kind(self, *, trusted: bool) -> str:
        return self._choice.trusted if trusted else self._choice.untrusted

    def apart(self, *, trusted: bool) -> bool:
        """Return whether builds of this kind have another network than this process."""
        return self.usable and self.kind(trusted=trusted) != HOST

    @contextlib.asynccontextmanager
    async def opened(
        self, kind: str, nodes: Iterable[sockets.NetworkTarget], earlier: sockets.Serve | None = None
    ) -> AsyncIterator[Network]:
        """Open a network for the context. `earlier` serves files of earlier builds. Raise OSError."""
        if kind == HOST or not self.usable:
            # Without namespaces of ours, bubblewrap can still make an empty network, so that no build gets more
            # access than it should.
            yield Network(self.user, cut=kind != HOST)
            return
        outside, denied = kind == OUTSIDE and self._way is not None, await self._denied()
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(self._way, Veth) and outside:
                # Update this for each build, since machines join the fleet, and this machine's addresses change.
                await self._way.deny(denied)
                spaces: Spaces = {"net": await stack.enter_async_context(self._way.opened())}
            else:
                spaces = await stack.enter_async_context(self._made())
            if isinstance(self._way, Tap) and outside:
                await stack.enter_async_context(self._way.way_out(spaces, denied))
            listeners = _Listeners(self._keeper, spaces)
            stack.push_async_callback(listeners.close)
            hosts = await self._open_listeners(listeners, (*nodes, *self._choice.allow), denied if outside else None)
            if earlier is not None:
                await listeners.add(sockets.ARTIFACTS_ADDRESS, sockets.ARTIFACTS_PORT, earlier)
            resolv = await self._resolv(listeners, denied) if outside else b""
            yield Network(spaces, files={"/etc/hosts": hosts, "/etc/resolv.conf": resolv})

    @contextlib.asynccontextmanager
    async def _made(self) -> AsyncIterator[Spaces]:
        net = (await self._keeper.errand(self.user, do="net")).made
        assert net is not None, "this errand returns a descriptor"
        try:
            yield {**self.user, "net": net}
        finally:
            os.close(net)

    async def _denied(self) -> DeniedNetworks:
        """Return the networks that are currently denied."""
        fleet = [address for name in self._fleet() for address in await self._fleet_addresses(name)]
        # Include this machine's own addresses: a build could reach its services at their outside address.
        return DeniedNetworks.of([*self._choice.deny, *(single(str(one)) for one in (*fleet, *own_addresses()))])

    async def _fleet_addresses(self, name: str) -> list[Ip]:
        found = await self._addresses(name)
        if found:
            self._unresolved.discard(name)
        elif name not in self._unresolved:
            # Builds run anyway: often no resolver knows the host name of a container, and a machine without addresses
            # cannot be denied.
            self._unresolved.add(name)
            log.warning(UNRESOLVED, name)
        return found

    async def _addresses(self, name: str) -> list[Ip]:
        """Return the addresses of a machine; while its name cannot be resolved, the last known ones; none if there are
        none."""
        until_s, found = self._known.get(name, (-math.inf, []))
        if time.monotonic() < until_s:
            return found
        cached_s = ADDRESSES_KNOWN_S
        try:
            resolved = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in resolved]
        except OSError as error:
            # What was denied stays denied: otherwise a failing resolver would give access to the fleet. Read the cache
            # again, since another build may have resolved the name in the meantime.
            _, found = self._known.get(name, (0.0, []))
            if found:
                cached_s = RESOLVE_AGAIN_S
                log.warning("The name %s cannot be resolved (%s); its last known addresses stay in force", name, error)
        self._known[name] = time.monotonic() + cached_s, found
        return found

    async def _open_listeners(
        self, listeners: _Listeners, targets: Iterable[sockets.NetworkTarget], denied: DeniedNetworks | None
    ) -> bytes:
        """Open listeners for targets that the build itself cannot reach; return /etc/hosts. `denied` is None if the
        build can reach nothing itself. Raise OSError."""
        lines = []
        for target in dict.fromkeys(targets):
            addresses = await self._addresses(target.host)
            for address in addresses:
                # A target that the build can reach itself needs no listener: a relay would only cost the executor time.
                if denied is None or address in denied:
                    await listeners.add(
                        str(address),
                        target.port,
                        sockets.forwarding_to(sockets.NetworkTarget(str(address), target.port)),
                    )
            # Perhaps only this executor's resolver knows the name of the machine.
            if target.host not in map(str, addresses):
                lines += [f"{address} {target.host}" for address in addresses]
        return (HOSTS + "".join(f"{line}\n" for line in dict.fromkeys(lines))).encode()

    async def _resolv(self, listeners: _Listeners, denied: DeniedNetworks) -> bytes:
        """Return the build's /etc/resolv.conf.  Raise OSError."""
        try:
            text = sockets.RESOLVERS.read_text()
        except OSError:
            text = ""
        servers = sockets.resolvers(text)
        if not servers or sockets.resolvers_reachable(servers, denied):
            return text.encode()
        await listeners.answer_names(servers)
        return sockets.resolvers_relayed(text)


class _Listeners:
    """Serve the listeners of one network until `close`."""

    def __init__(self, keeper: ProcessKeeper, spaces: Spaces) -> None:
        self._keeper, self._spaces = keeper, spaces
        self._served = list[asyncio.Future[None]]()
        self._at = set[tuple[str, int]]()

    async def add(self, address: str, port: int, serve: sockets.Serve) -> int:
        """Listen at an address and port, and return the port; 0 requests a free one. Raise OSError."""
        # Two nodes may share an address and a port, which can have only one listener.
        if (address, port) in self._at:
            return port
        listening = await self._listening("tcp", address, port)
        self._served.append(asyncio.ensure_future(sockets.serve_connections(listening, serve)))
        found: int = listening.getsockname()[1]
        self._at.add((address, found))
        return found

    async def answer_names(self, servers: Sequence[Ip]) -> None:
        """Relay name queries to these servers.  Raise OSError."""
        listening = await self._listening("udp", sockets.NAMES_ADDRESS, sockets.NAMES_PORT)
        self._served.append(asyncio.ensure_future(sockets.relay_names(listening, list(servers))))
        await self.add(
            sockets.NAMES_ADDRESS,
            sockets.NAMES_PORT,
            sockets.forwarding_to(sockets.NetworkTarget(str(servers[0]), sockets.NAMES_PORT)),
        )

    async def _listening(self, kind: str, address: str, port: int) -> socket.socket:
        errand = {"do": "listen", "kind": kind, "address": address, "port": port}
        made = (await self._keeper.errand(self._spaces, **errand)).made
        assert made is not None, "this errand returns a descriptor"
        return socket.socket(fileno=made)

    async def close(self) -> None:
        await end(*self._served)


def own_addresses() -> list[Ip]:
    """Return the addresses of this machine on every interface."""
    found = list[Ip]()
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                found.append(ipaddress.ip_address(one.address.partition("%")[0]))
    return found


class Tap:
    """Give networks a way out through a device that a program in user space serves."""

    def __init__(self, keeper: ProcessKeeper) -> None:
        self._keeper = keeper
        self._program = ""

    def begin(self) -> None:
        """Prepare networks with tap. Raise OSError if the machine does not support them."""
        if not os.access(DEVICE, os.R_OK | os.W_OK):
            raise OSError(f"{DEVICE} cannot be opened by user {os.geteuid()}")
        self._program = next((name for name in PROGRAMS if found_program(name)), "")
        if not self._program:
            raise OSError("neither pasta nor slirp4netns is installed; install the package passt")
        if not found_program("nft"):
            raise OSError("the program nft is not installed; install the package nftables")

    @contextlib.asynccontextmanager
    async def way_out(self, spaces: Spaces, denied: DeniedNetworks) -> AsyncIterator[None]:
        """Give the network a way out for the context. Raise OSError."""
        # Make the rules before the way out, so that a build can never reach a denied address.
        await self._keeper.program(spaces, ["nft", "-f", "-"], "\n".join(_rules(denied)))
        # Both programs find a network namespace by a process in it, and the build has no process yet.
        async with self._held(spaces, []) as (pid, _):
            words = [word.format(pid=pid) for word in PROGRAMS[self._program]]
            async with self._held(NOWHERE_ELSE, [self._program, *words]) as (_, carrier):
                await self._ready(spaces, carrier)
                yield

    @contextlib.asynccontextmanager
    async def _held(self, spaces: Spaces, command: list[str]) -> AsyncIterator[tuple[str, socket.socket]]:
        """Hold a process while the context lasts; yield its id, and a socket that closes when the process ends."""
        done = await self._keeper.errand(spaces, do="hold", command=command)
        assert done.made is not None, "this errand returns a descriptor"
        with socket.socket(fileno=done.made) as other:
            other.setblocking(False)
            yield done.output, other

    async def _ready(self, spaces: Spaces, carrier: socket.socket) -> None:
        """Wait until there is a route.  Raise OSError."""
        loop, output = asyncio.get_running_loop(), b""
        until_s = loop.time() + READY_TIMEOUT_S
        while loop.time() < until_s:
            for version in ("-4", "-6"):
                if "default" in await self._keeper.program(spaces, ["ip", version, "route"]):
                    return
            with contextlib.suppress(BlockingIOError):
                piece = carrier.recv(OUTPUT_SIZE_MAX_BYTES)
                output = (output + piece)[-OUTPUT_SIZE_MAX_BYTES:]
                if not piece:
                    break  # the program has ended
            await asyncio.sleep(LOOK_INTERVAL_S)
        text = " ".join(output.decode(errors="replace").split())
        raise OSError(f"{self._program} makes no network for a build: {text or 'it prints nothing'}")


def _rules(denied: DeniedNetworks) -> Iterator[str]:
    refused = "reject with icmpx admin-prohibited"
    yield "table inet headgate {"
    yield from denied.sets()
    # Use the hook `output`, because nothing is forwarded here: the build's processes are in the same namespace as the
    # rules.
    yield "chain leaving { type filter hook output priority filter;"
    # The executor's listeners have denied addresses on this loopback interface: packets to them do not leave.
    yield 'oifname "lo" accept;'
    yield f"ip daddr @denied4 {refused};"
    yield f"ip6 daddr @denied6 {refused};"
    yield "}"
    yield "}"
