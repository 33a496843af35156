"""Connect to existing machines over ssh, and learn their host keys from the first answer."""

from __future__ import annotations

import asyncio
import re
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.base.pipes import OutputTooLarge, communicate, put_down
from headgate.base.texts import line
from headgate.inventory.health import PROBE, SSH
from headgate.inventory.model import HOST_KEY
from headgate.ports.clouds import HOST_KEY_VARIABLE, Machine, MachineUnusable

COMMAND_MAX_S = 120.0
CONNECT_MAX_S = 15
PROBE_MAX_S = 30.0
BANNER_MAX_S = 10.0
"""Time limit for ssh at a machine to send its version."""
BANNER_LINES_MAX, BANNER_SIZE_MAX_BYTES = 50, 8_192
"""Lines and bytes that may precede the version, as RFC 4253 allows."""
PORT = 22
OUTPUT_MAX_BYTES = 1_000_000
ERROR_SIZE_MAX_CHARS = 300
DIRECTORY = "headgate-builds"
"""Name of a directory below the home directory."""
_PLACE = re.compile(r"/[\w./@+:~-]+")
"""Permitted paths: a machine that ran earlier builds may answer anything, and Ansible would evaluate a template."""
_ALIAS = "machine"
"""Name of the machine in the known_hosts file, whatever its address."""
_UNKNOWN = "Host key verification failed"
SCAN_MAX_S = 20.0
SCAN_ANSWER_S = 10
"""Time limit of each connection of a scan."""
SCAN_MAX_BYTES = 100_000
SCAN_KEYS_MAX = 16
_KEY = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{16,16000}={0,3}")
"""Type and value of a key, as they follow the name of its host."""


