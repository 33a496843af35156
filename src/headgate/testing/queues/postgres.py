"""A PostgreSQL of one's own, from the system's packages: started on a free port, gone at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.base.ids import fresh
from headgate.testing.deadline import DEADLINE_S
from headgate.testing.servers.program import free_ports


def programs() -> Path | None:
    """Return where initdb and postgres are; the newest, None when there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[str]:
    """Provide the URL of an empty database.  `durable` waits for the disk, as in earnest."""
    bin = programs()
    assert bin is not None, "PostgreSQL is not installed: apt-get install postgresql"
    root = Path(tempfile.mkdtemp(prefix="headgate-pg-"))
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(root, user)
    (port,) = free_ports(1)
    data, as_user = root / "data", user if os.geteuid() == 0 else None
    initdb = [str(bin / "initdb"), "-D", str(data), "-U", "headgate", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
    subprocess.run(initdb, check=True, capture_output=True, user=as_user, cwd=root)
    command = [str(bin / "postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    command += ["-k", str(root), *([] if durable else ["-c", "fsync=off", "-c", "synchronous_commit=off"])]
    with open(root / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, user=as_user, cwd=root)
    try:
        _until_ready(bin, port, server, root / "log")
        yield f"postgresql://headgate@127.0.0.1:{port}/postgres"
    finally:
        # A fast shutdown: SIGTERM would wait for every client to leave.
        server.send_signal(signal.SIGINT)
        server.wait(DEADLINE_S)
        shutil.rmtree(root, ignore_errors=True)


def new_database(server: str) -> str:
    """Return the URL of an empty database on a server, whose own URL is given."""
    import psycopg

    name = f"d{fresh()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"{server.rpartition('/')[0]}/{name}"


def _until_ready(bin: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    ready = [str(bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready, check=False).returncode != 0:
        if time.monotonic() > end or server.poll() is not None:
            raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-500:]}")
        time.sleep(0.05)
