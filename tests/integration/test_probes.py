"""Test probes of machines: of the ssh port, and with a command, against real servers on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.adapters.nodes.ssh import SshProvider
from headgate.ports.clouds import Machine, MachineUnusable
from headgate.testing.servers.program import free_ports
from headgate.testing.servers.sshd import Lab, program

pytestmark = pytest.mark.skipif(program() is None, reason="needs Debian's package openssh-server")


@asynccontextmanager
async def saying(text: bytes) -> AsyncIterator[int]:
    """Serve a program that sends only this."""

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(met, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def a_machine(port: int | str, **properties: str) -> Machine:
    return Machine("m", {"ansible_host": "127.0.0.1", "ansible_port": str(port), **properties}, {}, "")


async def refusal(machine: Machine, provider: SshProvider | None = None) -> str:
    """Return the reason of a failed probe."""
    with pytest.raises(MachineUnusable) as refused:
        await (provider or SshProvider()).probe(machine)
    return str(refused.value)


async def test_ssh_at_the_port_is_enough_and_nobody_logs_in(tmp_path: Path) -> None:
    """The user and the key of the machine are wrong, which the probe does not notice."""
    lab = Lab(tmp_path / "lab")
    with lab.server() as port:
        await SshProvider().probe(a_machine(port, ansible_user="nobody-there"))
        await SshProvider(learns=False).probe(a_machine(port, probe="ssh"))
    assert "Accepted" not in "".join(log.read_text() for log in lab.root.glob(f"{port}/*log*"))


async def test_a_server_that_does_not_speak_ssh_fails_the_probe() -> None:
    async with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert await refusal(a_machine(port)) == f"m: 127.0.0.1 port {port}: the server there does not speak ssh"
    async with saying(b"Welcome!\r\nTo this machine.\r\nSSH-2.0-x\r\n") as port:
        await SshProvider().probe(a_machine(port))
    async with saying(b"x" * 20_000) as port:
        assert "does not speak ssh" in await refusal(a_machine(port))
    (closed,) = free_ports(1)
    assert str(closed) in await refusal(a_machine(closed)) and "m: 127.0.0.1" in await refusal(a_machine(closed))


@pytest.mark.parametrize("port", ["0", "65536", "-1", "ssh", "22 "])
async def test_an_invalid_port_is_named(port: str) -> None:
    assert "is not a port" in await refusal(a_machine(port))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 300, "a..b", "\x1b[31m"])
async def test_an_invalid_address_is_named(host: str) -> None:
    reason = await refusal(Machine("m", {"ansible_host": host}, {}, ""))
    assert reason.startswith("m: ")


@pytest.mark.long
async def test_a_command_runs_there_as_prepare_does(tmp_path: Path) -> None:
    """The machine's setting wins over its provider's; the rules of its key apply, too."""
    lab = Lab(tmp_path / "lab")
    with lab.server() as port:
        there = lab.properties(port)
        await SshProvider().probe(Machine("m", there, {"probe": f"touch {tmp_path}/probed"}, ""))
        assert (tmp_path / "probed").exists()
        own = {**there, "probe": "echo the disk is full >&2; exit 3"}
        reason = await refusal(Machine("m", own, {"probe": "true"}, ""))
        assert reason == "m: ssh ended with 3: the disk is full"
        other = " ".join((lab.root / "key.pub").read_text().split()[:2])
        reason = await refusal(Machine("m", {**there, "probe": "true", "host-key": other}, {}, ""))
        assert "has another key" in reason
        assert "no property host-key" in await refusal(Machine("m", own, {}, ""), SshProvider(learns=False))
