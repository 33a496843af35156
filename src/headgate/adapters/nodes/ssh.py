"""Machines that are there, reached over ssh.

A build has a directory of its own on the machine, which is removed after it.  Properties of the machine: Ansible's
(`ansible_host`, `ansible_user`, `ansible_port`, `ansible_ssh_private_key_file`…), and `prepare` and `clean`,
commands of a shell run there before and after, which the provider may have for all its machines.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Any

from headgate.ports.provider import Machine, Unusable

COMMAND_MAX_S = 120.0
CONNECT_MAX_S = 15
ERROR_SIZE_MAX_CHARS = 300
DIRECTORY = "headgate-builds"
"""Below the home directory."""


class SshProvider:
    """See `ports.provider.Provider`."""

    def __init__(self, program: str = "ssh") -> None:
        self._program = program

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        """Also what Ansible needs, as the properties say it."""
        own = f"{DIRECTORY}/{machine.request}"
        where = await self._run(machine, f"mkdir -p {own} && cd {own} && pwd && {_command(machine, 'prepare')}")
        reach = {key: value for key, value in machine.reach.items() if key.startswith("ansible_")}
        return {
            "ansible_connection": "ssh",
            "ansible_host": machine.name,
            **reach,
            "headgate_dir": where.split("\n")[0],
        }

    async def clean(self, machine: Machine) -> None:
        own = f"{DIRECTORY}/{machine.request}"
        await self._run(machine, f"if cd {own} 2>/dev/null; then {_command(machine, 'clean')}; fi; cd && rm -rf {own}")

    async def _run(self, machine: Machine, command: str) -> str:
        """What it said.  Raises Unusable."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._arguments(machine), command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
            )
        except OSError as error:
            raise Unusable(f"{self._program} cannot be run: {error.strerror}; install openssh-client") from error
        try:
            async with asyncio.timeout(COMMAND_MAX_S):
                said, wrong = await process.communicate()
        except TimeoutError as error:
            raise Unusable(f"{machine.name} did not answer in {COMMAND_MAX_S:.0f} s") from error
        finally:
            await _ended(process)
        if process.returncode:
            why = wrong.decode(errors="replace").strip()[-ERROR_SIZE_MAX_CHARS:]
            raise Unusable(f"{machine.name}: ssh ended with {process.returncode}: {why}")
        return said.decode(errors="replace")

    def _arguments(self, machine: Machine) -> list[str]:
        reach = machine.reach
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_MAX_S),
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        said = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        for flag, name in (("-p", "ansible_port"), ("-l", "ansible_user"), ("-i", "ansible_ssh_private_key_file")):
            if reach.get(name):
                said += [flag, reach[name]]
        return [self._program, *said, "--", reach.get("ansible_host") or machine.name]


def _command(machine: Machine, name: str) -> str:
    return machine.reach.get(name) or machine.provider.get(name) or "true"


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
