"""Hold the connections of all viewers, in a separate process, and send all of them the same bytes.

A slow reader finishes one frame and then receives the state of that moment; a viewer that reads nothing is
disconnected. The process gets all data from its parent, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from headgate.web.viewers.frames import GZIP_HEAD, STILL_HERE, Frame, Scene, unpacked

HEAD = struct.Struct(">BIQ")
"""Header of each message: its kind, the scene or viewer that it is about, and the size of the body."""
ENTER, LEAVE, TELL, CLOSE = 1, 2, 3, 4
GONE = struct.Struct(">I")
"""Message to the parent: the id of a viewer that has left."""
GZIP, CHUNKED = 1, 2
"""Flags of a new viewer."""

VIEWERS_MAX = 10_000
PEER_SHARE = 2
"""One peer may have at most half of the places."""
SPARE_DESCRIPTORS = 64
HELD_MAX_BYTES = 64_000_000
"""Limit on the bytes buffered for all slow readers together."""
SEND_BUFFER_BYTES = 262_144
"""Size of the kernel's send buffer for one viewer."""
STALL_MAX_S = 30.0
"""Time within which a viewer must read one frame."""
SWEEP_INTERVAL_S = 1.0
PING_INTERVAL_S = 45.0
"""Interval between keepalive comments on quiet connections: many proxies close a connection after a silent minute."""
REST = 4
"""Ratio of the pause after sending changes to the time that sending took; the pause is at least `REST_MIN_S`."""
REST_MIN_S = 0.1
NICENESS = 5
READ_BYTES = 65_536


@dataclass(slots=True, eq=False)
class Viewer:
    """Represent one connection. `number` is the number of the state that was sent last."""

    id: int
    peer: str
    scene: int
    there: socket.socket
    gzip: bool
    chunked: bool
    number: int = 0
    sending: bytes = b""
    at: int = 0
    since_s: float = 0.0
    """Time at which sending the current frame began."""
    slow: bool = False
    """Whether the kernel did not accept the entire frame in one call."""


