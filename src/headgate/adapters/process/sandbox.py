"""Wrap the commands of jobs in bubblewrap, if that is possible, and describe their namespaces."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headgate.adapters.process.bounds import machine
from headgate.adapters.process.confinement import errands
from headgate.adapters.process.confinement.users import NEEDED, BuildUser

log = logging.getLogger("headgate.executor")

Spaces = Mapping[str, int]
"""Kind -> descriptor; `user` precedes `net`."""
NOWHERE_ELSE: Spaces = {}
PROBE_TIMEOUT_S = 60.0
AGENT = "/run/headgate-agent"
"""Directory of the build's ssh-agent in a sandbox; the path is short enough for a socket."""
AGENT_SOCKET = "agent"
CONTAINER = "/run/headgate-container"
"""Directory, in Ansible's sandbox, of the socket of the build's container."""
# The kernel reserves 108 bytes for it, including the final NUL.
PATH_SIZE_MAX = 107
"""Longest path of a socket."""
TMP_SIZE_BYTES = 2_000_000_000
# This is high enough to collide with no descriptor that the supervisor or bubblewrap opens.
INPUT_FIRST = 100
"""First descriptor of the data that bubblewrap reads; see `supervisor`."""
_IN_PROGRAMS = tuple(f"{program}/" for program in machine.PROGRAMS)
WITHOUT = "They can read and write everything that this user can, and are not isolated from each other."


@dataclass(frozen=True, slots=True)
class Network:
    """Represent the network of a command."""

    spaces: Spaces = field(default_factory=dict)
    """Namespaces in which commands start."""
    cut: bool = False
    """Whether bubblewrap removes the network, because nothing else can."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content of a file that describes the network."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Hold additional paths for jobs of one kind, from the settings."""

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    nesting: bool = False
    """Whether jobs may create user namespaces, as programs that run containers do."""


@dataclass(frozen=True, slots=True)
class Confined:
    """Hold a complete command line, and its inputs."""

    command: list[str]
    inputs: Mapping[int, bytes] = field(default_factory=dict)
    """Descriptor -> the data to read from it."""
    filter: int | None = None
    """Descriptor, among `inputs`, of the filter of system calls; None if there is none."""


