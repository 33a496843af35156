"""Test machines that an earlier build had, or that are not what they seem: their ssh servers answer anything."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from headgate.adapters.nodes import ssh
from headgate.adapters.nodes.ssh import SshProvider
from headgate.ports.clouds import Machine, MachineUnusable
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.sshd import Lab, program

from .servers import serving, silent

pytestmark = pytest.mark.skipif(program() is None, reason="needs Debian's package openssh-server")
ANSWER_MAX_S, GROWS_MAX_BYTES = 20, 100_000_000
STOLEN = "{{ lookup('pipe', 'id') }}"


def before(peer: socket.socket, over: threading.Event) -> None:
    """Send text before the banner endlessly."""
    while not over.is_set():
        peer.sendall(b"welcome to \x1b[31mthis machine\r\n" * 1_000)


def late(peer: socket.socket, over: threading.Event) -> None:
    """Agree to speak ssh, and send nothing more."""
    peer.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
    over.wait()


def garbage(peer: socket.socket, over: threading.Event) -> None:
    peer.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + b"\xff" * 100_000)


SERVERS = {"silent": silent, "before": before, "late": late, "garbage": garbage}
COMMANDS = {
    "endless output": ("yes", "sent more than"),
    "endless complaint": ("yes >&2", "did not answer in"),
    "endless silence": ("sleep 600", "did not answer in"),
    "terminal": ("printf '\\033[31m\\342\\200\\256red\\n' >&2; exit 3", "ssh ended with 3:.*red"),
    "template": (f"echo \"/home/{STOLEN}/headgate-builds/m\"; echo '{STOLEN}'", "prints no valid path"),
    "another place": ("echo /etc/passwd", "prints no valid path"),
    "nothing": ("true", "prints no valid path"),
}


@contextmanager
def commanded(lab: Lab, command: str) -> Iterator[int]:
    """Run this in place of every requested command."""
    script = lab.root / f"forced-{len(list(lab.root.iterdir()))}"
    script.write_text(f"#!/bin/sh\n{command}\n")
    script.chmod(0o755)
    with lab.server(ForceCommand=str(script)) as port:
        yield port


@pytest.mark.long
async def test_misbehaving_machines_are_not_used_and_delay_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at once."""
    lab, provider, ours = Lab(tmp_path / "lab"), SshProvider(), psutil.Process()
    with ExitStack() as stack:
        there = {kind: stack.enter_context(serving(talk)) for kind, talk in SERVERS.items()}
        there |= {kind: stack.enter_context(commanded(lab, command)) for kind, (command, _) in COMMANDS.items()}
        good = Machine("good", lab.properties(stack.enter_context(lab.server())), {}, "m")
        used_bytes = ours.memory_info().rss
        monkeypatch.setattr(ssh, "CONNECT_MAX_S", ANSWER_MAX_S)
        monkeypatch.setattr(ssh, "COMMAND_MAX_S", float(ANSWER_MAX_S))
        evil = {
            kind: asyncio.ensure_future(provider.prepare(Machine(kind, lab.properties(port), {}, "m")))
            for kind, port in there.items()
        }
        assert (await provider.prepare(good))["headgate_dir"].endswith("/headgate-builds/m")
        await provider.clean(good)
        await asyncio.wait(evil.values(), timeout=DEADLINE_S)
        for kind, one in evil.items():
            why = COMMANDS[kind][1] if kind in COMMANDS else "ssh ended with 255|did not answer in"
            with pytest.raises(MachineUnusable, match=why) as refused:
                one.result()
            assert str(refused.value).isprintable() and len(str(refused.value)) < 500
        assert ours.memory_info().rss - used_bytes < GROWS_MAX_BYTES
        assert not [child for child in ours.children() if child.name() == "ssh"]


@pytest.mark.parametrize("probe", ["ssh", "true"])
@pytest.mark.parametrize("kind", SERVERS)
async def test_a_probe_of_a_server_that_is_no_machine_ends_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, probe: str
) -> None:
    """Speaking ssh is enough for the default probe; a command must succeed."""
    believed = probe == "ssh" and kind in ("late", "garbage")
    monkeypatch.setattr(ssh, "BANNER_MAX_S", DEADLINE_S if believed else 1.0)
    monkeypatch.setattr(ssh, "PROBE_MAX_S", 1.0)
    lab, ours = Lab(tmp_path / "lab"), psutil.Process()
    with serving(SERVERS[kind]) as there:
        used_bytes, machine = ours.memory_info().rss, Machine("evil", {**lab.properties(there), "probe": probe}, {}, "")
        if believed:
            await SshProvider().probe(machine)
            return
        with pytest.raises(
            MachineUnusable, match=r"does not speak ssh|did not answer in 1 s|ssh ended with 255"
        ) as refused:
            await SshProvider().probe(machine)
        assert str(refused.value).isprintable() and len(str(refused.value)) < 500
        assert ours.memory_info().rss - used_bytes < GROWS_MAX_BYTES
        assert not [child for child in ours.children() if child.name() == "ssh"]


async def test_a_greeting_of_the_shell_does_not_count_as_the_directory(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    with commanded(lab, f"echo 'Hello, {STOLEN}'; eval \"$SSH_ORIGINAL_COMMAND\"") as port:
        machine = Machine("greets", lab.properties(port), {}, "g")
        assert (await SshProvider().prepare(machine))["headgate_dir"] == f"{Path.home()}/headgate-builds/g"
        await SshProvider().clean(machine)
