"""Connect to existing machines over ssh, and learn their host keys from the first connection."""

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
"""Time limit for the ssh server of a machine to send its version."""
BANNER_LINES_MAX, BANNER_SIZE_MAX_BYTES = 50, 8_192
"""Lines and bytes that may precede the version, as RFC 4253 allows."""
PORT = 22
OUTPUT_MAX_BYTES = 1_000_000
ERROR_SIZE_MAX_CHARS = 300
DIRECTORY = "headgate-builds"
"""Name of a directory below the home directory."""
_PLACE = re.compile(r"/[\w./@+:~-]+")
"""Permitted paths. A machine that ran earlier builds may answer anything, and Ansible would evaluate a template in the
path."""
_ALIAS = "machine"
"""Name of the machine in the known_hosts file, whatever its address."""
_UNKNOWN = "Host key verification failed"
SCAN_MAX_S = 20.0
SCAN_ANSWER_S = 10
"""Time limit of each connection of a scan."""
SCAN_MAX_BYTES = 100_000
SCAN_KEYS_MAX = 16
SCANS_MAX = 50
"""Concurrent scans."""
_KEY = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{16,16000}={0,3}")
"""Type and value of a key, which follow the host's name in a line."""


class SshProvider:
    """Prepare machines over ssh; see `ports.clouds.Provider`.

    A build has its own directory on the machine, which is removed after it.  Properties of the machine: Ansible's
    (`ansible_host`, `ansible_user`, `ansible_port`, `ansible_ssh_private_key_file`…); `host-key`, its public keys, one
    on each line; `prepare` and `clean`, shell commands that run there before and after a build; and `probe`, another
    command or `ssh`.  The provider may set these commands for all its machines.
    """

    def __init__(self, *, learns: bool = True) -> None:
        """Trust the key that an unknown machine shows first if `learns`; otherwise, do not use unknown machines."""
        self._learns = learns

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        """Make a directory for the build, run the command `prepare` in it, and return the variables with which Ansible
        reaches the machine. The machine's properties `ansible_…` override the defaults.  Raise MachineUnusable."""
        own = f"{DIRECTORY}/{machine.request}"
        with self._known(machine) as known:
            output = await self._run(
                machine, f"mkdir -p {own} && cd {own} && pwd && {_command(machine, 'prepare')}", known
            )
            keys = [line.partition(" ")[2] for line in known.read_text().splitlines()]
        # The output also contains that of `prepare`, and perhaps of the shell's profile.
        where = [line for line in output.splitlines() if _PLACE.fullmatch(line) and line.endswith(f"/{own}")]
        if not where:
            raise MachineUnusable(f"{machine.name}: `pwd` in its directory {own} prints no valid path")
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
        """Run the machine's probe. If it is `ssh`, only check that an ssh server answers, without a login."""
        probe = machine.properties.get(PROBE) or machine.provider.get(PROBE) or SSH
        if probe == SSH:
            await _greeted(machine)
            return
        with self._known(machine) as known:
            await self._run(machine, probe, known, PROBE_MAX_S)

    @contextmanager
    def _known(self, machine: Machine) -> Iterator[Path]:
        """Provide a file with the keys of the machine, or an empty file if its keys are unknown. Raise MachineUnusable
        if they are unknown and must not be learned."""
        keys = machine.properties.get(HOST_KEY, "").split("\n")
        lines = [f"{_ALIAS} {key.strip()}\n" for key in keys if key.strip()]
        if not lines and not self._learns:
            raise MachineUnusable(
                f"{machine.name} has no property {HOST_KEY}, and machines with unknown keys are not used"
            )
        with tempfile.TemporaryDirectory(prefix="headgate-ssh-") as name:
            known = Path(name) / "known_hosts"
            known.write_text("".join(lines))
            yield known

    async def _run(self, machine: Machine, command: str, known: Path, limit_s: float = 0.0) -> str:
        """Run a command, for at most `limit_s` or COMMAND_MAX_S, and return its output. Raise MachineUnusable."""
        limit_s = limit_s or COMMAND_MAX_S
        try:
            process = await asyncio.create_subprocess_exec(
                *self._arguments(machine, known), command, stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
        except OSError as error:
            raise MachineUnusable(f"ssh cannot be run: {error.strerror}; install openssh-client") from error
        try:
            async with asyncio.timeout(limit_s):
                output, wrong = await communicate(process, b"", OUTPUT_MAX_BYTES)
        except TimeoutError as error:
            raise MachineUnusable(f"{machine.name} did not answer in {limit_s:.0f} s") from error
        except OutputTooLarge as error:
            raise MachineUnusable(f"{machine.name} sent more than {OUTPUT_MAX_BYTES} bytes") from error
        finally:
            await put_down(process)
        if process.returncode:
            why = wrong.decode(errors="replace").strip()
            if _UNKNOWN in why:
                raise MachineUnusable(
                    f"{machine.name}: the server there has another key; if the machine was reinstalled, remove its "
                    f"property {HOST_KEY}"
                )
            raise MachineUnusable(
                f"{machine.name}: ssh ended with {process.returncode}: {line(why[-ERROR_SIZE_MAX_CHARS:])}"
            )
        return output.decode(errors="replace")

    def _arguments(self, machine: Machine, known: Path) -> list[str]:
        properties = machine.properties
        options = {
            # Without this, ssh would wait forever for a person to enter a password or to confirm a key.
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_MAX_S),
            # With an empty file, `accept-new` writes the key that the machine shows into it, and `prepare` reads it.
            "StrictHostKeyChecking": "yes" if known.stat().st_size else "accept-new",
            "UserKnownHostsFile": str(known),
            # Keys that the administrator of this host trusts must not apply.
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": _ALIAS,
            # `prepare` reads lines of the form `machine TYPE KEY` from the file.
            "HashKnownHosts": "no",
            # A machine must not add keys to those in the inventory.
            "UpdateHostKeys": "no",
            "LogLevel": "ERROR",
        }
        arguments = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        for flag, name in (("-p", "ansible_port"), ("-l", "ansible_user"), ("-i", "ansible_ssh_private_key_file")):
            if properties.get(name):
                arguments += [flag, properties[name]]
        return ["ssh", *arguments, "--", _host(machine)]


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
        raise MachineUnusable(f"{where}: the server there does not speak ssh") from error
    raise MachineUnusable(f"{where}: the server there does not speak ssh")


