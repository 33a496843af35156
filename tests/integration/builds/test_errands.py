"""Test the work that the keeper of commands does inside namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headgate.adapters.process.confinement import netlink
from headgate.adapters.process.processes import ProcessKeeper

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user needs a user namespace first")


@pytest.fixture
def keeper() -> Iterator[ProcessKeeper]:
    found = ProcessKeeper()
    yield found
    found.close()


@ROOT
async def test_a_network_is_made_and_listened_in(keeper: ProcessKeeper) -> None:
    net = (await keeper.errand(do="net")).made
    assert net is not None
    try:
        names = await keeper.program({"net": net}, ["ip", "-o", "link"])
        assert names.startswith("1: lo: <LOOPBACK,UP") and names.count("\n") == 1
        for address in ("127.0.0.1", "10.9.8.7", "::1", "fd00::9"):
            made = (await keeper.errand({"net": net}, do="listen", kind="tcp", address=address, port=22)).made
            assert made is not None
            with socket.socket(fileno=made) as listening:
                assert listening.getsockname()[:2] == (address, 22)
    finally:
        os.close(net)


@ROOT
async def test_a_network_has_a_way_out_in_both_versions_until_its_interface_is_removed(keeper: ProcessKeeper) -> None:
    name = f"hgtest{os.getpid()}"
    links = [("198.51.100.0", "198.51.100.1", 31), ("2001:db8:0:1::", "2001:db8:0:1::1", 127)]
    net = (await keeper.errand(do="net", out={"name": name, "links": links})).made
    assert net is not None
    try:
        for version, outer, inner in (
            ("-4", "198.51.100.0", "198.51.100.1"),
            ("-6", "2001:db8:0:1::", "2001:db8:0:1::1"),
        ):
            route = await keeper.program({"net": net}, ["ip", version, "route", "show", "default"])
            assert route.split()[:5] == ["default", "via", outer, "dev", "eth0"]
            got = await keeper.program(
                {"net": net}, ["ip", version, "route", "get", "192.0.2.1" if version == "-4" else "2001:db8::9"]
            )
            assert inner in got.split(), "an address that is usable at once is the source"
            here = await keeper.program({}, ["ip", version, "-o", "address", "show", "dev", name])
            assert f"{outer}/" in here
        with pytest.raises(OSError, match="cannot be changed: File exists"):
            await keeper.errand(do="net", out={"name": name, "links": links})
    finally:
        netlink.remove(name)
        os.close(net)
    with pytest.raises(OSError, match="No such device"):
        netlink.remove(name)


async def test_impossible_requests_are_refused_with_a_reason(keeper: ProcessKeeper) -> None:
    with pytest.raises(OSError, match="the program nowhere-to-be-found is not installed"):
        await keeper.program({}, ["nowhere-to-be-found"])
    with pytest.raises(OSError, match="false: exit status 1"):
        await keeper.program({}, ["false"])


@ROOT
async def test_a_user_namespace_is_made(keeper: ProcessKeeper) -> None:
    made = (await keeper.errand(do="user", uids=[[0, 0, 1]], gids=[[0, 0, 1]])).made
    assert made is not None
    output = await keeper.program({"user": made}, ["cat", "/proc/self/uid_map"])
    os.close(made)
    assert output.split() == ["0", "0", "1"]


LAYS = """
import os
from headgate.adapters.process.confinement.errands import lay
while os.open(os.devnull, os.O_RDONLY) < {last}:
    pass
lay({{100: b"a", 101: b"b", 102: b"c"}})
os.execv("/bin/cat", ["cat", *(f"/proc/self/fd/{{n}}" for n in (100, 101, 102))])
"""


@pytest.mark.parametrize("last", [50, 99, 100, 101, 105])
def test_a_started_program_reads_its_input_however_many_descriptors_are_open(last: int) -> None:
    command = [sys.executable, "-c", LAYS.format(last=last)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "abc"
