"""Run pods of a modelled cluster as containers of podman, and commands in them over a websocket."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.kubernetes.state import running, status

MISSING = "podman and runc run as root only; make test installs them"
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, RESULT, CLOSE = 0, 1, 2, 3, 255
"""First bytes of the websocket's messages, which name the channel; CLOSE is followed by the channel that ends."""
PIECE_SIZE_BYTES = 32_768


def limits() -> list[str]:
    """Return options for podman where not even root may raise its own limits: its defaults are above them."""
    return ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]


class ContainerEngine:
    """Run and remove containers; `close` leaves nothing of them.

    The containers of a pod share nothing and have no network: what a node of a cluster does there is not modelled.
    """

    def __init__(self) -> None:
        self._place = place = Path(tempfile.mkdtemp(prefix="hg-pods-"))  # podman takes no long names
        self.images = set[str]()
        self._begun: dict[str, list[str]] = {}
        """Namespace -> names of its containers that were started."""
        self.words = [
            "podman", "--root", str(place / "store"), "--runroot", str(place / "run"), "--storage-driver", "overlay",
            "--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none",
        ]  # fmt: skip

    def load(self, name: str, content: bytes) -> None:
        """Make an image of a tar archive."""
        file = self._place / "image.tar"
        file.write_bytes(content)
        self._run("import", "-q", str(file), name)
        self.images.add(name)

    def run(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Start the containers of a pod; return its status."""
        namespace = pod["metadata"]["namespace"]
        for one in pod["spec"]["containers"]:
            name = self._name(namespace, one["name"])
            environment = [f"--env={e['name']}={e.get('value', '')}" for e in one.get("env") or ()]
            command = [*(one.get("command") or ()), *(one.get("args") or ())]
            where = "--network=none", "--pull=never", *limits()
            # Before the start: what fails halfway is removed too.
            self._begun.setdefault(namespace, []).append(name)
            self._run("run", "-d", "--name", name, *where, *environment, one["image"], *command)
        return status("Running", dict(pod), **running())

    def stop(self, namespace: str) -> None:
        """Remove the containers of a namespace."""
        if names := self._begun.pop(namespace, []):
            self._run("rm", "-f", "-t", "0", *names)

    def living(self) -> list[str]:
        """Return the names of the containers that run."""
        return self._run("ps", "--format", "{{.Names}}").split()

    def command(self, namespace: str, container: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in a container."""
        return [*self.words, "exec", "-i", self._name(namespace, container), *words]

    async def log(self, namespace: str, container: str) -> bytes:
        """Return the output of a container."""
        words = [*self.words, "logs", self._name(namespace, container)]
        process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        return (await process.communicate())[0]

    def close(self) -> None:
        """Remove everything."""
        for namespace in list(self._begun):
            self.stop(namespace)
        end_s = time.monotonic() + DEADLINE_S
        while self._place.exists():  # what podman leaves behind to clean after commands may still be at it
            # podman mounts its overlay directory over itself, and a mount cannot be removed.
            subprocess.run(["umount", str(self._place / "store" / "overlay")], check=False, capture_output=True)
            shutil.rmtree(self._place, ignore_errors=True)
            assert time.monotonic() < end_s, f"{self._place} cannot be removed"

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self.words, *words], capture_output=True, text=True)
        assert done.returncode == 0, f"podman {words[0]}: {done.stderr}"
        return done.stdout

    @staticmethod
    def _name(namespace: str, container: str) -> str:
        return f"{namespace}-{container}"


async def execute(request: web.Request, command: Sequence[str]) -> web.StreamResponse:
    """Run a command over a websocket; return once it has ended and its exit status is sent."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdout and process.stderr
    fed = asyncio.ensure_future(_feed(socket, process))
    try:
        await asyncio.gather(_send_output(socket, STDOUT, process.stdout), _send_output(socket, STDERR, process.stderr))
        # After both outputs: kubectl takes the result for the end.
        code = await process.wait()
        with suppress(ConnectionError):
            await socket.send_bytes(bytes([RESULT]) + json.dumps(_result(code)).encode())
    finally:
        fed.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    await socket.close()
    return socket


def _result(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }  # fmt: skip


async def _send_output(socket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader) -> None:
    while piece := await stream.read(PIECE_SIZE_BYTES):
        with suppress(ConnectionError):
            await socket.send_bytes(bytes([channel]) + piece)


async def _feed(socket: web.WebSocketResponse, process: Process) -> None:
    """Pass input to the command until the client disconnects, which also ends the command."""
    assert process.stdin
    async for message in socket:
        if message.type != WSMsgType.BINARY or not message.data:
            continue
        channel, piece = message.data[0], message.data[1:]
        if channel == STDIN:
            process.stdin.write(piece)
            with suppress(ConnectionError):
                await process.stdin.drain()
        # Only version 5 of the protocol can end one direction; before it, a command that reads to the end never ended.
        elif channel == CLOSE and piece == bytes([STDIN]):
            process.stdin.close()
    if process.returncode is None:
        process.kill()
