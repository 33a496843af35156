"""An ssh-agent for one build: it holds the keys that open the build's machines, and those that jobs give it.

No playbook can read the keys of its machines: it has the agent's socket.  The agent runs as the build's user, outside
of every sandbox, and is the same for all playbooks, so a base job may exchange the operator's key for one of the
build's own (`ssh-add`, `ssh-add -d`).  What a playbook with secrets gives it is taken back when that one has ended:
all but the keys that signed before it began, since whoever knows a public key can put it there without the private one,
or into the comment of another.
"""

from __future__ import annotations

import asyncio
import base64
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.adapters.process.confinement.spaces import Spaces
from headgate.adapters.process.confinement.users import BuildUser
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.sandbox import AGENT_SOCKET

PROGRAM = "ssh-agent"
SOCKET_VARIABLE = "SSH_AUTH_SOCK"
START_MAX_S = 20.0
KEY_SIZE_MAX_BYTES = 65_536
_INPUT = 100
"""Descriptor that programs read their input from."""
KEYS_MAX = 50
"""Most keys that remain after a playbook with secrets, or that are removed one by one."""
_LISTED = 'said=$(ssh-add -L) || test "$said" = "The agent has no identities." || exit 1; printf "%s\\n" "$said"'
"""`ssh-add -L` exits with 1 when there are no keys, and also when there are too many to list."""
_SIGNING = (
    f"ssh-add -L | head -n {KEYS_MAX} | while IFS= read -r key; do"
    ' printf "%s\\n" "$key" | ssh-add -T /dev/stdin >&2 && printf "%s\\n" "$key"; done; true'
)
_KINDS = ("ssh-", "ecdsa-", "sk-")


class NoKey(Exception):
    """Report that a key for a machine of the build cannot be used. The text is for people."""


class Agent:
    """Run an agent; `place` is its directory, with the socket."""

    def __init__(self, keeper: ProcessKeeper, spaces: Spaces, user: BuildUser | None, place: Path) -> None:
        self._keeper, self._spaces, self._user, self.place = keeper, spaces, user, place

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, keeper: ProcessKeeper, spaces: Spaces, user: BuildUser | None, place: Path
    ) -> AsyncIterator[Agent]:
        """Start an agent for the context. Raise OSError."""
        agent = cls(keeper, spaces, user, place)
        place.mkdir(mode=0o700)
        await agent._owned(user.inside if user else None)
        held = socket.socket(fileno=await agent._begun())
        try:
            held.setblocking(False)
            async with asyncio.timeout(START_MAX_S):
                if not await asyncio.get_running_loop().sock_recv(held, 1_000):
                    raise OSError(f"{PROGRAM} does not start")
            yield agent
        finally:
            held.close()  # the agent ends when this is closed
            await agent._owned(0 if user else None)

    async def add(self, key: Path) -> None:
        """Add the key in a file that this process may read. Raises NoKey."""
        label = f"the key {key}, which a machine is reached with"
        try:
            text = key.read_bytes()[:KEY_SIZE_MAX_BYTES]
        except OSError as error:
            raise NoKey(f"{label}, cannot be read by the executor: {error.strerror}") from error
        try:
            await self._output("ssh-add -q " + (f"/proc/self/fd/{_INPUT}" if self._user else "-"), text)
        except OSError as error:
            raise NoKey(f"{label}, is not taken; it must be a private key without a passphrase: {error}") from error

    async def signing(self) -> frozenset[str]:
        """Return the public keys of the keys that it holds. Raises OSError."""
        return _keys(await self._output(_SIGNING))

    async def back_to(self, keys: frozenset[str]) -> None:
        """Remove all keys but these; remove these, too, if the listed keys cannot be removed one by one. Raises
        OSError."""
        try:
            others = _keys(await self._output(_LISTED)) - keys
            if len(others) > KEYS_MAX:
                raise OSError(f"the agent has {len(others)} more keys than before")
            for key in others:
                await self._output(f"ssh-add -q -d /proc/self/fd/{_INPUT}", f"{key}\n".encode())
        except OSError:
            await self._output("ssh-add -q -D")

    async def _begun(self) -> int:
        """Start the agent, and return the descriptor of a socket: the agent ends when it is closed.  Raise OSError."""
        # With -P '' the agent loads no library that a job names.
        words = self._in_place(f"{PROGRAM} -P '' -D -a {AGENT_SOCKET}")
        made = (await self._keeper.errand(self._spaces, do="hold", command=words)).made
        assert made is not None, "the errand makes one"
        return made

    async def _output(self, command: str, text: bytes = b"") -> str:
        """Return the output of a command that reads `text`. Raise OSError."""
        inputs = {_INPUT: base64.b64encode(text).decode()} if text else {}
        words, stdin = self._in_place(f"sh -c {shlex.quote(command)}"), text.decode(errors="replace")
        done = await self._keeper.errand(self._spaces, do="program", command=words, stdin=stdin, inputs=inputs)
        return done.output

    def _in_place(self, command: str) -> list[str]:
        """Return the arguments that enter the directory, then run a command as the build's user, who may not look above
        it."""
        script = f'cd "$0" && export {SOCKET_VARIABLE}={AGENT_SOCKET} && exec "$@" {command}'
        return ["sh", "-c", script, str(self.place), *(self._user.becoming() if self._user else ("env",))]

    async def _owned(self, owner: int | None) -> None:
        """Give the agent's directory to an owner, if there is one.  Raise OSError."""
        if owner is not None:
            words = ["chown", "--recursive", "--no-dereference", f"{owner}:{owner}", "--", str(self.place)]
            await self._keeper.program(self._spaces, words)


def _keys(listing: str) -> frozenset[str]:
    return frozenset(line for line in listing.splitlines() if line.startswith(_KINDS))
