"""Podman, asked by its program."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.adapters.nodes.clouds.http import one_line
from headgate.base.pipes import OutputTooLarge, communicate, put_down
from headgate.ports.cloud import CloudUnavailable

ANSWER_MAX_S = 120.0
ANSWER_MAX_BYTES = 16 * 2**20


class PodmanResult(NamedTuple):
    status: int
    out: bytes
    why: str
    """Error output of podman, as one line."""


class Engine:
    """Run a podman process for each question. Every method raises CloudUnavailable if there is no answer."""

    def __init__(self, words: Sequence[str]) -> None:
        """Take `words`: the program, with the options that every call has."""
        self._words = tuple(words)

    async def run(self, *words: str, stdin: bytes = b"", max_s: float = ANSWER_MAX_S) -> PodmanResult:
        """Return the result of the command."""
        try:
            process = await asyncio.create_subprocess_exec(*self._words, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError as error:
            raise CloudUnavailable(f"{self._words[0]} cannot be run: {error.strerror}; install podman") from error
        try:
            async with asyncio.timeout(max_s):
                out, wrong = await communicate(process, stdin, ANSWER_MAX_BYTES)
        except (TimeoutError, OutputTooLarge) as error:
            raise CloudUnavailable(f"{self._words[0]} {words[0]} has not answered within {max_s:.0f} s") from error
        finally:
            # Also after a timeout or a cancellation: a podman that runs on would hold its locks.
            await put_down(process)
        return PodmanResult(process.returncode or 0, out, one_line(complaint(wrong.decode(errors="replace"))))

    async def listed(self, *words: str) -> list[dict[str, Any]]:
        """Return a list from podman's JSON."""
        done = await self.run(*words, "--format", "json")
        try:
            found = json.loads(done.out or b"[]")
        except ValueError:
            found = None
        if done.status or not isinstance(found, list):
            raise CloudUnavailable(f"{self._words[0]} {' '.join(words)}: {done.why or 'it answers no JSON'}")
        return found

    async def inspected(self, name: str) -> dict[str, Any] | None:
        """Return the properties of a container; None if it does not exist."""
        done = await self.run("container", "inspect", name)
        if done.status:
            # podman ends with the same status for a missing container and for a failure of its own.
            if "no such" in done.why.lower():
                return None
            raise CloudUnavailable(f"{self._words[0]} inspect {name}: {done.why}")
        try:
            found: dict[str, Any] = json.loads(done.out)[0]
        except (ValueError, LookupError) as error:
            raise CloudUnavailable(f"{self._words[0]} inspect {name}: it answers no JSON") from error
        return found


def complaint(text: str) -> str:
    """Return podman's error output without warnings, unless there is nothing else: they would hide the error."""
    lines = [line for line in text.splitlines() if "level=warning" not in line]
    return "\n".join(lines) if any(map(str.strip, lines)) else text
