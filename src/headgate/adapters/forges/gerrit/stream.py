"""Read `gerrit stream-events`, which announces immediately what may have changed.

The OpenSSH client holds the connection; it ends on an unknown host key, and when the server stops answering keepalive
messages. An event of the stream is only a hint: its readers query REST for what it names.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from headgate.adapters.forges.gerrit.entities import StreamEvent
from headgate.adapters.forges.gerrit.server import Server
from headgate.base.errors import ForgeError
from headgate.base.pipes import ends, put_down
from headgate.base.tasks import end
from headgate.base.texts import line

LINE_MAX_BYTES = 4 * 2**20
"""Size of one event; a longer one is skipped, and becomes a hint that names no place."""
CONNECT_MAX_S = 20
MISSES_MAX = 3
"""Missed keepalive answers after which the connection counts as dead."""
COMPLAINT_MAX_BYTES, SHOWN_MAX_CHARS = 4_000, 400
"""How much of ssh's error output is stored, and how much is shown."""
GRACE_S = 2.0
_STRANGER = "host key verification failed"
_DENIED = "permission denied"
_NOISE = ("ref-replicat", "ref-replication-", "fetch-ref-", "cache-eviction")
"""Prefixes of the types of events that are not about changes."""


class StreamDead(ForgeError, OSError):
    """Report that the stream has ended, with a readable reason."""


class GerritHint(msgspec.Struct, frozen=True):
    """Name where something may be new."""

    number: int = 0
    """Number of a change; 0 if none is named."""
    project: str = ""
    """Name of a project, as on the server; empty if the place is unknown, so that everything is queried."""
    ref: str = ""
    """Ref of the project that moved; empty if none did."""


def ssh_options(server: Server) -> list[str]:
    """Return the options of ssh for any command on the server: no prompts, and no new host keys."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_MAX_S),
        "StrictHostKeyChecking": "yes",
        # Otherwise the server could add keys to the operator's known_hosts.
        "UpdateHostKeys": "no",
        "ServerAliveInterval": str(server.keepalive_s),
        "ServerAliveCountMax": str(MISSES_MAX),
        "ForwardAgent": "no",
        # A shared master connection of the operator would ignore our options and outlive this process.
        "ControlPath": "none",
        "LogLevel": "ERROR",
    }
    if server.known_hosts:
        # Ignore the machine's file too, so that only the named file decides which keys are valid.
        options |= {"UserKnownHostsFile": f'"{server.known_hosts}"', "GlobalKnownHostsFile": "/dev/null"}
    if server.sshkey:
        options["IdentitiesOnly"] = "yes"
    arguments = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return [*arguments, *(["-i", server.sshkey] if server.sshkey else [])]


def command(server: Server, program: str = "ssh") -> list[str]:
    """Return the command that opens the stream."""
    where = ["-p", str(server.port), "-l", server.user, "--", server.ssh_server]
    return [program, "-T", *ssh_options(server), *where, "gerrit stream-events"]


@asynccontextmanager
async def stream(server: Server, program: str = "ssh") -> AsyncIterator[AsyncIterator[GerritHint]]:
    """Provide the events of the stream as they arrive. The iterator raises StreamDead when the stream ends, for
    whatever reason."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command(server, program),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_MAX_BYTES,
            env=_environment(),
            # Its own process group, so that `_ended` also ends what ssh has started.
            start_new_session=True,
        )
    except OSError as error:
        raise StreamDead(f"{program} cannot be run: {error.strerror}; install openssh-client") from error
    complaint = asyncio.ensure_future(_complaint(process))
    try:
        yield _hints(server, process, complaint)
    finally:
        await end(complaint)
        await _ended(process)


async def _hints(server: Server, process: Process, complaint: asyncio.Future[str]) -> AsyncIterator[GerritHint]:
    assert process.stdout is not None
    while True:
        try:
            raw_line = await process.stdout.readuntil()
        except asyncio.IncompleteReadError:
            break
        except asyncio.LimitOverrunError as error:
            await _passed_over(process.stdout, error.consumed)
            # The skipped event may have concerned anything.
            yield GerritHint()
            continue
        found = hint(raw_line)
        if found is not None:
            yield found
    status = await process.wait()
    raise StreamDead(_why(server, status, await complaint))


async def _passed_over(stream: asyncio.StreamReader, size: int) -> None:
    """Skip to the end of a line that is too long."""
    while True:
        await stream.readexactly(size)
        try:
            await stream.readuntil()
        except asyncio.LimitOverrunError as error:
            size = error.consumed
        except asyncio.IncompleteReadError:
            return
        else:
            return


def hint(raw_line: bytes) -> GerritHint | None:
    """Return the place that a line hints at; None if it does not concern us."""
    try:
        event = msgspec.json.decode(raw_line, type=StreamEvent)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # An unneeded hint only costs a query; a missing one would delay a change.
        return GerritHint()
    if event.type.startswith(_NOISE):
        return None
    if event.change is not None:
        return GerritHint(event.change.number, event.change.project)
    if event.update is not None:
        ref = event.update.ref
        if ref.startswith("refs/changes/"):
            return _of_change_ref(event.update.project, ref)
        return GerritHint(project=event.update.project, ref=ref if ref.startswith("refs/") else f"refs/heads/{ref}")
    project = event.project if isinstance(event.project, str) else event.project.project
    return GerritHint(project=project) if project else GerritHint()


def _of_change_ref(project: str, ref: str) -> GerritHint | None:
    """Return a hint at the change that the ref names; None if it names no change. Any ref below a change counts, not
    only its patch sets: an update of `meta`, such as a robot's vote, may have no event of its own."""
    words = ref.split("/")
    number = words[3] if len(words) > 3 else ""
    return GerritHint(int(number), project, ref) if number.isascii() and number.isdecimal() else None


def _why(server: Server, status: int, text: str) -> str:
    where, lowered = f"{server.ssh_server}:{server.port}", text.lower()
    text = line(text[-SHOWN_MAX_CHARS:])
    if _STRANGER in lowered:
        known = server.known_hosts or "~/.ssh/known_hosts"
        of = server.ssh_server if server.port == 22 else f"[{server.ssh_server}]:{server.port}"
        return (
            f"{where} has no host key that {known} lists for {of}; `ssh-keyscan -p {server.port} "
            f"{server.ssh_server}` prints its keys: verify them, then add the line to that file"
        )
    if _DENIED in lowered:
        return f"{where} refuses {server.user}: {text}; give the account the public half of `sshkey`"
    return f"{where}: ssh ended with {status}{f': {text}' if text else ''}"


async def _complaint(process: Process) -> str:
    assert process.stderr is not None
    tail = b""
    # Read to the end even though only the tail is kept: ssh would block on a full pipe.
    while piece := await process.stderr.read(COMPLAINT_MAX_BYTES):
        tail = (tail + piece)[-COMPLAINT_MAX_BYTES:]
    return " ".join(tail.decode("utf-8", "replace").split())


async def _ended(process: Process) -> None:
    """End the process and everything it has started, such as a proxy: it leads a process group of its own."""
    try:
        if process.returncode is None:
            process.terminate()
            await ends(process, GRACE_S)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            # A process that ended on its own may have left others of its group running.
            os.killpg(process.pid, signal.SIGKILL)
        await put_down(process)


def _environment() -> dict[str, str]:
    """Return the variables of our environment by which ssh finds its files and the agent."""
    names = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK", "LANG")
    return {name: os.environ[name] for name in names if name in os.environ}