class SshProvider:
    """See `ports.clouds.Provider`.

    A build has a directory of its own on the machine, which is removed after it.  Properties of the machine: Ansible's
    (`ansible_host`, `ansible_user`, `ansible_port`, `ansible_ssh_private_key_file`…); `host-key`, the public keys by
    which it is known, one a line; `prepare` and `clean`, commands of a shell that run there before and after a build;
    and `probe`, another command or `ssh`.  The provider may have these commands for all its machines.
    """

    def __init__(self, program: str = "ssh", *, learns: bool = True) -> None:
        """Trust the key of an unknown machine the first time if `learns`; otherwise do not use the machine."""
        self._program, self._learns = program, learns

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        """Make a directory for the build, run the command `prepare` in it, and return the variables by which Ansible
        reaches the machine; its properties `ansible_…` override what is found here.  Raise MachineUnusable."""
        own = f"{DIRECTORY}/{machine.request}"
        with self._known(machine) as known:
            output = await self._run(
                machine, f"mkdir -p {own} && cd {own} && pwd && {_command(machine, 'prepare')}", known
            )
            keys = [line.partition(" ")[2] for line in known.read_text().splitlines()]
        # `prepare` prints as well, and so may the profile of the shell.
        where = [line for line in output.splitlines() if _PLACE.fullmatch(line) and line.endswith(f"/{own}")]
        if not where:
            raise MachineUnusable(f"{machine.name}: it does not say where its directory {own} is, as `pwd` would")
        ansible_variables = {key: value for key, value in machine.properties.items() if key.startswith("ansible_")}
        return {
            "ansible_connection": "ssh",
            "ansible_host": machine.name,
            **ansible_variables,
            HOST_KEY_VARIABLE: "\n".join(keys),
            "headgate_dir": where[0],
        }

    async def clean(self, machine: Machine) -> None:
        own = f"{DIRECTORY}/{machine.request}"
        command = f"if cd {own} 2>/dev/null; then {_command(machine, 'clean')}; fi; cd && rm -rf {own}"
        with self._known(machine) as known:
            await self._run(machine, command, known)

    async def probe(self, machine: Machine) -> None:
        """Check, without logging in, that an ssh server answers if `ssh` is the only probe."""
        probe = machine.properties.get(PROBE) or machine.provider.get(PROBE) or SSH
        if probe == SSH:
            await _greeted(machine)
            return
        with self._known(machine) as known:
            await self._run(machine, probe, known, PROBE_MAX_S)

    @contextmanager
    def _known(self, machine: Machine) -> Iterator[Path]:
        """Provide a file with the keys of the machine, empty if keys are to be learned. Raise MachineUnusable if it has
        none and they are not to be learned."""
        keys = machine.properties.get(HOST_KEY, "").split("\n")
        lines = [f"{_ALIAS} {key.strip()}\n" for key in keys if key.strip()]
        if not lines and not self._learns:
            raise MachineUnusable(
                f"{machine.name} has no property {HOST_KEY}, and machines that nobody knows are not used"
            )
        with tempfile.TemporaryDirectory(prefix="headgate-ssh-") as name:
            known = Path(name) / "known_hosts"
            known.write_text("".join(lines))
            yield known

    async def _run(self, machine: Machine, command: str, known: Path, limit_s: float = 0.0) -> str:
        """Return the output, within `limit_s` or COMMAND_MAX_S. Raise MachineUnusable."""
        limit_s = limit_s or COMMAND_MAX_S
        try:
            process = await asyncio.create_subprocess_exec(
                *self._arguments(machine, known), command, stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
        except OSError as error:
            raise MachineUnusable(f"{self._program} cannot be run: {error.strerror}; install openssh-client") from error
        try:
            async with asyncio.timeout(limit_s):
                output, wrong = await communicate(process, b"", OUTPUT_MAX_BYTES)
        except TimeoutError as error:
            raise MachineUnusable(f"{machine.name} did not answer in {limit_s:.0f} s") from error
        except OutputTooLarge as error:
            raise MachineUnusable(f"{machine.name} said more than {OUTPUT_MAX_BYTES} bytes") from error
        finally:
            await put_down(process)
        if process.returncode:
            why = wrong.decode(errors="replace").strip()
            if _UNKNOWN in why:
                raise MachineUnusable(
                    f"{machine.name}: what answers there does not have its key; if the machine was made anew, "
                    f"take its property {HOST_KEY} away"
                )
            raise MachineUnusable(
                f"{machine.name}: ssh ended with {process.returncode}: {line(why[-ERROR_SIZE_MAX_CHARS:])}"
            )
        return output.decode(errors="replace")

    def _arguments(self, machine: Machine, known: Path) -> list[str]:
        properties = machine.properties
        options = {
            # Nobody is there to answer a question about a password or a key.
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_MAX_S),
            # `accept-new` writes the key that the machine shows into the empty file, from which `prepare` reads it.
            "StrictHostKeyChecking": "yes" if known.stat().st_size else "accept-new",
            "UserKnownHostsFile": str(known),
            # Keys that this host knows from elsewhere must not decide.
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": _ALIAS,
            # The file is read again as `machine TYPE KEY`.
            "HashKnownHosts": "no",
            # A machine must not add keys to those that the inventory has of it.
            "UpdateHostKeys": "no",
            "LogLevel": "ERROR",
        }
        arguments = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        for flag, name in (("-p", "ansible_port"), ("-l", "ansible_user"), ("-i", "ansible_ssh_private_key_file")):
            if properties.get(name):
                arguments += [flag, properties[name]]
        return [self._program, *arguments, "--", _host(machine)]


def _host(machine: Machine) -> str:
    return machine.properties.get("ansible_host") or machine.name


async def _greeted(machine: Machine) -> None:
    """Return once an ssh server answers. Raise MachineUnusable."""
    port = machine.properties.get("ansible_port") or str(PORT)
    where = f"{machine.name}: {_host(machine)} port {port}"
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise MachineUnusable(f"{machine.name}: ansible_port is {port!r}, which is not a port")
    try:
        async with asyncio.timeout(BANNER_MAX_S):
            if await _speaks_ssh(_host(machine), int(port)):
                return
    except TimeoutError as error:
        raise MachineUnusable(f"{where} did not answer in {BANNER_MAX_S:.0f} s") from error
    except (OSError, ValueError) as error:  # ValueError: an invalid host name
        raise MachineUnusable(f"{where}: {line(getattr(error, 'strerror', '') or str(error))}") from error
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise MachineUnusable(f"{where}: what answers there does not speak ssh") from error
    raise MachineUnusable(f"{where}: what answers there does not speak ssh")


