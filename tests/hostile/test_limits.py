"""Test jobs that use as much as they can: processes, memory, disk, descriptors, output, time."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_for

from .arena import ATTACKER, LAND_S, Arena

SETTINGS = """
memory_max_mb = 300
processes_max = 80
files_max = 3000
tmp_size_max_mb = 1000
open_files_max = 200
output_max_mb = 20
log_size_max_mb = 1
"""
PYTHON = "#!/usr/bin/env python3\nimport mmap, os, resource, signal, socket, subprocess, sys, time\n"
WAIT = "sleep 600\n"

Attack = tuple[str, str]
"""The job's action, and a pattern for its log."""

MEMORY, DISK, PROCESSES = (
    "memory limit of 300 MB reached",
    "disk limit of 60 MB reached",
    "limit of 80 processes reached",
)
ATTACKS: dict[str, dict[str, Attack]] = {
    "processes": {
        "bomb": (  # a shell that may not fork ends itself: it dies out, and its parent waits
            "#!/bin/sh\nb() { b | b & }\nb\n" + WAIT,
            r"\| limit of 80 processes reached: .*\n(.*\n)*.*RESULT: FAILURE: run: jobs/bomb: " + PROCESSES,
        ),
        "threads": (
            PYTHON + "import threading\nfor _ in range(500):\n"
            "    threading.Thread(target=time.sleep, args=(600,)).start()\n",
            PROCESSES,
        ),
        "orphans": (
            PYTHON + "while True:\n    try:\n        if os.fork() == 0:\n            os.setsid()\n"
            "            if os.fork():\n                os._exit(0)\n            signal.pause()\n"
            "    except OSError:\n        time.sleep(0.1)\n",
            PROCESSES,
        ),
    },
    "memory": {
        "heap": (PYTHON + "found = []\nwhile True:\n    found.append(bytearray(os.urandom(1000) * 1000))\n", MEMORY),
        "many": (
            PYTHON + "for _ in range(20):\n    if os.fork() == 0:\n        b = bytearray(b'x' * 40_000_000)\n"
            "        signal.pause()\ntime.sleep(600)\n",
            MEMORY,
        ),
        "tmpfs": ("#!/bin/sh\ncat /dev/zero >/tmp/x\n" + WAIT, MEMORY),
        "shm": ("#!/bin/sh\ncat /dev/zero >/dev/shm/x\n" + WAIT, MEMORY),
        "memfd": (
            PYTHON + "f = os.memfd_create('x')\nwhile True:\n    os.write(f, bytes(1_000_000))\n",
            MEMORY,
        ),
    },
    "disk": {
        "big": ("#!/bin/sh\ncat /dev/zero >big\n" + WAIT, r"disk limit of 60 MB reached|SIGXFSZ"),
        "pieces": ("#!/bin/sh\nfor i in $(seq 100); do head -c 5000000 /dev/zero >p$i; done\n" + WAIT, DISK),
        "small": (
            PYTHON + "for n in range(20000):\n    open(f'f{n}', 'w').close()\ntime.sleep(600)\n",
            "limit of 3000 files reached",
        ),
        "deleted": (
            PYTHON + "held = []\nfor _ in range(150):\n    f = open('x', 'wb')\n    os.unlink('x')\n"
            "    held.append(f)\n    f.write(bytes(1_000_000))\n    f.flush()\n    time.sleep(0.01)\ntime.sleep(600)\n",
            DISK,
        ),
        "mapped": (
            PYTHON + "held = []\nfor _ in range(150):\n    with open('x', 'w+b') as f:\n        os.unlink('x')\n"
            "        f.truncate(1_000_000)\n        held.append(mmap.mmap(f.fileno(), 1_000_000))\n"
            "        held[-1][:] = bytes(1_000_000)\n    time.sleep(0.01)\ntime.sleep(600)\n",
            DISK,
        ),
        "deep": (
            PYTHON + "for n in range(4000):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\ntime.sleep(600)\n",
            "limit of 3000 files reached",
        ),
        "logs": ("#!/bin/sh\ncat /dev/zero >$ZUUL_LOG_DIR/big\n" + WAIT, r"disk limit of 60 MB reached|SIGXFSZ"),
        "allocated": (
            PYTHON + "for n in range(100):\n    try:\n        os.posix_fallocate(os.open(f'a{n}', 65), 0, 50_000_000)\n"
            "    except OSError as error:\n        print('not allocated:', error, flush=True)\ntime.sleep(600)\n",
            DISK,
        ),
    },
    "rest": {
        "sparse": ("#!/bin/sh\ntruncate -s 10G huge || echo sparse is refused\nexit 0\n", "sparse is refused"),
        "open": (
            PYTHON + "held = []\ntry:\n    while True:\n        held.append(open('/dev/null'))\n"
            "except OSError as error:\n    print(len(held), error)\n",
            "Too many open files",
        ),
        "output": ("#!/bin/sh\nyes\n", "output limit of 20 MB reached"),
        "core": (
            PYTHON + "print('core', resource.getrlimit(resource.RLIMIT_CORE)[0])\nos.abort()\n",
            r"\| core 1\n(.*\n)*.*SIGABRT",
        ),
        "stubborn": (
            PYTHON + "for s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
            "    except (OSError, ValueError):\n        pass\nif os.fork() == 0:\n    os.setsid()\n    if os.fork():\n"
            "        os._exit(0)\nprint('stays', flush=True)\ntime.sleep(600)\n",
            "ended at its time limit",
        ),
        "left": ("#!/bin/sh\nsetsid -f sh -c 'trap \"\" TERM HUP; exec sleep 7654321'\nexit 0\n", "RESULT: SUCCESS"),
    },
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", ATTACKS)
def test_a_job_that_takes_all_fails_alone_and_says_why(tmp_path: Path, kind: str) -> None:
    attacks = ATTACKS[kind]
    timeouts = {"stubborn": ", timeout: 3", "bomb": ", timeout: 15"}
    jobs = "".join(f"- job: {{name: {n}, run: jobs/{n}, attempts: 3{timeouts.get(n, '')}}}\n" for n in attacks)
    config = jobs + f"- project: {{check: {{jobs: [{', '.join(attacks)}]}}}}\n"
    disk_max_mb = 2000 if kind == "memory" else 60
    with Arena(tmp_path, settings=f"{SETTINGS}disk_max_mb = {disk_max_mb}\n") as arena:
        commit = arena.propose(
            ATTACKER, "greedy", {"zuul.yaml": config, **{f"jobs/{name}": text for name, (text, _) in attacks.items()}}
        )
        arena.neighbours_land()
        arena.note_section(ATTACKER, commit, "check")
        for name, (_, words) in attacks.items():
            log = arena.job_log("example", name)
            assert re.search(words, log), f"{name}:\n{log[-3000:]}"
            assert "attempt 1" in log, f"{name} was tried again"
        builds = arena.headgate.root / "state/builds"
        wait_for("their directories are gone", lambda: not any(builds.iterdir()))  # also of what has landed meanwhile
        wait_for("nothing is left", lambda: not left(arena.headgate.root), LAND_S)
    assert "Traceback" not in arena.log


def left(root: Path) -> list[psutil.Process]:
    """Return processes that work below the directory, or were started by the job `left`."""
    found = []
    for process in psutil.process_iter():
        try:
            words, place = process.cmdline(), process.cwd()
        except psutil.Error:
            continue
        except OSError as error:
            assert error.errno == errno.ENAMETOOLONG, error
            found.append(process)  # so deep is only the job `deep`
            continue
        if "7654321" in words or place.startswith(str(root / "state/builds")):
            found.append(process)
    return found
