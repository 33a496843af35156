"""Start commands in a container for the Ansible of its build: standard library only, see `supervisor`.

A supervisor with a `serve` request listens at a socket before it enters the namespaces of its command; the command
itself only keeps the namespaces of the container alive.  Each connection is one command, in a separate process.  The
client sends the command and the user, and nothing else: no options, files or descriptors pass in either direction.

A frame is one byte, a size in 4 bytes, and data of that size.  From the client: first `c`, JSON with `command` and
`user`; then `i`, input, which ends with an empty frame.  To the client: `b`, the command has begun; `o` and `e`, output
and errors; finally `s`, the exit status as a number, negative for a signal, or `x`, the reason why there is none.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Collection
from typing import Any, NoReturn

from headgate.adapters.process.confinement import boxes

SOCKET = "commands"
"""Name of the socket in the directory that the client sees."""
HOLD = ["/bin/sh", "-c", "echo; read held"]
"""Command that keeps a container of any image running until its input ends; its output shows that the container is
up."""
CONNECTIONS_MAX = 64
"""Concurrent connections; further ones wait."""
FRAME_SIZE_MAX_BYTES = 4_000_000
CHUNK_SIZE_BYTES = 65_536
REST_CHUNKS_MAX = 64
"""Maximum number of chunks of output that are read after a command's end; a pipe cannot contain more."""
HEAD = struct.Struct("!cI")
ASK_TIMEOUT_S = 30.0
"""Time limit for a client to send its request."""
END_TIMEOUT_S = 2.0
"""Time limit for a container to end with its killed command."""