class Sandbox:
    """Wrap commands. `mode` is auto, bwrap, container or none. Bubblewrap is tried once; in the mode auto, its absence
    is logged once."""

    def __init__(
        self,
        mode: str,
        *,
        trusted: Paths | None = None,
        untrusted: Paths | None = None,
        hidden: Sequence[Path] = (),
        tmp_size_bytes: int = TMP_SIZE_BYTES,
        processes_max: int = 0,
    ) -> None:
        """Try bubblewrap unless `mode` is none.  Raise OSError if it is required but does not work.

        `hidden`: paths with credentials, which are covered in every readable directory.  `tmp_size_bytes`: size of each
        file system in memory to which a job may write.  `processes_max`: limit of processes for the user in the
        sandbox, 0 if something else limits them."""
        self.hidden, self.tmp_size_bytes = hidden, tmp_size_bytes
        self._counted = (
            ("prlimit", f"--nproc={processes_max}", "--") if processes_max and shutil.which("prlimit") else ()
        )
        self.paths = {True: trusted or Paths(), False: untrusted or Paths()}
        self.program = shutil.which("bwrap") or "bwrap"
        # bubblewrap 0.4 of older distributions lacks --perms, --size and --disable-userns, so read its help first.
        self._options: Collection[str] = ()
        self.usable = mode != "none" and self._probe(required=mode if mode in ("bwrap", "container") else "")

    def _probe(self, *, required: str) -> bool:
        """Return whether the sandbox works.  Raise OSError if it is required but does not work."""
        why = ""
        try:
            self._options = set(_try(Confined([self.program, "--help"])).stdout.split())
            # Try it with everything that a job gets: the kernel, an outer container or AppArmor may refuse any part.
            done = _try(self.command(["true"], [], [], trusted=False))
            if done.returncode == 0:
                self._say_what_is_missing()
                return True
            why = f"bwrap does not work here ({done.stderr.strip()}): it needs unprivileged user namespaces, or root"
        except FileNotFoundError:
            why = "the program bwrap is not installed; install the package bubblewrap (apt-get install bubblewrap)"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"bwrap does not work here: {error}"
        # If the settings require a sandbox, jobs must never run without one, for example after an upgrade.
        if required:
            raise OSError(f"[executor] sandbox = {required}, but {why}")
        log.warning("Jobs run without a sandbox: %s. %s", why, WITHOUT)
        return False

    def _say_what_is_missing(self) -> None:
        if not machine.filter_known():
            log.warning("Jobs may use all system calls: there is no filter for %s", platform.machine())
        if "--size" not in self._options:
            log.warning("/tmp of jobs may use half of the memory: this bwrap has no --size; install 0.6 or newer")

    def agent_socket(self, place: Path) -> str | None:
        """Return the path of the agent's socket in `place` for a command; None if the path would be too long."""
        found = f"{AGENT if self.usable else place}/{AGENT_SOCKET}"
        return found if len(found) <= PATH_SIZE_MAX else None

    def wrap(
        self,
        command: Sequence[str],
        writable: Sequence[Path],
        readable: Sequence[Path],
        *,
        trusted: bool,
        home: str,
        user: BuildUser | None = None,
        network: Network | None = None,
        lent: Mapping[str, Path] | None = None,
    ) -> Confined:
        if not self.usable:
            return Confined(list(command))
        return self.command(
            command, writable, readable, trusted=trusted, home=home, user=user, network=network, lent=lent
        )

    def command(
        self,
        command: Sequence[str],
        writable: Sequence[Path],
        readable: Sequence[Path],
        *,
        trusted: bool,
        home: str = machine.NO_HOME,
        user: BuildUser | None = None,
        network: Network | None = None,
        lent: Mapping[str, Path] | None = None,
    ) -> Confined:
        """Return the command line for a sandbox: with read-only programs, the `writable` directories, its own /tmp and
        processes, and no capabilities.  Later mounts cover earlier ones, so writable paths cover readable ones, and
        both cover hidden ones.

        The command runs as `user`, by default the user of this process; start it in the spaces of `network`.  `lent`:
        path in the sandbox -> directory with a socket."""
        paths, own_readable, network = self.paths[trusted], (*machine.interpreter(), *readable), network or Network()
        me = machine.JobUser.this(home) if user is None else machine.JobUser(user.inside, user.inside, home)
        inputs, copied = SandboxInputs(), machine.copied()
        arguments = [
            *self._namespaces(user, network, nesting=paths.nesting),
            *self._directories(map(Path, machine.ABOVE)),
            *machine.mounts(copied),
            *(
                arg
                for path, text in {**copied, **machine.written(me), **network.files}.items()
                for arg in self._file(inputs, path, text)
            ),
            *("--dev", "/dev", "--proc", "/proc", *machine.kernel()),
            *(arg for path in ("/tmp", "/var/tmp", "/dev/shm") for arg in self._memory(path)),
            *self._directories(path.parent for path in (*paths.readable, *paths.writable, *own_readable, *writable)),
            *_bound("--ro-bind-try", paths.readable),
            *_bound("--bind", paths.writable),
            # These cover the operator's paths, which may contain credentials, but not the build's own, which may be in
            # the same directory.
            *_covered(self.hidden, (*map(Path, machine.PROGRAMS), *paths.readable, *paths.writable)),
            *_bound("--ro-bind-try", own_readable),
            *_bound("--bind", writable),
            *(arg for there, place in (lent or {}).items() for arg in self._lent(place, there)),
            # These come last, since the mounts above create their mount points there. The root is a file system in
            # memory without a size limit, which a job could otherwise fill.
            *("--remount-ro", "/dev", "--remount-ro", "/"),
        ]
        filter = inputs.add(machine.call_filter(nesting=paths.nesting)) if machine.filter_known() else None
        if filter is not None:
            arguments += ["--seccomp", str(filter)]
        becoming = user.becoming() if user else ()
        return Confined([self.program, *arguments, "--", *self._counted, *becoming, *command], inputs.texts, filter)

    def _namespaces(self, user: BuildUser | None, network: Network, *, nesting: bool) -> Iterator[str]:
        # bubblewrap is the first process of the process namespace: when it dies with its supervisor, the kernel kills
        # all processes in it, even daemons. --new-session is unnecessary: each command is started in a new session.
        yield from ("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        if network.cut:
            yield "--unshare-net"
        # By default, bubblewrap keeps the capabilities of a root user.
        if os.geteuid() == 0 or network.spaces:  # root of this machine, or of the command's user namespace
            yield from ("--cap-drop", "ALL")
        if user is not None:
            # setpriv needs these to become the build's user, and drops them before the command runs.
            for name in NEEDED:
                yield from ("--cap-add", f"CAP_{name}")
        elif os.geteuid() != 0:
            if network.spaces:
                # In the user namespace of its network, this user is root; another user namespace restores the job's own
                # id.
                yield from ("--unshare-user", "--uid", str(os.geteuid()), "--gid", str(os.getegid()))
            # The filter of system calls refuses this, too, but some machines have none.
            if not nesting and "--disable-userns" in self._options:
                yield from ("--unshare-user", "--disable-userns")

    def _mode(self, octal: str) -> tuple[str, ...]:
        """Return arguments that set the mode of the next object, so that everybody can read it, as on any machine; none
        if bubblewrap is too old for that."""
        return ("--perms", octal) if "--perms" in self._options else ()

    def _directories(self, paths: Iterable[Path]) -> Iterator[str]:
        """Yield arguments that create `paths` and their parent directories, except programs and paths below them."""
        above = set[str]()
        for path in map(str, paths):
            while path not in above and path != "/":
                above.add(path)
                path = os.path.dirname(path)
        for path in sorted(above):  # parents first
            if not f"{path}/".startswith(_IN_PROGRAMS):
                yield from (*self._mode("0755"), "--dir", path)

    def _lent(self, place: Path, path: str) -> Iterator[str]:
        yield from (*self._directories([Path(path).parent]), "--ro-bind", str(place), path)

    def _file(self, inputs: SandboxInputs, path: str, text: bytes) -> Iterator[str]:
        yield from (*self._mode("0644"), "--file", str(inputs.add(text)), path)

    def _memory(self, path: str) -> Iterator[str]:
        """Yield arguments that mount a file system in memory at `path`, where everybody in the sandbox may write."""
        if "--size" in self._options:
            yield from ("--size", str(self.tmp_size_bytes))
        yield from (*self._mode("1777"), "--tmpfs", path)


class SandboxInputs:
    """Number the inputs that bubblewrap reads from descriptors."""

    def __init__(self) -> None:
        self.texts: dict[int, bytes] = {}

    def add(self, text: bytes) -> int:
        number = INPUT_FIRST + len(self.texts)
        self.texts[number] = text
        return number


def _bound(how: str, paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        yield from (how, str(path), str(path))


def _covered(hidden: Iterable[Path], visible: Sequence[Path]) -> Iterator[str]:
    """Yield arguments that cover each visible path of `hidden` with an empty directory or an empty file."""
    for path in hidden:
        if not any(path.is_relative_to(seen) for seen in visible):
            continue
        # The path cannot just be left out, since it is inside a directory that is mounted completely.
        if path.is_dir():
            yield from ("--tmpfs", str(path))
        elif path.exists():
            yield from ("--ro-bind", "/dev/null", str(path))


def _try(confined: Confined) -> subprocess.CompletedProcess[str]:
    """Run a confined command to check whether it works. Raise OSError, TimeoutExpired."""
    return subprocess.run(
        confined.command,
        capture_output=True,
        timeout=PROBE_TIMEOUT_S,
        check=False,
        text=True,
        # subprocess closes descriptors after preexec_fn, so it would close those that `lay` makes.
        close_fds=False,  # Python's own descriptors are close-on-exec anyway
        preexec_fn=lambda: errands.lay(confined.inputs),
    )
