"""List which of the machine's files a job sees: programs and what they need, each named; no directory of settings.

Credentials lie below /etc, /opt, /run, /home, /root and /var, so that of these only what is listed is there.  Not on
the list, because people keep passwords in them: gitconfig, pip.conf, npmrc, ansible, apt/auth.conf, wgetrc, netrc and
private keys of ssl and ssh.  Who wants them in jobs says so in the settings (`untrusted_ro_paths`).
"""

from __future__ import annotations

import grp
import os
import pwd
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""Directories that show the number of processors; nothing else of /sys is visible."""
SETTINGS = (
    # the loader and the C library
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "locale.alias", "locale.conf", "gai.conf",
    "host.conf", "protocols", "services", "networks", "rpc", "ethertypes", "terminfo", "shells",
    # certificates of authorities; the private keys beside them are left out
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
ABOVE = tuple({str(Path(path).parent) for path in (*(f"/etc/{name}" for name in SETTINGS), *PROCESSORS, "/var/tmp")})
"""Directories that hold nothing but visible files."""
_KERNEL = ("sys", "irq", "bus", "fs", "acpi", "scsi", "sysrq-trigger")
_KERNEL_SECRET = ("kcore", "keys", "kmsg", "timer_list", "sched_debug", "latency_stats")
NO_HOME = "/nonexistent"
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
NAMES = (
    "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"
)
_INSTALLED = ("bin", "lib", "lib64", "libexec", "include", "share", "pyvenv.cfg")
"""Visible parts of a directory that Python is installed in, which may also hold settings of Headgate."""


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


def mounts() -> Iterator[str]:
    """Yield bubblewrap arguments that mount files unchanged."""
    for path in PROGRAMS:
        if os.path.islink(path):  # on a merged system
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind-try", path, path)
    for path in PROCESSORS:
        yield from ("--ro-bind-try", path, path)
    if os.path.isdir("/usr/local/etc"):
        # The one directory of settings below /usr, which is visible as a whole.
        yield from ("--tmpfs", "/usr/local/etc")
    for name in SETTINGS:
        path = f"/etc/{name}"
        # /etc/localtime and the like point into /usr, which is there; a link within /etc may lead to what is not
        # listed.
        if os.path.islink(path) and not os.readlink(path).startswith("/etc/"):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            yield from ("--ro-bind-try", path, path)


def kernel() -> Iterator[str]:
    """Yield arguments that stop a root job from writing below /proc what only root may write: a core_pattern would
    run as root, outside the sandbox. In a user namespace of its own, a job cannot open these files for writing."""
    if os.geteuid() == 0:
        for name in _KERNEL:
            yield from ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")
        for name in filter(lambda name: os.path.exists(f"/proc/{name}"), _KERNEL_SECRET):
            # Root could read the kernel's memory, its log and its addresses here, whatever its namespaces.
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")


def written(user: JobUser) -> Mapping[str, bytes]:
    """Map paths to the contents of files that are made for a job."""
    # Made up rather than copied: the machine's own list names its people and services.
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
    """Read the present resolvers, which change on a laptop. The file may be a link into /run, which jobs do not see."""
    try:
        return Path("/etc/resolv.conf").read_bytes()
    except OSError:
        return b""


def interpreter() -> list[Path]:
    """Return the paths of this Python, its packages and Headgate, wherever they are installed, without their
    neighbours."""
    links = Path(sys.executable).parent.parent, Path(sys.executable).resolve().parent.parent
    prefixes = dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix), *links))
    found = [prefix / name for prefix in prefixes if prefix != Path("/usr") for name in _INSTALLED]
    return [*(path for path in found if path.exists()), Path(__file__).parents[3]]