class CommandServer:
    """Serve the commands of one container. `request` has `directory` (of the socket), `owner` (the user who may
    connect), `capabilities`, `filter` (base64) and `environment`."""

    def __init__(self, request: dict[str, Any], cgroup_fds: Collection[int]) -> None:
        """Start to listen.  Raise OSError."""
        self._request, self._cgroup_fds = request, cgroup_fds
        self._handlers = set[int]()
        self._rights = boxes.ContainerRights(
            request["capabilities"], base64.b64decode(request["filter"]), request["environment"]
        )
        self._spaces: dict[str, int] = {}
        self._first = -1
        """First process of the container; the container ends with it."""
        self._held, self.held = os.pipe()
        """Input of the command that holds the container; it ends with this process."""
        self._ready, self.ready = os.pipe()
        self._info, self.info = os.pipe()
        """Pipe through which bubblewrap describes its namespaces."""
        # Bind through a descriptor: the directory's path may exceed the 107 bytes of a socket's address.
        at = os.open(request["directory"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(f"/proc/self/fd/{at}/{SOCKET}")
        os.chown(SOCKET, request["owner"], request["owner"], dir_fd=at)
        # Connecting needs write permission: this mode admits only the build's user.
        os.chmod(SOCKET, 0o600, dir_fd=at)
        self._listening.listen(CONNECTIONS_MAX)
        os.close(at)

    @property
    def streams(self) -> tuple[int, int]:
        """Return the input and output of the command that holds the container."""
        return self._held, self.ready

    def begun(self) -> None:
        """Close the descriptors that only the command needs, once it has them."""
        for fd in (self._held, self.ready, self.info):
            os.close(fd)
        # Do this before any command of the container runs: each handler inherits it, and thus reveals nothing there.
        boxes.hide()

    @property
    def source(self) -> int:
        """Return the descriptor that must be readable before `go_on` is called; negative if there is currently none."""
        if not self._spaces:
            return self._ready
        # A client that opens connections endlessly fills the backlog of its own socket, not the list of processes.
        return self._listening.fileno() if len(self._handlers) < CONNECTIONS_MAX else -1

    def go_on(self) -> bool:
        """Handle the readable source; return False once there is nothing more to do."""
        if not self._spaces:
            # bubblewrap ended without a container, and has printed the reason to the build's log.
            if not os.read(self._ready, 1):
                self._listening.close()  # waiting clients get an error
                return False
            self._look()
            return True
        connection, _ = self._listening.accept()
        pid = os.fork()
        if pid == 0:
            # A handler enters the process namespace of a hostile container: it must have no descriptor that is not
            # needed there.
            _keep((0, 1, 2, connection.fileno(), self._first, *self._cgroup_fds, *self._spaces.values()))
            _handle(connection, self._rights, self._spaces, self._first, self._cgroup_fds)
        connection.close()
        self._handlers.add(pid)
        return True

    def gone(self, pid: int) -> None:
        self._handlers.discard(pid)

    def _look(self) -> None:
        """Open the namespaces of the container, which are complete once a program in it has written something. Raise
        OSError."""
        # One read returns everything: bubblewrap writes this before it starts the program whose output has arrived.
        pid = json.loads(os.read(self._info, CHUNK_SIZE_BYTES))["child-pid"]
        self._first = os.pidfd_open(pid)
        for kind in ("pid", *boxes.SPACES):
            path = f"/proc/{pid}/ns/{kind}"
            # A shared namespace may belong to an outer user namespace, which setns would refuse, so skip it.
            if os.stat(path).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
                self._spaces[kind] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _keep(fds: Collection[int]) -> None:
    """Close all other descriptors."""
    below = -1
    for fd in sorted(fds):
        if below + 1 < fd:  # closerange with an empty range would be wrong
            os.closerange(below + 1, fd)
        below = fd
    os.closerange(below + 1, os.sysconf("SC_OPEN_MAX"))


def _handle(
    connection: socket.socket,
    rights: boxes.ContainerRights,
    spaces: dict[str, int],
    first: int,
    cgroup_fds: Collection[int],
) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Join the build's control groups before reading from the client, so that its frames count for the build.
        for fd in cgroup_fds:
            os.write(fd, b"0")
        connection.settimeout(ASK_TIMEOUT_S)
        kind, text = _frame(connection)
        command, user = _parsed_request(kind, text)
        # From here on, a client may be silent while its command runs.
        connection.settimeout(None)
        _Command(connection, command, user, rights, spaces, first).run()
    except (OSError, EOFError, ValueError, RecursionError) as error:
        with contextlib.suppress(OSError):
            # Without an answer, the client reports that the container has ended.
            if not has_ended(first, error):
                _send(connection, b"x", str(error).encode(errors="replace")[:1_000])
    finally:
        os._exit(0)


def has_ended(first: int, error: Exception) -> bool:
    """Return whether a command failed with this error because the container has ended, of which `first` is the first
    process, as a descriptor."""
    # Once the first process begins to end, its namespace accepts no other one, and the kernel calls that a lack of
    # memory; the end itself may come later.
    ends = isinstance(error, OSError) and error.errno == errno.ENOMEM
    waiting = select.poll()
    waiting.register(first, select.POLLIN)
    return bool(waiting.poll(1000 * END_TIMEOUT_S if ends else 0))


def _parsed_request(kind: bytes, text: bytes) -> tuple[str, str]:
    """Return command and user.  Raise ValueError, RecursionError."""
    request = json.loads(text) if kind == b"c" else None
    command, user = (request.get("command"), request.get("user")) if isinstance(request, dict) else (None, None)
    # A NUL would cut the command short at exec.
    if not isinstance(command, str) or not isinstance(user, str) or "\0" in command:
        raise ValueError("the request must have a command and a user")
    return command, user


class _Command:
    """Run one command, from its start to its exit status."""

    def __init__(
        self,
        connection: socket.socket,
        command: str,
        user: str,
        rights: boxes.ContainerRights,
        spaces: dict[str, int],
        first: int,
    ) -> None:
        """Start the command; the container ends with the process `first`. Raise OSError."""
        # Use four pipes instead of the connection itself: a command with the socket could forge frames, such as its
        # exit status.
        self._connection, self._first = connection, first
        (stdin, self._stdin), (self._out, out), (self._err, err), (self._why, why) = (os.pipe() for _ in range(4))
        # Entering a process namespace affects only children: the handler itself stays outside, where the container
        # cannot signal it.
        boxes.checked(boxes.libc.setns(spaces["pid"], boxes.PID_SPACE), "the container has ended")
        self._pid = os.fork()
        if self._pid == 0:
            boxes.start_command(command, user, rights, spaces, (stdin, out, err), why)
        for fd in (stdin, out, err, why):
            os.close(fd)
        # A command that does not read its input must not keep this process from passing on its output.
        os.set_blocking(self._stdin, False)
        self._input, self._input_ends = b"", False
        self._poll = select.poll()

    def run(self) -> None:
        """Forward input and output until the command ends. Raise OSError, EOFError, ValueError."""
        # Exec closes the other end, so an empty read means that the program has started.
        refused = os.read(self._why, 1_000)  # blocks until the program runs
        if refused:
            raise OSError(refused.decode(errors="replace"))
        _send(self._connection, b"b", b"")
        ended, names = os.pidfd_open(self._pid), {self._out: b"o", self._err: b"e"}
        for fd in (ended, *names, self._connection.fileno()):
            self._poll.register(fd, select.POLLIN)
        try:
            while True:
                ready = [fd for fd, _ in self._poll.poll()]
                for fd in names.keys() & set(ready):
                    self._copy(fd, names[fd])
                if self._stdin in ready:
                    self._feed()
                if self._connection.fileno() in ready:
                    self._take()
                if ended in ready:
                    break
            # A pipe may still contain output of a process that has ended.
            for fd, name in names.items():
                self._rest(fd, name)
            status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            if status == -signal.SIGKILL and select.select([self._first], [], [], END_TIMEOUT_S)[0]:
                return  # close without a status: the container failed, not the command
            _send(self._connection, b"s", str(status).encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ended, signal.SIGKILL)

    def _rest(self, fd: int, name: bytes) -> None:
        """Send the command's remaining output, without waiting for processes that it left behind."""
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(REST_CHUNKS_MAX):
                if not self._copy(fd, name):
                    return

    def _copy(self, fd: int, name: bytes) -> bool:
        chunk = os.read(fd, CHUNK_SIZE_BYTES)
        if chunk:
            _send(self._connection, name, chunk)
            return True
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)
        return False

    def _take(self) -> None:
        """Forward more input; read none before the earlier input is forwarded. Raise EOFError if the client is gone,
        ValueError for any other frame than input."""
        kind, text = _frame(self._connection)
        if kind != b"i" or self._stdin < 0:
            raise ValueError("only input may follow the request")
        self._input, self._input_ends = text, not text
        # The client must wait until the command reads its input; otherwise this process might have to buffer gigabytes.
        self._poll.unregister(self._connection.fileno())
        self._poll.register(self._stdin, select.POLLOUT)
        self._feed()

    def _feed(self) -> None:
        try:
            self._input = self._input[os.write(self._stdin, self._input) :] if self._input else b""
        except BlockingIOError:
            return
        # The command closed its input early, as `head` does: discard the rest; its exit status decides.
        except BrokenPipeError:
            self._input = b""
        if not self._input:
            self._poll.unregister(self._stdin)
            self._poll.register(self._connection.fileno(), select.POLLIN)
            if self._input_ends:
                os.close(self._stdin)
                self._stdin = -1


def _frame(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read the kind and content of a frame. Raise OSError, EOFError, ValueError."""
    kind, size = HEAD.unpack(_receive_exactly(connection, HEAD.size))
    # Check the size before reading: it comes from a playbook and may claim four gigabytes.
    if size > FRAME_SIZE_MAX_BYTES:
        raise ValueError("a frame is too large")
    return kind, _receive_exactly(connection, size)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes. Raise OSError, EOFError."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = connection.recv(size - len(pieces))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)


def _send(connection: socket.socket, kind: bytes, text: bytes) -> None:
    """Send a frame. Raise OSError."""
    connection.sendall(HEAD.pack(kind, len(text)) + text)