@dataclass(slots=True)
class ViewerHub:
    """Serve all viewers of all scenes."""

    parent: socket.socket
    viewers_max: int
    scenes: dict[int, Scene] = field(default_factory=dict)
    viewers: dict[int, Viewer] = field(default_factory=dict)
    _of_peer: dict[str, dict[int, None]] = field(default_factory=dict)
    """Peer -> its viewers, oldest first."""
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    _heard: bytearray = field(default_factory=bytearray)
    _fds: deque[int] = field(default_factory=deque)
    _fresh: set[int] = field(default_factory=set)
    """Scenes that have changed since they were last sent."""
    _held: dict[int, list[int]] = field(default_factory=dict)
    """Identity of bytes that are being sent slowly -> their size, and the number of viewers that read them."""
    _gone: bytearray = field(default_factory=bytearray)
    _next_s: float = 0.0
    _swept_s: float = 0.0
    _spoke_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Serve until the parent closes its end."""
        self.parent.setblocking(False)
        self._selector.register(self.parent, selectors.EVENT_READ)
        while True:
            for key, mask in self._selector.select(self._until_s()):
                if key.data is None:
                    if not self._hear():
                        return
                    continue
                viewer: Viewer = key.data
                if viewer.id in self.viewers and mask & selectors.EVENT_READ:
                    self._read(viewer)
                if viewer.id in self.viewers and mask & selectors.EVENT_WRITE:
                    self._go_on(viewer)
            self._hand_out()
            self._sweep()
            self._tell_of_gone()

    def _until_s(self) -> float:
        return min(1.0, max(0.0, self._next_s - time.monotonic())) if self._fresh else 1.0

    # --- what the parent process sends

    def _hear(self) -> bool:
        """Handle the messages of the parent process; return whether it is still connected."""
        with contextlib.suppress(BlockingIOError):
            while True:
                # The kernel ends a read at bytes that carry a descriptor, so one read never returns more than one.
                message, fds, _, _ = socket.recv_fds(self.parent, 1 << 20, 16)
                self._fds.extend(fds)
                if not message:
                    return False
                self._heard += message
                self._heed()
        return True

    def _heed(self) -> None:
        while len(self._heard) >= HEAD.size:
            kind, about, size = HEAD.unpack_from(self._heard)
            if len(self._heard) < HEAD.size + size:
                return
            body = bytes(self._heard[HEAD.size : HEAD.size + size])
            del self._heard[: HEAD.size + size]
            if kind == ENTER:
                self._enter(about, body)
            elif kind == LEAVE and about in self.viewers:
                self._leave(self.viewers[about])
            elif kind == CLOSE:
                self._close(about)
            elif kind == TELL:
                head, text, *parts = unpacked(body)
                now_ms, gone = map(int, head.split())
                fresh = dict(zip(parts[gone::2], parts[gone + 1 :: 2], strict=True))
                if self.scenes.setdefault(about, Scene()).update(now_ms, text, fresh, parts[:gone]):
                    self._fresh.add(about)

    def _enter(self, id: int, body: bytes) -> None:
        scene, flags, peer = unpacked(body)
        # Descriptors arrive no later than their messages and in the same order.
        connection = socket.socket(fileno=self._fds.popleft())
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        viewer = Viewer(id, peer.decode(), int(scene), connection, bool(flags[0] & GZIP), bool(flags[0] & CHUNKED))
        # Close the oldest instead of refusing the new one: otherwise, dead
        # connections of one peer could keep new viewers out.
        self._make_room(viewer.peer)
        self.viewers[id] = viewer
        self._of_peer.setdefault(viewer.peer, {})[id] = None
        self._selector.register(connection, selectors.EVENT_READ, viewer)
        if viewer.gzip:
            begin = GZIP_HEAD
            self._send(viewer, b"%x\r\n%b\r\n" % (len(begin), begin) if viewer.chunked else begin)
        if id in self.viewers:
            self._show(viewer)

    def _close(self, scene: int) -> None:
        """End a scene, and disconnect its remaining viewers."""
        self.scenes.pop(scene, None)
        for viewer in [one for one in self.viewers.values() if one.scene == scene]:
            self._leave(viewer)

    def _make_room(self, peer: str) -> None:
        """Drop one viewer if a limit is reached: the oldest of this peer, or of the peer with the most viewers."""
        if len(self._of_peer.get(peer, ())) >= max(1, self.viewers_max // PEER_SHARE):
            self._leave(self.viewers[next(iter(self._of_peer[peer]))])
        elif len(self.viewers) >= self.viewers_max:
            most = max(self._of_peer, key=lambda one: len(self._of_peer[one]))
            self._leave(self.viewers[next(iter(self._of_peer[most]))])

    # --- what viewers are shown

    def _hand_out(self) -> None:
        began_s = time.monotonic()
        if self._fresh and began_s >= self._next_s:
            fresh, self._fresh = self._fresh, set()
            for viewer in list(self.viewers.values()):
                if viewer.scene in fresh and viewer.id in self.viewers:
                    self._show(viewer)
            self._spoke_s = time.monotonic()
            # The pause grows with the number of viewers, so that sending takes at most a fifth of the time.
            self._next_s = self._spoke_s + max(REST_MIN_S, REST * (self._spoke_s - began_s))
        elif began_s - self._spoke_s >= PING_INTERVAL_S:
            ping, self._spoke_s = Frame(STILL_HERE), began_s
            for viewer in list(self.viewers.values()):
                # A viewer that is still reading needs no keepalive, and a second
                # frame would overwrite the rest of the first.
                if viewer.id in self.viewers and not viewer.sending:
                    self._send(viewer, ping.form(gzip=viewer.gzip, chunked=viewer.chunked))

    def _show(self, viewer: Viewer) -> None:
        """Send a viewer the latest changes, unless it is still reading a frame."""
        scene = self.scenes.get(viewer.scene)
        if scene is None or viewer.sending or viewer.number == scene.number:
            return
        # A difference applies only to the state directly before it; a viewer that missed one needs the full state.
        frame = scene.change if viewer.number and viewer.number == scene.number - 1 else scene.full()
        # Set before sending, so that a slow reader afterwards receives only what is newer than this frame.
        viewer.number = scene.number
        self._send(viewer, frame.form(gzip=viewer.gzip, chunked=viewer.chunked))

    def _send(self, viewer: Viewer, data: bytes) -> None:
        viewer.sending, viewer.at, viewer.since_s = data, 0, time.monotonic()
        if not self._push(viewer) or not viewer.sending:
            return
        viewer.slow = True
        # Viewers share the bytes of a frame, so a frame counts once, however many read it slowly.
        held = self._held.setdefault(id(data), [len(data), 0])
        held[1] += 1
        self._selector.modify(viewer.there, selectors.EVENT_READ | selectors.EVENT_WRITE, viewer)
        # Closing one viewer frees nothing while others read the same frame, so repeat until enough bytes are free.
        while sum(size for size, _ in self._held.values()) > HELD_MAX_BYTES:
            self._leave(min((one for one in self.viewers.values() if one.sending), key=lambda one: one.since_s))

    def _push(self, viewer: Viewer) -> bool:
        """Send as much as the kernel accepts; return whether the viewer is still connected."""
        try:
            sent = viewer.there.send(memoryview(viewer.sending)[viewer.at :])
        except BlockingIOError:
            return True
        except OSError:
            self._leave(viewer)
            return False
        viewer.at += sent
        if viewer.at == len(viewer.sending):
            self._release(viewer)
        return True

    def _go_on(self, viewer: Viewer) -> None:
        """Send more to a slow reader; once the frame is sent, send the state of that moment."""
        if self._push(viewer) and not viewer.sending:
            self._selector.modify(viewer.there, selectors.EVENT_READ, viewer)
            self._show(viewer)

    def _release(self, viewer: Viewer) -> None:
        if viewer.slow:
            held = self._held[id(viewer.sending)]
            held[1] -= 1
            if not held[1]:
                del self._held[id(viewer.sending)]
        viewer.sending, viewer.at, viewer.slow = b"", 0, False

    # --- who leaves

    def _read(self, viewer: Viewer) -> None:
        """Discard what a viewer sends, and disconnect it if it has left."""
        try:
            if viewer.there.recv(READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._leave(viewer)

    def _sweep(self) -> None:
        """Drop viewers that do not read, once a second."""
        now_s = time.monotonic()
        if now_s - self._swept_s < SWEEP_INTERVAL_S:
            return
        self._swept_s = now_s
        for viewer in [one for one in self.viewers.values() if one.sending and one.since_s < now_s - STALL_MAX_S]:
            self._leave(viewer)

    def _leave(self, viewer: Viewer) -> None:
        if self.viewers.pop(viewer.id, None) is None:
            return
        of_peer = self._of_peer[viewer.peer]
        del of_peer[viewer.id]
        if not of_peer:
            del self._of_peer[viewer.peer]
        if viewer.sending:
            self._release(viewer)
        self._selector.unregister(viewer.there)
        viewer.there.close()
        self._gone += GONE.pack(viewer.id)

    def _tell_of_gone(self) -> None:
        """Report the viewers that have left to the parent, without waiting for it."""
        with contextlib.suppress(OSError):
            while self._gone:
                # The parent may be busy: what its buffer does not accept is sent in a later round.
                del self._gone[: self.parent.send(self._gone)]


def main() -> None:
    """Serve; the last argument is the number of the descriptor that connects to the parent."""
    # The gate on the same machine has priority when processor time is scarce.
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each viewer takes one descriptor, and the soft limit is often 1,024.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    room = VIEWERS_MAX if most == resource.RLIM_INFINITY else most - SPARE_DESCRIPTORS
    ViewerHub(socket.socket(fileno=int(sys.argv[-1])), max(2, min(VIEWERS_MAX, room))).run()
