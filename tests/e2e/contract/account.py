"""Provide another user of this machine, as nodes have one.

It is created if root runs the tests; otherwise it is the current user. Beside it is a user that only it may become,
through sudo. Neither grants access if a run that was killed leaves them behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin:/usr/local/bin"
RULES = Path("/etc/sudoers.d")
RULE = "hg-node-"
"""Prefix of the names of our users, and of the files with their rights."""


@dataclass(frozen=True)
class Account:
    """`python` is one that this user may run; `becomes` names the user that it may become; empty: none, because sudo
    is missing."""

    name: str
    home: Path
    python: str
    becomes: str = ""

    def let_in(self, public_key: str) -> None:
        """Add a line to the authorized keys of this user."""
        file = self.home / ".ssh/authorized_keys"
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with open(file, "a") as keys:
            keys.write(public_key)
        for place in (file.parent, file):
            shutil.chown(place, self.name, self.name)


@contextmanager
def account(root: Path) -> Iterator[Account | None]:
    """Return None if no user can be created: then tests log in as the user who runs them."""
    python = shutil.which("python3", path=SYSTEM_PYTHON)
    if os.geteuid() != 0 or not shutil.which("useradd") or not sys.platform.startswith("linux") or not python:
        yield None
        return
    name, home = f"{RULE}{os.getpid()}", root / "home"
    with ExitStack() as stack:
        stack.enter_context(_user(name, home))
        yield Account(name, home, python, stack.enter_context(_other(name, root / "other")))


@contextmanager
def _user(name: str, home: Path) -> Iterator[None]:
    words = ["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/sh", "--password", "*", name]
    subprocess.run(words, check=True, capture_output=True)
    try:
        _tidy(name)
        yield
    finally:
        _tidy(name)
        subprocess.run(["userdel", "--force", name], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _other(name: str, home: Path) -> Iterator[str]:
    """Return the name of a user that `name` may become; empty without sudo."""
    if not shutil.which("sudo") or not RULES.is_dir():
        yield ""
        return
    for left in RULES.glob(f"{RULE}*"):
        if not Path("/proc", left.name.removeprefix(RULE)).exists():
            left.unlink(missing_ok=True)
    other, rule = f"{name}-b", RULES / name
    with _user(other, home):
        home.chmod(0o700)
        rule.touch(mode=0o440)
        rule.write_text(f"{name} ALL=({other}) NOPASSWD: ALL\n")
        try:
            subprocess.run(["visudo", "--check", "--quiet", "--file", str(rule)], check=True, capture_output=True)
            yield other
        finally:
            rule.unlink()


def _tidy(name: str) -> None:
    """Remove the remains of interrupted tests of this user, or of an earlier one with the same number."""
    for file in Path("/tmp").glob("headgate-*"):
        with suppress(FileNotFoundError, KeyError):
            if file.is_file() and file.owner() == name:
                file.unlink()
