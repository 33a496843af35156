"""Run commands in the container of the build: the client of `confinement/server`, with the standard library only.

As a program, `rsync` starts it instead of ssh: `headgate_commands.py [-u BECOME] [-l USER] HOST WORD...`.  The
container's output is untrusted bytes.
"""

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time

SOCKET = "/run/headgate-container/commands"
HEAD = struct.Struct("!cI")
CHUNK_SIZE_BYTES = 65_536
FRAME_SIZE_MAX_BYTES = 4_000_000
START_MAX_S = 60.0
RETRY_INTERVAL_S = 0.02


class Gone(Exception):
    """Report that the container does not exist or has ended; the message is shown to users."""


class Refused(Exception):
    """Report that the command was not started; the message is shown to users."""


def run(command, user, output, errors, source=None):
    """Run a command, and return its exit status. `output` and `errors` receive its output; `source` is a descriptor
    with its input. Raise Gone, Refused, and the errors of these two functions."""
    with contextlib.closing(_connected()) as connection:
        connection.settimeout(START_MAX_S)
        try:
            _send(connection, b"c", json.dumps({"command": command, "user": user}).encode())
            kind, payload = _frame(connection)
            if kind == b"x":
                raise Refused(payload.decode(errors="replace"))
            connection.settimeout(None)
            return _exchange(connection, output, errors, source)
        except TimeoutError as late:
            raise Gone(f"the container does not answer within {START_MAX_S:.0f} s") from late
        except (OSError, EOFError) as gone:
            raise Gone("the container has ended, or the command's connection to it") from gone


def _connected():
    """Wait for the socket, which is created while the playbook starts, and connect to it."""
    end_s = time.monotonic() + START_MAX_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(START_MAX_S)
            connection.connect(SOCKET)
            return connection
        except OSError as error:
            connection.close()
            # Any other error means that the socket exists but does not answer; waiting does not help then.
            if not isinstance(error, FileNotFoundError) or time.monotonic() > end_s:
                raise Gone(f"the container of this job cannot be reached: {error.strerror or error}") from error
            time.sleep(RETRY_INTERVAL_S)


def _exchange(connection, output, errors, source):
    # Use a thread: the server stops reading input while the command does, but output must continue in the meantime.
    feeding = threading.Thread(target=_feed, args=(connection, source), daemon=True)
    feeding.start()
    try:
        while True:
            kind, payload = _frame(connection)
            if kind == b"s":
                return int(payload)
            if kind == b"x":
                raise Refused(payload.decode(errors="replace"))
            (output if kind == b"o" else errors)(payload)
    finally:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        feeding.join(0 if source == 0 else None)  # the input of the calling program may never end


def _feed(connection, source):
    """Send the input and its end, until the receiver closes the connection."""
    with contextlib.suppress(OSError):
        while source is not None and (chunk := os.read(source, CHUNK_SIZE_BYTES)):
            _send(connection, b"i", chunk)
        _send(connection, b"i", b"")


def _frame(connection):
    kind, size = HEAD.unpack(_receive_exactly(connection, HEAD.size))
    if size > FRAME_SIZE_MAX_BYTES:
        raise EOFError
    return kind, _receive_exactly(connection, size)


def _receive_exactly(connection, size):
    pieces = bytearray()
    while len(pieces) < size:
        piece = connection.recv(size - len(pieces))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)


def _send(connection, kind, text):
    connection.sendall(HEAD.pack(kind, len(text)) + text)


def main(words):
    """Return the exit status for `[-u BECOME] [-l USER] HOST WORD...`; as with ssh, the words are joined."""
    named = {}
    while words[:1] in (["-u"], ["-l"]):
        named[words[0]], words = words[1], words[2:]
    user = named.get("-u") or named.get("-l") or "root"
    try:
        status = run(" ".join(words[1:]), user, _writes(1), _writes(2), 0)
    except (Gone, Refused) as error:
        print(error, file=sys.stderr)
        return 255
    return status if status >= 0 else 128 - status


def _writes(fd):
    def write(chunk):
        while chunk:
            chunk = chunk[os.write(fd, chunk) :]

    return write


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Do not wait for the feeding thread, which may block in a read of standard input forever.
    os._exit(code & 255)