async def _speaks_ssh(host: str, port: int) -> bool:
    """Return whether an ssh server answers. Raise OSError, ValueError, and the errors of `readuntil`."""
    reader, writer = await asyncio.open_connection(host, port, limit=BANNER_SIZE_MAX_BYTES)
    try:
        # A server may send other lines before its version.
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

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(SCANS_MAX)

    async def __call__(self, host: Mapping[str, Any]) -> str:
        """Return the keys of a host, one on each line; for Windows, only check that it answers, and return an empty
        string. Raise MachineUnusable."""
        where, port = str(host.get("ansible_host", "")), str(host.get("ansible_port") or 22)
        # A project's configuration may name the host. A leading `-` would make it an option of ssh-keyscan.
        if not where or where.startswith("-") or not port.isdecimal():
            raise MachineUnusable(f"{where!r} port {port} is not a valid address")
        if host.get("ansible_connection") == "winrm":
            async with self._places:
                return await _connected(where, int(port))
        async with self._places:
            output = await self._run("-T", str(SCAN_ANSWER_S), "-p", port, "--", where)
        # A line begins with the host's name, and a comment with `#`. The machine controls the rest, so only valid keys
        # are accepted.
        found = [text.partition(" ")[2].strip() for text in output.splitlines() if not text.startswith("#")]
        # Sorted, because ssh-keyscan requests all types concurrently and prints them in the order of the answers.
        keys = sorted({key for key in found if _KEY.fullmatch(key)})[:SCAN_KEYS_MAX]
        if not keys:
            raise MachineUnusable(f"{where} port {port}: no ssh server there shows its keys")
        return "\n".join(keys)

    async def _run(self, *words: str) -> str:
        """Run ssh-keyscan and return its output. Raise MachineUnusable."""
        try:
            process = await asyncio.create_subprocess_exec("ssh-keyscan", *words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError as error:
            raise MachineUnusable(
                f"ssh-keyscan cannot be run: {line(error.strerror or '')}; install openssh-client"
            ) from error
        try:
            async with asyncio.timeout(SCAN_MAX_S):
                output, _ = await communicate(process, b"", SCAN_MAX_BYTES)
        except TimeoutError as error:
            raise MachineUnusable(f"{words[-1]} did not answer in {SCAN_MAX_S:.0f} s") from error
        except OutputTooLarge as error:
            raise MachineUnusable(f"{words[-1]} sent more than {SCAN_MAX_BYTES} bytes") from error
        finally:
            await put_down(process)
        return output.decode(errors="replace")


async def _connected(where: str, port: int) -> str:
    """Return an empty string once the machine accepts the connection. Raise MachineUnusable."""
    try:
        async with asyncio.timeout(SCAN_ANSWER_S):
            _, writer = await asyncio.open_connection(where, port)
    except TimeoutError as error:
        raise MachineUnusable(f"{where} port {port} did not answer in {SCAN_ANSWER_S} s") from error
    except (OSError, ValueError) as error:  # ValueError: an invalid host name
        raise MachineUnusable(f"{where} port {port}: {line(getattr(error, 'strerror', '') or str(error))}") from error
    # Aborted, because an orderly close needs an answer of the machine, which could delay the scan.
    writer.transport.abort()
    return ""
