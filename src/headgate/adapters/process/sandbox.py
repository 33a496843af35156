"""Bubblewrap around jobs, where it can be used."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger("headgate.executor")

PROBE_TIMEOUT_S = 10.0


class Sandbox:
    """`mode`: auto, bwrap or none.  Tried once; when auto and not usable, that is said once."""

    def __init__(self, mode: str) -> None:
        self.usable = mode != "none" and self._probe(required=mode == "bwrap")

    def _probe(self, *, required: bool) -> bool:
        program = shutil.which("bwrap")
        why = "the program bwrap is not installed (Debian: apt-get install bubblewrap)"
        if program is not None:
            try:
                command = self.command(["true"], [], [])
                done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False, text=True)
                if done.returncode == 0:
                    return True
                why = f"bwrap does not work here: {done.stderr.strip()}"
            except (OSError, subprocess.TimeoutExpired) as error:
                why = f"bwrap does not work here: {error}"
        if required:
            raise OSError(f"[executor] sandbox = bwrap, but {why}")
        log.warning("Jobs run without a sandbox: %s. They can read and write what this user can.", why)
        return False

    def wrap(self, command: Sequence[str], writable: Sequence[Path], readable: Sequence[Path]) -> list[str]:
        return self.command(command, writable, readable) if self.usable else list(command)

    @staticmethod
    def command(command: Sequence[str], writable: Sequence[Path], readable: Sequence[Path]) -> list[str]:
        """The file system read-only but for `writable`, a /tmp and processes of its own; the network is shared.
        `readable` is for what lies in /tmp itself."""
        binds = [arg for path in readable for arg in ("--ro-bind-try", str(path), str(path))]
        binds += [arg for path in writable for arg in ("--bind", str(path), str(path))]
        return [
            "bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--ro-bind", "/", "/", "--dev", "/dev",
            "--proc", "/proc", "--tmpfs", "/tmp", *binds, "--", *command,
        ]  # fmt: skip
