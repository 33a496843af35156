"""List the parts of this machine that a job can use: visible files, each by name, and permitted system calls.

Credentials are below /etc, /opt, /run, /home, /root and /var, so jobs see only the listed parts of these.  Not listed,
because people store passwords in them: gitconfig, pip.conf, npmrc, ansible, apt/auth.conf, wgetrc, netrc and private
keys of ssl and ssh.  An operator can add paths in the settings (`untrusted_ro_paths`).

The filter of system calls is a classic BPF program over `struct seccomp_data`, as bubblewrap loads it.  It lists
refused calls and permits all others.  Refused calls return an error, so that programs that only try a call continue
without it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import os
import platform
import pwd
import stat
import struct
import sys
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""Directories that show the number of processors; the rest of /sys is invisible."""
SETTINGS = (
    # the loader and the C library
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "locale.alias", "locale.conf", "gai.conf",
    "host.conf", "protocols", "services", "networks", "rpc", "ethertypes", "terminfo", "shells",
    # certificates of authorities, without the private keys next to them
    "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "pki/ca-trust",
    "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "crypto-policies", "gnutls", "krb5.conf",
    # alternatives of programs, and the name of this system
    "alternatives", "debian_version", "os-release", "lsb-release", "redhat-release", "system-release", "alpine-release",
    "arch-release", "dpkg/origins", "dpkg/shlibs.default", "dpkg/shlibs.override",
    # compilers, interpreters and tools of builds
    "java", "java-8-openjdk", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk",
    "maven/m2.conf", "maven/logging", "perl", "python3", "python3.11", "python3.12", "python3.13", "fonts",
    "mime.types", "mailcap", "magic", "magic.mime", "ImageMagick-6", "ImageMagick-7", "sgml", "xml", "texmf", "OpenCL",
    "rpm", "papersize",
    # host keys of other machines, but not this machine's own
    "ssh/ssh_config", "ssh/ssh_config.d", "ssh/ssh_known_hosts", "ssh/moduli",
)  # fmt: skip
"""Files and directories below /etc."""
COPIED_MAX_BYTES = 8_000
"""Largest file that is copied."""
ABOVE = tuple({str(Path(path).parent) for path in (*(f"/etc/{name}" for name in SETTINGS), *PROCESSORS, "/var/tmp")})
"""Directories that contain only visible files."""
_KERNEL = ("sys", "irq", "bus", "fs", "acpi", "scsi", "sysrq-trigger")
_KERNEL_SECRET = ("kcore", "keys", "kmsg", "timer_list", "sched_debug", "latency_stats")
NO_HOME = "/nonexistent"
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
NAMES = (
    "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"
)
_INSTALLED = ("bin", "lib", "lib64", "libexec", "include", "share", "pyvenv.cfg")
"""Visible parts of a directory in which Python is installed, which may also contain settings of Headgate."""
CLONE_NEWUSER = 0x1000_0000
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET = 1, 2, 10, 16, 17
FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""Families of sockets that jobs may create. Others are not confined by network namespaces (AF_VSOCK reaches the host of
a virtual machine), or open large parts of the kernel that no build needs (AF_ALG, AF_TIPC and so on)."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""Requests that insert characters into a terminal as if somebody had typed them."""
X32_BIT = 0x4000_0000
"""Bit in the numbers of the x32 calls, which share the architecture of x86_64."""
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_LOAD, _JUMP_EQUAL, _JUMP_BITS, _JUMP_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`; arguments have 8 bytes each, the low half first on all architectures here."""
CallNumbers = tuple[int | None, int | None, int | None]
"""Numbers of a call on x86_64, aarch64 and i386; None where the call does not exist."""
REFUSED: dict[str, CallNumbers] = {
    # all processes of a user share keyrings, even across sandboxes
    "add_key": (248, 217, 286), "keyctl": (250, 219, 288), "request_key": (249, 218, 287),
    # large and often broken parts of the kernel
    "bpf": (321, 280, 357), "perf_event_open": (298, 241, 336), "userfaultfd": (323, 282, 374),
    "io_uring_setup": (425, 425, 425), "io_uring_enter": (426, 426, 426), "io_uring_register": (427, 427, 427),
    "lookup_dcookie": (212, 18, 253), "nfsservctl": (180, 42, 169), "uselib": (134, None, 86),
    "modify_ldt": (154, None, 123), "vm86": (None, None, 166), "vm86old": (None, None, 113), "kcmp": (312, 272, 349),
    # control of the machine itself
    "kexec_load": (246, 104, 283), "kexec_file_load": (320, 294, None), "reboot": (169, 142, 88),
    "init_module": (175, 105, 128), "finit_module": (313, 273, 350), "delete_module": (176, 106, 129),
    "swapon": (167, 224, 87), "swapoff": (168, 225, 115), "acct": (163, 89, 51), "syslog": (103, 116, 103),
    "settimeofday": (164, 170, 79), "clock_settime": (227, 112, 264), "iopl": (172, None, 110),
    "ioperm": (173, None, 101), "quotactl": (179, 60, 131), "quotactl_fd": (443, 443, 443), "vhangup": (153, 58, 111),
    "open_by_handle_at": (304, 265, 342),
    # its operation is in memory, which filters cannot read; 32-bit programs also have separate calls
    "socketcall": (None, None, 102),
}  # fmt: skip
"""Calls that are refused for every job, with EPERM."""
NESTING: dict[str, CallNumbers] = {
    "mount": (165, 40, 21), "umount2": (166, 39, 52), "umount": (None, None, 22), "pivot_root": (155, 41, 217),
    "move_mount": (429, 429, 429), "open_tree": (428, 428, 428), "open_tree_attr": (467, 467, 467),
    "fsopen": (430, 430, 430), "fsconfig": (431, 431, 431), "fsmount": (432, 432, 432), "fspick": (433, 433, 433),
    "mount_setattr": (442, 442, 442), "setns": (308, 268, 346),
}  # fmt: skip
"""Calls that programs for containers need; refused with EPERM unless a job may have user namespaces."""
CLONE: CallNumbers = (56, 220, 120)
CLONE3: CallNumbers = (435, 435, 435)
UNSHARE: CallNumbers = (272, 97, 310)
IOCTL: CallNumbers = (16, 29, 54)
SOCKET: CallNumbers = (41, 198, 359)
SOCKETPAIR: CallNumbers = (53, 199, 360)


@dataclass(frozen=True, slots=True)
class JobUser:
    """Describe the user that a job runs as."""

    uid: int
    gid: int
    home: str = NO_HOME

    @staticmethod
    def this(home: str = NO_HOME) -> JobUser:
        """Return the user of this process."""
        return JobUser(os.geteuid(), os.getegid(), home)

    @property
    def name(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return "build"

    @property
    def group(self) -> str:
        try:
            return grp.getgrgid(self.gid).gr_name
        except KeyError:
            return "build"


def copied() -> Mapping[str, bytes]:
    """Return path -> content of the small files of `SETTINGS`. A job gets copies of them instead of mounts, because
    bubblewrap reads the list of all mounts again for each mount."""
    found = {}
    for path in (f"/etc/{name}" for name in SETTINGS):
        # Some do not exist, and some are links or directories.
        with contextlib.suppress(OSError), open(path, "rb", buffering=0, opener=_itself) as file:
            about = os.fstat(file.fileno())
            # Everybody can read a copy, but not every mounted file.
            if stat.S_ISREG(about.st_mode) and about.st_mode & stat.S_IROTH and about.st_size <= COPIED_MAX_BYTES:
                found[path] = file.read(COPIED_MAX_BYTES)
    return found


def _itself(path: str, flags: int) -> int:
    """Open a file but not what a link leads to, without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def mounts(copied: Container[str]) -> Iterator[str]:
    """Yield bubblewrap arguments that mount files unchanged, except those that are `copied`."""
    for path in PROGRAMS:
        if os.path.islink(path):  # if the system merges / and /usr
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind-try", path, path)
    for path in PROCESSORS:
        yield from ("--ro-bind-try", path, path)
    if os.path.isdir("/usr/local/etc"):
        # /usr is entirely visible, except for its one directory of settings.
        yield from ("--tmpfs", "/usr/local/etc")
    for name in SETTINGS:
        path = f"/etc/{name}"
        if path in copied:
            continue
        # Links such as /etc/localtime lead to /usr, which is visible; a link within /etc may lead to a file that is
        # not listed, so its target is mounted instead.
        if os.path.islink(path) and not os.readlink(path).startswith("/etc/"):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            yield from ("--ro-bind-try", path, path)


def kernel() -> Iterator[str]:
    """Yield arguments that keep a job of root from writing to files below /proc that only root may write: the program
    in core_pattern would run as root, outside the sandbox. In a user namespace, a job cannot open these files for
    writing."""
    if os.geteuid() == 0:
        for name in _KERNEL:
            yield from ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")
        for name in filter(lambda name: os.path.exists(f"/proc/{name}"), _KERNEL_SECRET):
            # In any namespace, root could read the kernel's memory, log and addresses here.
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")


def written(user: JobUser) -> Mapping[str, bytes]:
    """Return path -> content of files that are created for a job."""
    # Do not copy the machine's own list, which names its people and services.
    users = {
        0: "root:x:0:0:root:/nonexistent:/usr/sbin/nologin",
        65534: "nobody:x:65534:65534::/nonexistent:/bin/false",
    }
    users[user.uid] = f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/sh"
    groups = {0: "root:x:0:", 65534: "nogroup:x:65534:", user.gid: f"{user.group}:x:{user.gid}:"}
    return {
        "/etc/passwd": "".join(f"{line}\n" for line in users.values()).encode(),
        "/etc/group": "".join(f"{line}\n" for line in groups.values()).encode(),
        "/etc/hosts": HOSTS.encode(),
        "/etc/nsswitch.conf": NAMES.encode(),
        "/etc/resolv.conf": _resolvers(),
    }


def _resolvers() -> bytes:
    """Read the current resolvers, which change on a laptop. The file may be a link into /run, which jobs do not see."""
    try:
        return Path("/etc/resolv.conf").read_bytes()
    except OSError:
        return b""


def interpreter() -> list[Path]:
    """Return the paths of this Python, its packages and Headgate, wherever they are installed, and nothing else."""
    links = Path(sys.executable).parent.parent, Path(sys.executable).resolve().parent.parent
    prefixes = dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix), *links))
    found = [prefix / name for prefix in prefixes if prefix != Path("/usr") for name in _INSTALLED]
    return [*(path for path in found if path.exists()), Path(__file__).parents[3]]


class Architecture(NamedTuple):
    audit: int
    column: int
    """Index of its number in `CallNumbers`."""


X86_64, AARCH64, I386 = Architecture(0xC000_003E, 0), Architecture(0xC000_00B7, 1), Architecture(0x4000_0003, 2)
MACHINES = {"x86_64": (X86_64, I386), "aarch64": (AARCH64,)}
"""Machine, as in `platform.machine` -> architectures of the programs that it runs. Calls of other architectures are
refused."""


def filter_known() -> bool:
    """Return whether there is a filter for this machine."""
    return platform.machine() in MACHINES


@functools.cache
def call_filter(*, nesting: bool, machine: str = "") -> bytes:
    """Return the filter; `nesting` permits the calls that create user namespaces. Raise KeyError for unknown
    machines."""
    # A jump has one byte: `struct` refuses a block of more than 255 instructions, so a table that grows too long fails
    # here, and no jump leads to a wrong place.
    found = b"".join(_instructions(MACHINES[machine or platform.machine()], nesting))
    assert len(found) <= 4096 * 8, "the kernel accepts at most 4096 instructions"
    return found


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


_ALLOWED = _instruction(_RETURN, _ALLOW)


def _instructions(architectures: tuple[Architecture, ...], nesting: bool) -> Iterator[bytes]:
    yield _load(_ARCHITECTURE)
    for architecture in architectures:
        block = b"".join(_calls(architecture, nesting))
        # The same number means another call on each architecture: a 64-bit program could use the 32-bit entry (int
        # 0x80) to bypass a filter that knows only its own numbers.
        yield _instruction(_JUMP_EQUAL, architecture.audit, yes=0, no=len(block) // 8)
        yield block
    yield _refuse(errno.ENOSYS)


def _calls(architecture: Architecture, nesting: bool) -> Iterator[bytes]:
    """Yield the instructions for all calls of one architecture, ending with the default."""
    yield _load(_NUMBER)
    if architecture is X86_64:
        # x32 calls have the architecture of x86_64 but other numbers, which no comparison below would match.
        yield _instruction(_JUMP_LEAST, X32_BIT, yes=0, no=1)
        yield _refuse(errno.ENOSYS)
    refused = REFUSED if nesting else REFUSED | NESTING
    for numbers in refused.values():
        if (number := numbers[architecture.column]) is not None:
            yield _instruction(_JUMP_EQUAL, number, yes=0, no=1)
            yield _refuse(errno.EPERM)
    if not nesting:
        yield from _when(CLONE3, architecture, _refuse(errno.ENOSYS))  # its flags are in memory; C libraries use clone
        for numbers in (CLONE, UNSHARE):
            # Only new user namespaces matter: any other namespace needs capabilities that jobs do not have.
            yield from _when(numbers, architecture, _load(_ARGUMENTS), *_if(_JUMP_BITS, CLONE_NEWUSER), _ALLOWED)
    families = (*FAMILIES, AF_PACKET) if nesting else FAMILIES  # a container's own network may use raw packets
    known = [piece for one in families for piece in (_instruction(_JUMP_EQUAL, one, yes=0, no=1), _ALLOWED)]
    for numbers in (SOCKET, SOCKETPAIR):
        yield from _when(numbers, architecture, _load(_ARGUMENTS), *known, _refuse(errno.EAFNOSUPPORT))
    typed = [piece for number in (TIOCSTI, TIOCLINUX) for piece in _if(_JUMP_EQUAL, number)]
    # Compare only the low half, as the kernel does: otherwise a bit in the high half would let TIOCSTI pass.
    yield from _when(IOCTL, architecture, _load(_ARGUMENTS + 8), *typed, _ALLOWED)
    yield _ALLOWED


def _if(code: int, value: int) -> tuple[bytes, bytes]:
    return _instruction(code, value, yes=0, no=1), _refuse(errno.EPERM)


def _when(numbers: CallNumbers, architecture: Architecture, *then: bytes) -> Iterator[bytes]:
    """Yield the instructions for one call, which end the filter."""
    number = numbers[architecture.column]
    assert number is not None, "these calls exist on all architectures"
    yield _instruction(_JUMP_EQUAL, number, yes=0, no=len(then))
    yield from then
