"""Provide the real Ansible 9, fetched once for all test runs on this machine: without its collections, or with one."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from headgate.adapters.ansible.install import CannotInstall, install
from headgate.adapters.ansible.versions import LOCKS, Environments

POSIX = "ansible_collections/ansible/posix"


def _blocks() -> list[str]:
    """Return the packages of the list, each with its hashes."""
    return re.split(r"^(?=[a-z])", (LOCKS / "9.txt").read_text(), flags=re.MULTILINE)


def fetched(locks: Path) -> Environments:
    """Return it without collections; `locks` is empty, and stays."""
    (locks / "9.txt").write_text("".join(block for block in _blocks() if not block.startswith("ansible==")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Environments(cache / "headgate" / "ansible", locks)
    try:
        install(found, "9", say=print)
    except CannotInstall as why:
        pytest.skip(str(why))
    return found


def with_posix(found: Environments) -> Environments:
    """Add ansible.posix, as Ansible's own package has it."""
    (packages,) = found.place("9").glob("lib/python*/site-packages")
    with open(found.root / ".posix.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (packages / POSIX).exists():
            with tempfile.TemporaryDirectory(dir=found.root) as place:
                _unpack(_downloaded(Path(place), found.place("9") / "bin/python"), Path(place))
                (packages / POSIX).parent.mkdir(parents=True, exist_ok=True)
                (Path(place) / POSIX).rename(packages / POSIX)
    return found


def _downloaded(place: Path, python: Path) -> Path:
    """Return the wheel of Ansible, whose hash is that of the list."""
    (place / "ansible.txt").write_text(next(block for block in _blocks() if block.startswith("ansible==")))
    pip = sys.executable if importlib.util.find_spec("pip") else str(python)
    words = [pip, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    done = subprocess.run(
        [*words, "-d", place, "-r", place / "ansible.txt"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"Ansible's collections cannot be fetched: {done.stderr[-200:]}")
    return next(place.glob("ansible-*.whl"))


def _unpack(wheel: Path, place: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place, [name for name in packed.namelist() if name.startswith(f"{POSIX}/")])
