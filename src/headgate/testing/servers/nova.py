"""Run a real Nova without Keystone, one for all processes that need it; its hypervisor runs no machines.

`make nova` makes its Python environment. A token is `PROJECT.USER.…`, with any project and user.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.testing.servers.program import free_ports

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headgate" / "nova"
START_MAX_S = 300.0
TENANT = "6f70656e737461636b20342065766572"
"""The project that has networks."""
NETWORK = "3cb9bc59-5699-4588-a4b1-b87f96708bc6"
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"


def missing() -> str:
    """Return the prerequisites of Nova that this machine lacks, for people; empty: none."""
    return "" if (PLACE / "packages.txt").exists() else f"Nova is not here: `make nova` puts it into {PLACE}"


@contextmanager
def nova(shared: Path) -> Iterator[str]:
    """Provide the address of the server of `shared`, a directory. The server ends with its last user. Raise
    RuntimeError if no server can be run."""
    if missing():
        raise RuntimeError(missing())
    shared.mkdir(exist_ok=True)
    with open(shared / "used", "a") as used, open(shared / "starting", "a") as starting:
        # Before the look at the port: the server ends only with an exclusive lock on this file, so one that answers now
        # stays.
        fcntl.flock(used, fcntl.LOCK_SH)
        # Of several processes that find no server, one starts it and the others wait.
        fcntl.flock(starting, fcntl.LOCK_EX)
        try:
            port = _running(shared / "port") or _start(shared)
        finally:
            fcntl.flock(starting, fcntl.LOCK_UN)
        yield f"http://127.0.0.1:{port}/v2.1"


def _running(file: Path) -> int:
    try:
        port = int(file.read_text())
    except (OSError, ValueError):
        return 0
    return port if _answers(port) else 0


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start(shared: Path) -> int:
    (port,) = free_ports(1)
    script = Path(__file__).with_name("nova_serve.py")
    command = [str(PLACE / "bin" / "python"), "-I", str(script), str(port), str(shared / "used")]
    home = {**os.environ, "HOME": str(shared)}
    with open(shared / "output", "ab") as out:
        process = subprocess.Popen(command, cwd=shared, stdout=out, stderr=out, start_new_session=True, env=home)
    end_s = time.monotonic() + START_MAX_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > end_s:
            process.kill()
            raise RuntimeError(f"Nova did not start:\n{(shared / 'output').read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
    # Written once it answers: processes that read it can use it.
    (shared / "port").write_text(str(port))
    return port
