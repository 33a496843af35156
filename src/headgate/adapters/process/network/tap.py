"""Networks of builds where this process is no root: a program that carries their packets in connections of this user's.

The rules stand in the network of the build, which belongs to a user namespace in which no job has a capability.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.adapters.blocklist import DeniedNetworks
from headgate.adapters.process.confinement.errands import found_program
from headgate.adapters.process.confinement.spaces import NOWHERE_ELSE, Spaces
from headgate.adapters.process.processes import ProcessKeeper

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
SAID_SIZE_MAX_BYTES = 4_000


class Tap:
    def __init__(self, keeper: ProcessKeeper) -> None:
        self._keeper = keeper
        self._program = ""

    def begin(self) -> None:
        """Prepare networks by tap. Raise OSError if the machine does not support them."""
        if not os.access(DEVICE, os.R_OK | os.W_OK):
            raise OSError(f"{DEVICE} cannot be opened by user {os.geteuid()}")
        self._program = next((name for name in PROGRAMS if found_program(name)), "")
        if not self._program:
            raise OSError("neither pasta nor slirp4netns is installed; install the package passt")
        if not found_program("nft"):
            raise OSError("the program nft is not installed; install the package nftables")

    @asynccontextmanager
    async def way_out(self, spaces: Spaces, denied: DeniedNetworks) -> AsyncIterator[None]:
        """Give the network a way out for the context. Raise OSError."""
        # The rules come before the way out, so that there is no moment at which a build reaches a denied address.
        await self._keeper.program(spaces, ["nft", "-f", "-"], "\n".join(_rules(denied)))
        # Both programs take a network namespace by a process in it, and the build has none yet.
        async with self._held(spaces, []) as (pid, _):
            words = [word.format(pid=pid) for word in PROGRAMS[self._program]]
            async with self._held(NOWHERE_ELSE, [self._program, *words]) as (_, carrier):
                await self._ready(spaces, carrier)
                yield

    @asynccontextmanager
    async def _held(self, spaces: Spaces, command: list[str]) -> AsyncIterator[tuple[str, socket.socket]]:
        """Hold a process for as long as the context lasts; yield its number, and a socket that closes when it ends."""
        done = await self._keeper.errand(spaces, do="hold", command=command)
        assert done.made is not None, "the errand makes one"
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
                piece = carrier.recv(SAID_SIZE_MAX_BYTES)
                output = (output + piece)[-SAID_SIZE_MAX_BYTES:]
                if not piece:
                    break  # the program has ended
            await asyncio.sleep(LOOK_INTERVAL_S)
        text = " ".join(output.decode(errors="replace").split())
        raise OSError(f"{self._program} makes no network for a build: {text or 'it says nothing'}")


def _rules(denied: DeniedNetworks) -> Iterator[str]:
    refused = "reject with icmpx admin-prohibited"
    yield "table inet headgate {"
    yield from denied.sets()
    # At `output`, because nothing is forwarded here: the build's processes are in the very namespace that has the
    # rules.
    yield "chain leaving { type filter hook output priority filter;"
    # The executor's listeners have denied addresses, put on this loopback: packets to them do not leave.
    yield 'oifname "lo" accept;'
    yield f"ip daddr @denied4 {refused};"
    yield f"ip6 daddr @denied6 {refused};"
    yield "}"
    yield "}"
