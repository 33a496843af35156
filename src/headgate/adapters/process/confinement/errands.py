"""Perform errands inside namespaces, in children of the keeper: standard library only, see `supervisor`.

A request is one JSON object, its size in 4 bytes before it; the descriptors that come with the size are namespaces to
enter, named in `join` in their order (user, net).  `do` says what then: `user` (a user namespace with the maps `uids`
and `gids`, counted for the user `owner` if that is given), `net` (a network namespace, its loopback up), `listen` (a
socket at `address`, `port`, of `kind` tcp or udp), `program` (`command`, `stdin`, `inputs` and `box` as in
`supervisor`, `environment` in the place of ours), `hold` (a process, or the program `command`, that is there until the
socket that was made is closed; it ends when the program does, and passes on what that says).

The answer is one JSON object, with the descriptor that was made; `error` says why there is none.
"""

from __future__ import annotations

import array
import base64
import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.adapters.process.confinement import boxes

CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_KINDS = {"user": CLONE_NEWUSER, "net": CLONE_NEWNET}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4
REQUEST_SIZE_MAX_BYTES = 4_000_000
PROGRAM_TIMEOUT_S = 60.0
# A user namespace and a network are all that a command joins.
FDS_MAX = 2
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
"""Search path that includes programs of the administrator, since other users run them here."""
ENVIRONMENT = {"PATH": SEARCHED, "LANG": "C.UTF-8"}


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request, and its descriptors.  Raises EOFError, ValueError."""
    head, fds, _, _ = socket.recv_fds(control, 4, FDS_MAX)
    if len(head) < 4:
        raise EOFError
    size = struct.unpack("!I", head)[0]
    if size > REQUEST_SIZE_MAX_BYTES:
        raise ValueError("a request is too large")
    found = b""
    while len(found) < size:
        piece = control.recv(size - len(found))
        if not piece:
            raise EOFError
        found += piece
    request: dict[str, Any] = json.loads(found)  # JSON
    return request, fds


def join(kinds: Sequence[str], fds: Sequence[int]) -> None:
    """Enter the namespaces. Raise OSError."""
    for kind, fd in zip(kinds, fds, strict=True):
        # The kind is checked by the kernel, so a wrong descriptor is an error and not another confinement.
        boxes.checked(boxes.libc.setns(fd, _KINDS[kind]), f"a {kind} namespace cannot be entered")
        os.close(fd)


def enter(box: Mapping[str, Any] | None, kinds: Sequence[str], fds: Sequence[int]) -> None:
    """Enter namespaces; with a box, be its root in it.  Raises OSError."""
    if box:
        boxes.enter(box)  # with the present user of this process
    # Joined after the mounts: this mount namespace belongs to the outer user namespace, whose rights joining gives up.
    join(kinds, fds)
    if box:
        boxes.become_root()


def answer(control: socket.socket) -> None:
    """Perform one errand and answer with its outcome."""
    made: int | None = None
    mine: socket.socket | None = None
    program: subprocess.Popen[bytes] | None = None
    reply: dict[str, Any] = {}  # JSON
    try:
        request, fds = receive(control)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The keeper's pipe is closed in this child, and its number may be another descriptor's by now.
        signal.set_wakeup_fd(-1)
        enter(request.get("box"), request["join"], fds)
        match request["do"]:
            case "user":
                made = _user_namespace(request["uids"], request["gids"], request.get("owner"))
            case "net":
                made = _net_namespace()
            case "listen":
                made = _listening(request["kind"], request["address"], request["port"])
            case "hold":
                mine, its = socket.socketpair()
                made, reply["output"] = its.detach(), str(os.getpid())
                program = _started(request["command"], mine) if request["command"] else None
            case _:
                inputs, environment = _decoded(request["inputs"]), request.get("environment")
                reply["output"] = _program(request["command"], request["stdin"], inputs, environment)
    except (OSError, EOFError, ValueError, subprocess.SubprocessError) as error:
        reply["error"] = str(error) or type(error).__name__
    with contextlib.suppress(OSError):
        socket.send_fds(control, [json.dumps(reply).encode() + b"\n"], [made] if made is not None else [])
    # Only the receiver may hold the other end: _hold waits until that is closed.
    if mine is not None and made is not None:
        os.close(made)
        _hold(mine, program)


def lay(inputs: Mapping[int, bytes]) -> None:
    """Make each text readable at its descriptor, replacing what it was; child processes inherit them."""
    for number, text in inputs.items():
        # In memory and not in a file: inputs may be private keys.
        made = os.memfd_create("input", os.MFD_CLOEXEC)
        os.write(made, text)
        os.lseek(made, 0, os.SEEK_SET)
        if made == number:  # this descriptor may be free if many others are open
            os.set_inheritable(made, True)
        else:
            os.dup2(made, number)
            os.close(made)


def _net_namespace() -> int:
    boxes.checked(boxes.libc.unshare(CLONE_NEWNET), "a network namespace cannot be made")
    # A new network namespace has its loopback down. An ioctl needs no program, unlike `ip link`.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = array.array("B", struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        flags = struct.unpack_from("h", request, 16)[0]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _user_namespace(uids: Sequence[Sequence[int]], gids: Sequence[Sequence[int]], owner: int | None) -> int:
    """Make a user namespace, and return its descriptor. Maps of more than one line are set by newuidmap and newgidmap,
    which read /etc/subuid and /etc/subgid. With an owner, whom only root can set, the kernel counts the namespace's
    resources for them, and groups may be changed."""
    # The maps must be written from outside, after the child has its namespace and while it lives: it waits for that,
    # and the descriptor keeps the namespace when the child is killed.
    ready, made = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        os.write(made, struct.pack("i", _leave_user_namespace(owner)))
        signal.pause()
        os._exit(0)
    try:
        os.close(made)
        found = os.read(ready, 4)
        number = struct.unpack("i", found)[0] if len(found) == 4 else 0
        if number or len(found) < 4:
            raise OSError(number, f"a user namespace cannot be made: {os.strerror(number)}")
        # The kernel lets an ordinary user map only its own number; the setuid programs map those of /etc/subuid.
        if len(uids) > 1:
            _program(["newuidmap", str(child), *(str(part) for line in uids for part in line)], "")
            _program(["newgidmap", str(child), *(str(part) for line in gids for part in line)], "")
        else:
            # An ordinary user must give up setgroups before the kernel takes its gid_map: dropping a group could grant
            # access.
            groups = [("setgroups", "deny")] if owner is None else []
            for name, text in (*groups, ("uid_map", _line(uids)), ("gid_map", _line(gids))):
                with open(f"/proc/{child}/{name}", "w") as file:
                    file.write(text)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _leave_user_namespace(owner: int | None) -> int:
    """Return the number of the error, 0 if there is none."""
    if owner is not None:
        # The kernel counts a namespace for the user that makes it, so this process becomes the owner first.
        boxes.libc.prctl(_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0)  # keeps capabilities
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    return 0 if boxes.libc.unshare(CLONE_NEWUSER) == 0 else ctypes.get_errno()


def _line(map_lines: Sequence[Sequence[int]]) -> str:
    return " ".join(str(part) for part in map_lines[0])


def _listening(kind: str, address: str, port: int) -> int:
    """Open a socket at an address, which is added to the loopback interface if this network lacks it."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    made = socket.socket(family, (socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((address, port))
    except OSError as error:
        if port == 0 or ipaddress.ip_address(address).is_loopback:
            raise OSError(error.errno, f"nothing can listen at {address} port {port}: {error.strerror}") from error
        # The address of a machine elsewhere becomes one of this network's loopback: packets to it never leave the
        # namespace.
        cidr = f"{address}/{32 if version == 4 else 128}"
        _program(["ip", "addr", "add", cidr, "dev", "lo", *(["nodad"] if version == 6 else [])], "")
        made.bind((address, port))
    if kind == "tcp":
        made.listen(64)
    return made.detach()


