"""Perform errands inside namespaces, in children of the keeper: standard library only, see `supervisor`.

A request is one JSON object after its size in 4 bytes; the descriptors that come with the size are namespaces to enter,
in the order that `join` lists (user, net).  `do` is the errand: `user` (make a user namespace with the maps `uids` and
`gids`, counted for the user `owner` if that is given), `net` (make a network namespace with its loopback up and, if
`out` is given, with a way out: the `name` of the interface here, and the `links` of `netlink.connect`), `listen` (open
a socket at `address`, `port`, of `kind` tcp or udp), `program` (run `command`, with `stdin`, `inputs` and `box` as in
`supervisor`, and `environment` instead of ours), `hold` (keep a process, or the program `command`, until the returned
socket is closed; the socket carries the program's output, and closes when it ends).

The answer is one JSON object, with the new descriptor, or with the reason for its absence as `error`.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
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

from headgate.adapters.process.confinement import boxes, netlink

CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_KINDS = {"user": CLONE_NEWUSER, "net": CLONE_NEWNET}
_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4
REQUEST_SIZE_MAX_BYTES = 4_000_000
PROGRAM_TIMEOUT_S = 60.0
# A command joins at most a user namespace and a network namespace.
FDS_MAX = 2
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
"""Search path that includes directories of administrators' programs, which an ordinary user's path may lack."""
ENVIRONMENT = {"PATH": SEARCHED, "LANG": "C.UTF-8"}


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request and its descriptors.  Raise EOFError, ValueError."""
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
        # The kernel checks the kind, so a wrong descriptor is an error instead of a wrong confinement.
        boxes.checked(boxes.libc.setns(fd, _KINDS[kind]), f"a {kind} namespace cannot be entered")
        os.close(fd)


def enter(box: Mapping[str, Any] | None, kinds: Sequence[str], fds: Sequence[int]) -> None:
    """Enter namespaces; with a box, also enter the box and become its root.  Raise OSError."""
    if box:
        boxes.enter(box)  # still as the current user of this process
    # Join after mounting: this mount namespace belongs to the outer user namespace, whose rights are lost by joining.
    join(kinds, fds)
    if box:
        boxes.become_root()


def answer(control: socket.socket) -> None:
    """Perform one errand, and send its outcome."""
    made: int | None = None
    mine: socket.socket | None = None
    program: subprocess.Popen[bytes] | None = None
    reply: dict[str, Any] = {}  # JSON
    try:
        request, fds = receive(control)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The keeper's pipe is closed in this child, and its number may now belong to another descriptor.
        signal.set_wakeup_fd(-1)
        enter(request.get("box"), request["join"], fds)
        match request["do"]:
            case "user":
                made = _user_namespace(request["uids"], request["gids"], request.get("owner"))
            case "net":
                made = _net_namespace(request.get("out"))
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
    # Only the receiver may have the other end: _hold waits until it is closed.
    if mine is not None and made is not None:
        os.close(made)
        _hold(mine, program)


def lay(inputs: Mapping[int, bytes]) -> None:
    """Make each text readable at its descriptor, which is replaced; child processes inherit the descriptors."""
    for number, text in inputs.items():
        # Use memory instead of a file: inputs may be private keys.
        made = os.memfd_create("input", os.MFD_CLOEXEC)
        os.write(made, text)
        os.lseek(made, 0, os.SEEK_SET)
        if made == number:  # possible if many other descriptors are open
            os.set_inheritable(made, True)
        else:
            os.dup2(made, number)
            os.close(made)


def _net_namespace(out: Mapping[str, Any] | None) -> int:
    with netlink.Netlink() as outside:
        boxes.checked(boxes.libc.unshare(CLONE_NEWNET), "a network namespace cannot be made")
        net = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with netlink.Netlink() as inside:
            # The loopback interface of a new network namespace is down.
            inside.set_up("lo", [])
            if out:
                links = [netlink.Link(*one) for one in out["links"]]
                netlink.connect(outside, inside, out["name"], net, links)
    return net


def _user_namespace(uids: Sequence[Sequence[int]], gids: Sequence[Sequence[int]], owner: int | None) -> int:
    """Make a user namespace, and return its descriptor. newuidmap and newgidmap set maps of more than one line,
    according to /etc/subuid and /etc/subgid. With an owner, which only root can set, the kernel counts the namespace's
    resources for that user, and processes may change their groups."""
    # The maps must be written from outside, after the child has its namespace and while it lives. So the child waits;
    # the descriptor then keeps the namespace when the child is killed.
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
        # The kernel lets an ordinary user map only its own id; the setuid programs map those of /etc/subuid.
        if len(uids) > 1:
            _program(["newuidmap", str(child), *(str(part) for line in uids for part in line)], "")
            _program(["newgidmap", str(child), *(str(part) for line in gids for part in line)], "")
        else:
            # An ordinary user must disable setgroups before the kernel accepts the gid_map: leaving a group could grant
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
    """Make a user namespace for this process; return the number of the error, 0 if there is none."""
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
        # Add the address of the other machine to this network's loopback interface: packets to it never leave the
        # namespace.
        cidr = f"{address}/{32 if version == 4 else 128}"
        _program(["ip", "addr", "add", cidr, "dev", "lo", *(["nodad"] if version == 6 else [])], "")
        made.bind((address, port))
    if kind == "tcp":
        made.listen(64)
    return made.detach()


def _hold(other: socket.socket, program: subprocess.Popen[bytes] | None) -> None:
    """Wait until the other end is closed or the program ends; kill the program if it still runs."""
    # Use a descriptor, since the process id may belong to another process by the time it is used.
    ended = [os.pidfd_open(program.pid)] if program else []
    select.select([other.fileno(), *ended], [], [])
    if program is not None:
        program.kill()
        program.wait()


def _started(command: Sequence[str], output: socket.socket) -> subprocess.Popen[bytes]:
    """Start a program in a new session, with its output to a socket, and return the process. Raise OSError."""
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
