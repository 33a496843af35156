"""Test machines that are containers whose jobs are root there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headgate.adapters.nodes.clouds.podman import guest
from headgate.ports.clouds import Made
from tests.integration.podman.ground import NEEDS, Site, machine, site

pytestmark = NEEDS
PATIENCE_S = 2, 5, 10, 20, 40
"""Longest wait for each answer."""
ATTACK = """
tried() { name=$1; shift; if out=$("$@" 2>&1); then echo "REACHED $name: $out"; fi; }
for where in ADDRESSES; do
    tried "$where" sh -c "busybox nc -w PATIENCE_S ${where%:*} ${where#*:} </dev/null | grep -a ."
done
tried mount mount -t tmpfs none /tmp
tried device mknod /disk b 254 0
for file in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/net/ipv6/conf/all/disable_ipv6; do
    tried "$file" sh -c "echo 0 > $file"
done
tried address busybox ip addr add 198.18.0.1/32 dev eth0
tried kcore head -c 1 /proc/kcore
tried disk head -c 1 /dev/vda
for kind in mnt net pid user ipc; do tried setns-$kind nsenter --$kind=/proc/1/ns/$kind true; done
tried unshare unshare -m true
ls -d /proc/[0-9]* | wc -l
echo DONE
"""


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    with site() as found:
        yield found


async def _greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"greetings\n")
    writer.close()


@pytest.mark.long
async def test_no_machine_reaches_this_one_another_one_or_more_than_its_own(here: Site) -> None:
    driver = here.driver()
    nodes = [await driver.advance(machine(name), {}) for name in ("n1", "n2")]
    server = await asyncio.start_server(_greets, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        one, two = nodes
        assert isinstance(one, Made) and isinstance(two, Made) and one.host and two.host
        ours = [f"{guest.subnet(0)[1]}:{port}", f"{two.host['ansible_host']}:22"]

        async def attack(patience_s: int) -> tuple[int, str]:
            content = ATTACK.replace("ADDRESSES", " ".join(ours)).replace("PATIENCE_S", str(patience_s))
            return await here.ssh(one, content)

        status, text = await attack(PATIENCE_S[0])
        assert status == 0 and text.splitlines()[-1] == "DONE" and "REACHED" not in text, text
        assert int(text.split()[-2]) < 12, text
        here.opens()
        for patience_s in PATIENCE_S:  # the attack is real: without the rules it succeeds, late on a busy machine
            text = (await attack(patience_s))[1]
            if "SSH-2.0" in text:
                break
        assert "greetings" in text and "SSH-2.0" in text, text
    finally:
        server.close()
        for name in ("n1", "n2"):
            while not await driver.remove(machine(name), {}):
                pass
        await driver.close()
