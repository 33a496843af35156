"""The host keys of a machine: those of the first answer are trusted, and required from then on."""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from typing import Any

from headgate.base.pipes import OutputTooLarge, communicate, put_down
from headgate.base.texts import line
from headgate.ports.provider import MachineUnusable

SCAN_MAX_S = 20.0
ANSWER_S = 10
"""Time limit of each connection."""
OUTPUT_MAX_BYTES = 100_000
KEYS_MAX = 16
_KEY = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{16,16000}={0,3}")
"""Type and value of a key, as they follow the name of its host."""


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
            output = await self._run("-T", str(ANSWER_S), "-p", port, "--", where)
        # Each line begins with the host's name, comments with `#`; the machine controls the rest, so only keys pass.
        found = [text.partition(" ")[2].strip() for text in output.splitlines() if not text.startswith("#")]
        # Sorted, because ssh-keyscan asks for all types at once and prints them in the order of the answers.
        keys = sorted({key for key in found if _KEY.fullmatch(key)})[:KEYS_MAX]
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
                output, _ = await communicate(process, b"", OUTPUT_MAX_BYTES)
        except TimeoutError as error:
            raise MachineUnusable(f"{words[-1]} did not answer in {SCAN_MAX_S:.0f} s") from error
        except OutputTooLarge as error:
            raise MachineUnusable(f"{words[-1]} said more than {OUTPUT_MAX_BYTES} bytes") from error
        finally:
            await put_down(process)
        return output.decode(errors="replace")


async def _connected(where: str, port: int) -> str:
    """Return nothing once the machine accepts the connection. Raise MachineUnusable."""
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(where, port)
    except TimeoutError as error:
        raise MachineUnusable(f"{where} port {port} did not answer in {ANSWER_S} s") from error
    except (OSError, ValueError) as error:  # ValueError: an invalid host name
        raise MachineUnusable(f"{where} port {port}: {line(getattr(error, 'strerror', '') or str(error))}") from error
    # No orderly end is needed, and a machine that does not take part in one cannot delay the scan.
    writer.transport.abort()
    return ""
