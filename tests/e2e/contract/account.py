"""Another user of this machine, as nodes have one: made where root runs the tests, else it is this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin:/usr/local/bin"


@dataclass(frozen=True)
class Account:
    """`python` is one that this user may run."""

    name: str
    home: Path
    python: str

    def let_in(self, public_key: str) -> None:
        """Add a line to who may log in as this user."""
        file = self.home / ".ssh/authorized_keys"
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with open(file, "a") as keys:
            keys.write(public_key)
        for place in (file.parent, file):
            shutil.chown(place, self.name, self.name)


@contextmanager
def account(root: Path) -> Iterator[Account | None]:
    """None where there can be none: then tests log in as who runs them."""
    python = shutil.which("python3", path=SYSTEM_PYTHON)
    if os.geteuid() != 0 or not shutil.which("useradd") or not sys.platform.startswith("linux") or not python:
        yield None
        return
    name, home = f"hg-node-{os.getpid()}", root / "home"
    words = ["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/sh", "--password", "*", name]
    subprocess.run(words, check=True, capture_output=True)
    try:
        _tidy(name)
        yield Account(name, home, python)
    finally:
        _tidy(name)
        subprocess.run(["userdel", "--force", name], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def _tidy(name: str) -> None:
    """Remove what tests that were ended left of this user, or of an earlier one with the same number."""
    for file in Path("/tmp").glob("headgate-*"):
        with suppress(FileNotFoundError, KeyError):
            if file.is_file() and file.owner() == name:
                file.unlink()
