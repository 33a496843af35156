"""Check executors on a machine to which a container engine comes later.

Run it as `unshare -n python -m` with its name. It raises AssertionError if executors disturb the engine, or leave the
machine changed.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headgate.adapters.blocklist import DeniedNetworks
from headgate.adapters.process.network.veth import FOUR, Veth
from headgate.adapters.process.processes import ProcessKeeper

from .world import greeter

CONNECT = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).recv(9))"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


@contextmanager
def containers(*names: str) -> Iterator[list[list[str]]]:
    """Each has a bridge and its own network, like those of an engine; this is the command that runs a program in it."""
    with ExitStack() as stack:
        found = list[list[str]]()
        for number, name in enumerate(names, start=1):
            words = ["unshare", "-n", "sh", "-c", "echo apart; exec sleep inf"]
            process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline()
            here, there = f"203.0.113.{4 * number + 1}", f"203.0.113.{4 * number + 2}"
            prefix = ["nsenter", f"--net=/proc/{process.pid}/ns/net"]
            ip(f"link add br-{name} type bridge")
            stack.callback(ip, f"link del br-{name}")
            ip(f"link add {name} type veth peer name eth0 netns {process.pid}")
            ip(f"link set {name} master br-{name} up")
            ip(f"addr add {here}/30 dev br-{name}")
            ip(f"link set br-{name} up")
            for words in (f"addr add {there}/30 dev eth0", "link set eth0 up", f"route add default via {here}"):
                subprocess.run([*prefix, "ip", *words.split()], check=True)
            found.append(prefix)
        yield found


async def begun() -> Veth:
    executor = Veth(ProcessKeeper())
    await executor.begin(DeniedNetworks.of([]))
    return executor


async def main() -> None:
    ip("link set lo up")
    FOUR.turn(on=False)
    alone = await begun()
    assert FOUR.on
    await alone.close()
    assert not FOUR.on, "who came alone leaves the machine as it was"
    first = await begun()
    with containers("one", "two") as (one, other), greeter("::", 0, *other) as port:
        second = await begun()

        def reached() -> bool:
            done = subprocess.run([*one, "python3", "-c", CONNECT, "203.0.113.10", str(port)], capture_output=True)
            return b"hello" in done.stdout

        assert reached(), "the executor that came after the engine lets it be"
        await second.close()
        assert reached()
        await first.close()
        assert FOUR.on and reached(), "the engine still forwards when the executors have gone"


if __name__ == "__main__":
    asyncio.run(main())
    print("passed")
