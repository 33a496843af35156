"""Run the same attacks against a Headgate of an ordinary user."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

USER = "headgate-plays"
ROOT = Path(__file__).parents[2]
TEST_TIMEOUT_S = 300
NEEDED = ("unshare", "setpriv", "newuidmap", "newgidmap", "useradd")


TUNNELS = Path("/dev/net/tun")
WITH_TUNNELS = """
mount -t tmpfs -o mode=755 tunnels /dev/net && mknod -m {mode} /dev/net/tun c 10 200 || exit 99
exec "$@"
"""
"""In a separate mount namespace: whether other users may open the device differs from machine to machine."""


def may_tunnel() -> bool:
    """Return whether this process can give its jobs a network."""
    return os.geteuid() == 0 or os.access(TUNNELS, os.R_OK | os.W_OK)


def play_as_ordinary_user(test: str, *, tunnels: bool = True, **environment: str) -> None:
    """Run one test of this directory, `file.py::test`, as a user with subordinate users. `tunnels` says whether that
    user may open /dev/net/tun."""
    if os.geteuid() != 0:
        pytest.skip("who runs this is an ordinary user already")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    python = next((p for p in (sys.executable, "/usr/bin/python3") if _usable(p)), "")
    if missing or not python:
        pytest.skip(f"needs {', '.join(missing) or 'a Python of this version that other users may run'}")
    person = _person()
    with tempfile.TemporaryDirectory(prefix="plays-", ignore_cleanup_errors=True) as place:
        os.chown(place, person.pw_uid, person.pw_gid)
        packages = [path for path in sys.path if path.endswith("site-packages")]
        variables = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": person.pw_dir,
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join([str(ROOT / "src"), str(ROOT), *packages]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        surroundings = ["unshare", "--mount", "sh", "-c", WITH_TUNNELS.format(mode="666" if tunnels else "600"), "sh"]
        user = [*surroundings, "setpriv", f"--reuid={person.pw_uid}", f"--regid={person.pw_gid}", "--init-groups"]
        pytest_options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={place}/t"]
        done = subprocess.run(
            [*user, python, "-m", "pytest", *pytest_options, f"tests/hostile/{test}"],
            cwd=ROOT, env={**variables, **environment}, capture_output=True, text=True, check=False,
            timeout=TEST_TIMEOUT_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, done.stdout


def _usable(python: str) -> bool:
    """Run as other users, with the packages of this one."""
    version = "import sys; print(sys.version_info[:2])"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words = [*nobody, "sh", "-c", 'exec "$@"', "sh", python, "-I", "-c", version]  # setpriv itself may still read it
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() == str(sys.version_info[:2])


def _person() -> pwd.struct_passwd:
    """It is made if necessary, and kept."""
    with open(Path(tempfile.gettempdir()) / f"{USER}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return pwd.getpwnam(USER)
        except KeyError:
            subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", USER], check=True)
            return pwd.getpwnam(USER)
