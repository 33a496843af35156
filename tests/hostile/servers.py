"""Provide misbehaving git servers, each on a port of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Talk = Callable[[socket.socket, threading.Event], None]
STEP_S = 0.2


@contextmanager
def serving(talk: Talk) -> Iterator[int]:
    """Provide the port where `talk` is called for every client, until its event is set."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(STEP_S)

        def one(peer: socket.socket) -> None:
            with peer, suppress(OSError):  # the client has gone
                talk(peer, over)

        def accept() -> None:
            while not over.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=one, args=(peer,), daemon=True).start()

        listening = threading.Thread(target=accept, daemon=True)
        listening.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            listening.join()


def silent(peer: socket.socket, over: threading.Event) -> None:
    """Accept the connection, and never send anything."""
    over.wait()


def trickling(peer: socket.socket, over: threading.Event) -> None:
    """Begin an answer and continue byte by byte, for ever."""
    peer.recv(65_536)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n")
    while not over.wait(STEP_S):
        peer.sendall(b"0")


def endless(peer: socket.socket, over: threading.Event) -> None:
    """List refs endlessly, as fast as they are read."""
    peer.recv(65_536)
    number = 0
    while not over.is_set():
        lines = (b"%040x refs/heads/b%d\n" % (n + 1, n) for n in range(number, number + 1_000))
        peer.sendall(b"".join(b"%04x" % (len(line) + 4) + line for line in lines))
        number += 1_000


def shouting(peer: socket.socket, over: threading.Event) -> None:
    """Refuse with a very long message that moves cursors."""
    peer.recv(65_536)
    line = b"ERR \x1b]0;owned\x07\x1b[2J\xe2\x80\xaeowned\r" + b"very " * 12_000
    peer.sendall(b"%04x" % (len(line) + 4) + line)


def gibberish(peer: socket.socket, over: threading.Event) -> None:
    peer.recv(65_536)
    peer.sendall(b"\xff" * 100_000)
