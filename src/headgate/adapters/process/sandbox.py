"""Bubblewrap around the commands of jobs, where it can be used."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("headgate.executor")

PROBE_TIMEOUT_S = 10.0
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/sys",
    "/run/systemd/resolve", "/run/resolvconf",
)  # fmt: skip
"""What every job can read; the rest of the machine is not there."""
WITHOUT = "They can read and write what this user can, and are not kept apart from each other."


@dataclass(frozen=True, slots=True)
class Paths:
    """What the settings add for jobs of one kind."""

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class Sandbox:
    """`mode`: auto, bwrap or none.  Tried once; when auto and not usable, that is said once."""

    def __init__(
        self, mode: str, *, network: bool = True, trusted: Paths | None = None, untrusted: Paths | None = None
    ) -> None:
        self._network = network
        self._paths = {True: trusted or Paths(), False: untrusted or Paths()}
        self._program = shutil.which("bwrap") or "bwrap"
        self.usable = mode != "none" and self._probe(required=mode == "bwrap")

    def _probe(self, *, required: bool) -> bool:
        """Raises OSError when it is required and does not work."""
        why = ""
        try:
            command = self.command(["true"], [], [], trusted=False)
            done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False, text=True)
            if done.returncode == 0:
                return True
            why = f"bwrap does not work here ({done.stderr.strip()}): it needs unprivileged user namespaces, or root"
        except FileNotFoundError:
            why = "the program bwrap is not installed; install the package bubblewrap (apt-get install bubblewrap)"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"bwrap does not work here: {error}"
        if required:
            raise OSError(f"[executor] sandbox = bwrap, but {why}")
        log.warning("Jobs run without a sandbox: %s. %s", why, WITHOUT)
        return False

    def wrap(
        self, command: Sequence[str], writable: Sequence[Path], readable: Sequence[Path], *, trusted: bool
    ) -> list[str]:
        if not self.usable:
            return list(command)
        return self.command(command, writable, readable, trusted=trusted)

    def command(
        self, command: Sequence[str], writable: Sequence[Path], readable: Sequence[Path], *, trusted: bool
    ) -> list[str]:
        """The system read-only, `writable`, a /tmp and processes of its own, no capabilities; later binds cover
        earlier ones, so what is readable lies over what is writable."""
        paths = self._paths[trusted]
        binds = [arg for path in (*paths.readable, *readable) for arg in ("--ro-bind-try", str(path), str(path))]
        binds += [arg for path in (*paths.writable, *writable) for arg in ("--bind", str(path), str(path))]
        isolation = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", *([] if self._network else ["--unshare-net"])]
        drop = ["--cap-drop", "ALL"] if os.geteuid() == 0 else []
        system = [arg for path in SYSTEM for arg in _system(path)]
        return [
            self._program, "--die-with-parent", *isolation, *drop, *system, "--dev", "/dev", "--proc", "/proc",
            "--tmpfs", "/tmp", "--dir", "/var/tmp", *binds, "--", *command,
        ]  # fmt: skip


def _system(path: str) -> list[str]:
    """A directory, or the symbolic link that it is on a merged system."""
    if os.path.islink(path):
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind-try", path, path]
