"""A small disk for a program alone.  Needs namespaces of users and mounts, and no other rights."""

from __future__ import annotations

import errno
from pathlib import Path

from headgate.testing.servers.program import Program

MOUNT = 'mount -t tmpfs -o "size=$1" disk "$2" && echo mounted && exec sleep infinity'
PIECE = bytes(1 << 16)


class SmallDisk:
    """Mount a small disk at `place` for programs that run `inside`; its content stays until `close`."""

    def __init__(self, directory: Path, place: Path, size_bytes: int) -> None:
        """Mount a disk of this size. Raise RuntimeError with the reason when none can be made here."""
        place.mkdir(parents=True, exist_ok=True)
        shell = ["sh", "-c", MOUNT, "sh", str(size_bytes), str(place)]
        # The mount exists in the namespace of this process only, and goes with it.
        self._keeper = Program(["unshare", "--user", "--map-root-user", "--mount", *shell], directory)
        self._keeper.start()
        self._keeper.until(lambda: "mounted" in self._keeper.log.read_text())
        assert self._keeper.process is not None, "it was started"
        self._pid = self._keeper.process.pid
        # The kernel's way into another mount namespace; at `place` itself, others see an empty directory.
        self.path = Path(f"/proc/{self._pid}/root{place}")
        """Path of the mount, as other processes see it."""

    def inside(self, command: list[str]) -> list[str]:
        """Return the command that runs this one there."""
        # Without `--preserve-credentials`, nsenter drops groups, which a namespace with `--map-root-user` does not
        # permit.
        enter = ["nsenter", f"--target={self._pid}", "--user", "--mount", "--preserve-credentials"]
        return [*enter, "setpriv", "--pdeathsig", "KILL", *command]

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        try:
            # Unbuffered, so that no byte waits in this process for a disk that is full.
            with open(self.path / "filler", "ab", buffering=0) as filler:
                while True:
                    filler.write(PIECE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def empty(self) -> None:
        """Restore the disk as it was before `fill`."""
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self._keeper.kill()