async def _speaks_ssh(host: str, port: int) -> bool:
    """Return whether an ssh server answers. Raise OSError, ValueError, and the errors of a reader that finds no
    line."""
    reader, writer = await asyncio.open_connection(host, port, limit=BANNER_SIZE_MAX_BYTES)
    try:
        # A server may send other lines first.
        for _ in range(BANNER_LINES_MAX):
            if (await reader.readuntil(b"\n")).startswith(b"SSH-"):
                return True
        return False
    finally:
        writer.transport.abort()


def _command(machine: Machine, name: str) -> str:
    return machine.properties.get(name) or machine.provider.get(name) or "true"


class Scanner:
    """Scan host keys with `ssh-keyscan`, a few machines at a time."""

    def __init__(self, program: str = "ssh-keyscan", scans_max: int = 50) -> None:
        self._program, self._places = program, asyncio.Semaphore(scans_max)

    async def __call__(self, host: Mapping[str, Any]) -> str:
        """Return the keys, one a line; none for Windows, which only has to answer. Raise MachineUnusable."""
        where, port = str(host.get("ansible_host", "")), str(host.get("ansible_port") or 22)
        # The configuration of a project may name the host, and `-` would make it an option of ssh-keyscan.
        if not where or where.startswith("-") or not port.isdecimal():
            raise MachineUnusable(f"{where!r} port {port} cannot be asked for its keys")
        if host.get("ansible_connection") == "winrm":
            async with self._places:
                return await _connected(where, int(port))
        async with self._places:
            output = await self._run("-T", str(SCAN_ANSWER_S), "-p", port, "--", where)
        # Each line begins with the host's name, comments with `#`; the machine controls the rest, so only keys pass.
        found = [text.partition(" ")[2].strip() for text in output.splitlines() if not text.startswith("#")]
        # Sorted, because ssh-keyscan asks for all types at once and prints them in the order of the answers.
        keys = sorted({key for key in found if _KEY.fullmatch(key)})[:SCAN_KEYS_MAX]
        if not keys:
            raise MachineUnusable(f"{where} port {port}: nothing there says what its ssh keys are")
        return "\n".join(keys)

    async def _run(self, *words: str) -> str:
        """Return the output. Raise MachineUnusable."""
        try:
            process = await asyncio.create_subprocess_exec(self._program, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError as error:
            raise MachineUnusable(
                f"{self._program} cannot be run: {line(error.strerror or '')}; install openssh-client"
            ) from error
        try:
            async with asyncio.timeout(SCAN_MAX_S):
                output, _ = await communicate(process, b"", SCAN_MAX_BYTES)
        except TimeoutError as error:
            raise MachineUnusable(f"{words[-1]} did not answer in {SCAN_MAX_S:.0f} s") from error
        except OutputTooLarge as error:
            raise MachineUnusable(f"{words[-1]} said more than {SCAN_MAX_BYTES} bytes") from error
        finally:
            await put_down(process)
        return output.decode(errors="replace")


async def _connected(where: str, port: int) -> str:
    """Return nothing once the machine accepts the connection. Raise MachineUnusable."""
    try:
        async with asyncio.timeout(SCAN_ANSWER_S):
            _, writer = await asyncio.open_connection(where, port)
    except TimeoutError as error:
        raise MachineUnusable(f"{where} port {port} did not answer in {SCAN_ANSWER_S} s") from error
    except (OSError, ValueError) as error:  # ValueError: an invalid host name
        raise MachineUnusable(f"{where} port {port}: {line(getattr(error, 'strerror', '') or str(error))}") from error
    # No orderly end is needed, and a machine that does not take part in one cannot delay the scan.
    writer.transport.abort()
    return ""
