"""A zygote: a process that has imported Ansible, knows nothing of any build, and starts playbooks as copies of itself.

It is a keeper (see `supervisor`) with the Python of an installed Ansible.  Whatever a playbook is told, the supervisor
that it forks reads: the zygote has only the socket over which it is asked for one.  Arguments: the descriptor of that
socket, one for the line in which it says what it is, the program, and the settings to import Ansible with.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

from headgate.adapters.process import supervisor
from headgate.adapters.process.zygotes import entry, playbook

Marks = list[list[Any]]
"""Path, size, modification time and inode of each file and directory. JSON."""


def main() -> None:
    requests, says, program, config = sys.argv[1:]
    report: dict[str, Any] = {"marks": marks([program, sys.executable, *sys.path])}  # JSON
    try:
        report["cold"] = _warmed(config)
    except Exception as error:
        report["cold"] = f"Ansible cannot be imported: {type(error).__name__}: {error}"
    with open(int(says), "w") as line:
        json.dump(report, line)
    if report["cold"]:
        return
    with socket.socket(fileno=int(requests)) as requests_socket:
        supervisor.keeper(requests_socket, functools.partial(entry.start, run=playbook.run))


def _warmed(config: str) -> str:
    """Return why no copy of this process can run a playbook; empty if one can."""
    gc.disable()  # while many permanent objects are made
    place = playbook.load(config)
    for stale in (playbook.stale(place, config), playbook.shared_memory()):
        if stale:
            return stale
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        return "importing Ansible starts threads"
    gc.collect()
    gc.freeze()  # copies share the memory that they do not touch
    gc.enable()
    return ""


def marks(paths: Iterable[str]) -> Marks:
    """Return marks that change with an installation: a package that is added or removed changes its directory."""
    found = []
    for path in paths:
        try:
            about = os.stat(path)
        except OSError:
            continue
        found.append([path, about.st_size, about.st_mtime_ns, about.st_ino])
    return found
