"""Run the viewers' process, hand connections over to it, and send it the states to show."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from headgate.web.viewers.frames import packed
from headgate.web.viewers.hub import CHUNKED, CLOSE, ENTER, GONE, GZIP, HEAD, LEAVE, TELL

log = logging.getLogger("headgate.web")

ENTERING_MAX = 500
"""Limit on viewers that wait to be handed over; more are refused."""
ENDED_MAX_S = 5.0
# The path of the package is the first argument: without site packages (`-S`) Python would not find it.
_PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); from headgate.web.viewers import hub; hub.main()"


class Porter:
    """Run the viewers' process while there are viewers. Sending never waits for it: a state that it has not read yet is
    replaced by the latest one."""

    def __init__(self, gone: Callable[[int], None], lost: Callable[[], None]) -> None:
        """Call `gone` for each viewer that leaves, and `lost` when the process has ended, and with it all viewers."""
        self._gone, self._lost = gone, lost
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._words: deque[tuple[bytes, socket.socket | None]] = deque()
        self._states: dict[int, tuple[int, bytes, Mapping[bytes, bytes]]] = {}
        """Scene -> the state to send."""
        self._sent: dict[int, Mapping[bytes, bytes]] = {}
        """Scene -> its items as they were last sent."""
        self._sending = memoryview(b"")
        self._heard = b""

    @property
    def pid(self) -> int:
        """Return the id of the process; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def full(self) -> bool:
        return len(self._words) >= ENTERING_MAX

    def enter(
        self, viewer: int, scene: int, connection: socket.socket, peer: str, *, gzip: bool, chunked: bool
    ) -> None:
        """Hand a connection over, and close it in this process. Raise OSError."""
        self._begin()
        flags = bytes([GZIP * gzip | CHUNKED * chunked])
        self._say(ENTER, viewer, packed([b"%d" % scene, flags, peer.encode()]), connection)

    def leave(self, viewer: int) -> None:
        """Have the process disconnect a viewer."""
        self._say(LEAVE, viewer)

    def close_scene(self, scene: int) -> None:
        """End a scene, and disconnect its viewers."""
        self._states.pop(scene, None)
        self._sent.pop(scene, None)
        self._say(CLOSE, scene)

    def tell(self, scene: int, now_ms: int, text: bytes, items: Mapping[bytes, bytes]) -> None:
        """Set the state that viewers of a scene receive."""
        self._states[scene] = (now_ms, text, items)
        self._pump()

    def close(self) -> None:
        """End the process, and with it the connections of all viewers."""
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait(ENDED_MAX_S)
        for _, connection in self._words:
            if connection is not None:
                connection.close()
        self._socket = self._process = None
        self._words.clear()
        self._states.clear()
        self._sent.clear()
        self._sending, self._heard = memoryview(b""), b""

    def _begin(self) -> None:
        if self._socket is not None:
            return
        # The child ends when its end of this pair reads nothing more, so it cannot outlive a parent that is killed.
        ours, its = socket.socketpair()
        with its, contextlib.ExitStack() as undone:
            # If the process cannot be started, no half-open pair may remain: the next viewer tries again.
            undone.callback(ours.close)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(__file__).parents[3]), str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                # The environment may hold secrets, which the process does not need.
                env={"PATH": os.environ.get("PATH", os.defpath)},
                # A Ctrl-C at the terminal reaches the entire foreground group, but the child must end with its parent.
                start_new_session=True,
            )
            undone.pop_all()
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def _say(self, kind: int, about: int, body: bytes = b"", connection: socket.socket | None = None) -> None:
        self._words.append((HEAD.pack(kind, about, len(body)) + body, connection))
        self._pump()

    def _pump(self) -> None:
        """Send as much as possible without waiting."""
        if self._socket is None:
            self._words.clear()
            self._states.clear()
            return
        loop = asyncio.get_running_loop()
        try:
            while self._sending or self._words or self._states:
                self._send_more(self._socket)
        except BlockingIOError:
            loop.add_writer(self._socket, self._pump)
            return
        except OSError as error:
            self._end(str(error))
            return
        loop.remove_writer(self._socket)

    def _send_more(self, control: socket.socket) -> None:
        """Send the next piece. Raise OSError; BlockingIOError when sending would block."""
        if self._sending:
            self._sending = self._sending[control.send(self._sending) :]
        elif self._words:
            # The message is removed only once the kernel has accepted its first
            # bytes: if sending would block, all of it is sent later.
            word, connection = self._words[0]
            sent = control.send(word) if connection is None else socket.send_fds(control, [word], [connection.fileno()])
            self._words.popleft()
            # The descriptor travels with the first byte, so the rest of the message is sent without it.
            self._sending = memoryview(word)[sent:]
            if connection is not None:
                connection.close()
        else:
            # States come last and replace each other: a child that lags
            # receives the latest state instead of a growing backlog.
            scene = next(iter(self._states))
            body = self._news(scene, *self._states.pop(scene))
            self._sending = memoryview(HEAD.pack(TELL, scene, len(body)) + body)

    def _news(self, scene: int, now_ms: int, text: bytes, items: Mapping[bytes, bytes]) -> bytes:
        """Encode the state with only the items that differ from what was sent last, and the names of removed ones."""
        # Compared with what was really sent: states that were replaced
        # before they were sent do not count.
        before, self._sent[scene] = self._sent.get(scene, {}), items
        fresh = [part for one in items.items() if before.get(one[0]) != one[1] for part in one]
        gone = [name for name in before if name not in items]
        return packed([b"%d %d" % (now_ms, len(gone)), text, *gone, *fresh])

    def _hear(self) -> None:
        assert self._socket is not None, "the loop reads from it"
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end("it ended")
            return
        self._heard += data
        # A stream socket has no message boundaries: the last id may have arrived only in part.
        complete = len(self._heard) - len(self._heard) % GONE.size
        for (viewer,) in GONE.iter_unpack(self._heard[:complete]):
            self._gone(viewer)
        self._heard = self._heard[complete:]

    def _end(self, why: str) -> None:
        log.warning("the viewers' process ended and is restarted for the next viewer: %s", why)
        self.close()
        self._lost()
