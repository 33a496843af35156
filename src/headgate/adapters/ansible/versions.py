"""Find the installed versions of Ansible, and the one that runs the playbooks of a job.

Each is an environment: a directory with its own Python, named after the version and a digest of its list of packages.
It is used only if it contains the file MARK, which is written last: the remains of a killed installation are never
used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate.base.errors import HeadgateError
from headgate.base.files import bytes_of
from headgate.config.keys.job import ANSIBLE_VERSIONS

LOCKS = Path(__file__).parent / "locks"
MARK = "headgate.json"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Headgate's own version of Python. Ansible must run on the same one, because it loads Headgate's plugins."""
_DIGEST_SIZE = 8


class AnsibleNotInstalled(HeadgateError):
    """Report that the version that a job requests is not installed; the text says what to do."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"the job requests Ansible {version}, which is not installed on this executor; there, run: "
            f"headgate ansible install {version}"
        )


class EnvironmentMark(msgspec.Struct, frozen=True):
    """Describe an environment, in the file that marks it as complete."""

    version: str
    core: str
    """Version of ansible-core."""
    python: str
    made_ms: int = 0


@dataclass(frozen=True, slots=True)
class Environment:
    """Represent a complete environment."""

    place: Path
    mark: EnvironmentMark
    current: bool
    """Whether it has the packages that this version of Headgate requires; an earlier Headgate may have installed older
    ones."""

    @property
    def program(self) -> str:
        return str(self.place / "bin" / "ansible-playbook")

    @property
    def name(self) -> str:
        """Return its display name."""
        return f"Ansible {self.mark.version} (ansible-core {self.mark.core})"


class Environments:
    """Find environments below `root`. They are made from the lists of packages in `locks`, and from those that the
    operator adds to each: `more`, a requirements file of pip."""

    def __init__(self, root: Path, locks: Path = LOCKS, more: Path | None = None) -> None:
        self.root, self._locks, self.more = root, locks, more

    @property
    def places(self) -> tuple[Path, ...]:
        """Return both directories, and the file of the operator if there is one."""
        return (self.root, self._locks, *([self.more] if self.more is not None else []))

    def lock(self, version: str) -> Path:
        """Return the list of packages of a version, each with the hashes of its files."""
        return self._locks / f"{version}.txt"

    def core(self, version: str) -> str:
        """Return the version of ansible-core that the list of packages names."""
        found = re.search(r"^ansible-core==(\S+)", self.lock(version).read_text(), re.MULTILINE)
        assert found is not None, "every list has ansible-core"
        return found[1]

    def place(self, version: str) -> Path:
        """Return the directory of the current environment, which may not exist yet. Raise OSError if the operator's
        file cannot be read."""
        more = bytes_of(self.more) if self.more is not None else b""
        # Another list of packages gets another directory, so an environment never changes while builds use it.
        digest = hashlib.sha256(self.lock(version).read_bytes() + PYTHON.encode() + more).hexdigest()
        return self.root / f"{version}-{digest[:_DIGEST_SIZE]}"

    def all(self, version: str) -> list[Environment]:
        """Return the usable environments, the current one first, then the newest."""
        try:
            now = self.place(version)
        except OSError:  # without the operator's file, installed environments still work
            now = None
        marks = ((place, _mark(place)) for place in self.root.glob(f"{version}-*"))
        # An environment from before an upgrade of Python cannot load Headgate's plugins.
        found = [Environment(place, mark, place == now) for place, mark in marks if mark and mark.python == PYTHON]
        return sorted(found, key=lambda one: (one.current, one.mark.made_ms), reverse=True)

    def find(self, version: str) -> Environment | None:
        return next(iter(self.all(version)), None)

    def choose(self, version: str, *, requested: bool) -> Environment | None:
        """Return the environment that runs the playbooks of a job; None: the Ansible installed with Headgate, if there
        is one. `requested`: whether the job or its tenant names the version; otherwise it is the default. Raise
        AnsibleNotInstalled."""
        found = self.find(version)
        if found is not None:
            return found
        if requested:
            raise AnsibleNotInstalled(version)
        if beside() is not None:
            return None
        return next(filter(None, map(self.find, reversed(ANSIBLE_VERSIONS))), None)


def beside() -> str | None:
    """Return the ansible-playbook that is installed with this Python, or the one on the path."""
    found = Path(sys.executable).parent / "ansible-playbook"
    return str(found) if found.exists() else shutil.which("ansible-playbook")


@contextmanager
def used(environment: Environment) -> Iterator[bool]:
    """Protect the environment from removal, and yield whether it still exists. Raise OSError."""
    try:
        # A lock of the kernel, which ends with the process: a killed executor leaves none behind.
        fd = os.open(environment.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Checked under the lock: the environment may have been removed between the choice and the lock.
            there = _mark(environment.place) is not None
        except BlockingIOError:  # it is being removed
            there = False
        yield there
    finally:
        os.close(fd)


def _mark(place: Path) -> EnvironmentMark | None:
    try:
        return msgspec.json.decode((place / MARK).read_bytes(), type=EnvironmentMark)
    except (OSError, ValueError):
        return None