def _hold(other: socket.socket, program: subprocess.Popen[bytes] | None) -> None:
    """Wait until the other end is closed or the program ends; kill the program if it still runs."""
    # A descriptor, since a number could belong to another process by the time it is looked at.
    ended = [os.pidfd_open(program.pid)] if program else []
    select.select([other.fileno(), *ended], [], [])
    if program is not None:
        program.kill()
        program.wait()


def _started(command: Sequence[str], output: socket.socket) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, with its output to a socket.  Raise OSError."""
    return subprocess.Popen(
        [_found(command[0]), *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=output.fileno(),
        stderr=output.fileno(),
        env=ENVIRONMENT,
        start_new_session=True,
    )


def _found(name: str) -> str:
    """Find the path of a program.  Raise OSError if it is not installed."""
    found = shutil.which(name, path=SEARCHED)
    if found is None:
        raise OSError(f"the program {name} is not installed")
    return found


def _decoded(inputs: Mapping[str, str]) -> dict[int, bytes]:
    return {int(number): base64.b64decode(text) for number, text in inputs.items()}


def _program(
    command: Sequence[str],
    stdin: str,
    inputs: Mapping[int, bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program, and return its output. Raise OSError with the output if it fails."""
    lay(inputs or {})
    done = subprocess.run(
        [_found(command[0]), *command[1:]],
        pass_fds=tuple(inputs or ()),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
        env=environment or ENVIRONMENT,
    )
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {' '.join(done.stderr.split()) or f'exit status {done.returncode}'}")
    return done.stdout


def found_program(name: str) -> bool:
    """Return whether a program for errands is installed."""
    return shutil.which(name, path=SEARCHED) is not None
