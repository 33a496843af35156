"""Test jobs that attack other processes: the executor's, the neighbours' and their own sandbox's."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_for

from .arena import Arena
from .ordinary import play_as_ordinary_user

SECRET = "what-only-the-neighbour-s-environment-has"
VICTIM = f"""#!/bin/sh
export NEIGHBOUR={SECRET}
umask 077
echo {SECRET} > private
mkfifo fifo
echo WAITING $ZUUL_BUILD
exec sleep 300
"""
ATTACK = """#!/usr/bin/env python3
import ctypes, os, signal, sys

libc = ctypes.CDLL(None, use_errno=True)
own = {os.getpid()}
pid = os.getpid()
print("UID", os.getuid(), "GID", os.getgid(), os.getgroups(), flush=True)

def tried(name, pid, action):
    try:
        action()
        print("REACHED", name, pid, flush=True)
    except OSError as error:
        pass

def traced(pid):
    if libc.ptrace(16, pid, 0, 0):  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")

def written(pid):
    local = (ctypes.c_char * 1)()
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(local), 1)
    if libc.process_vm_writev(pid, vector, 1, vector, 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_writev")

def pidfd(pid):
    signal.pidfd_send_signal(os.pidfd_open(pid), 0)

known = [int(word) for word in PIDS.split()]
print("SEEN", sorted(int(name) for name in os.listdir("/proc") if name.isdigit()), flush=True)
for pid in [1, *range(3, 60), *known]:
    if pid in own or pid == os.getppid():
        continue
    tried("signal", pid, lambda: os.kill(pid, 0))
    tried("group", pid, lambda: os.killpg(pid, 0))
    tried("pidfd", pid, lambda: pidfd(pid))
    tried("ptrace", pid, lambda: traced(pid))
    tried("memory", pid, lambda: open(f"/proc/{pid}/mem", "rb").read(1))
    tried("vm", pid, lambda: written(pid))
    tried("environ", pid, lambda: open(f"/proc/{pid}/environ").read())
    tried("root", pid, lambda: os.listdir(f"/proc/{pid}/root"))
    tried("cwd", pid, lambda: os.listdir(f"/proc/{pid}/cwd"))
    tried("fd", pid, lambda: os.listdir(f"/proc/{pid}/fd"))
    tried("maps", pid, lambda: open(f"/proc/{pid}/maps").read())
    tried("oom", pid, lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"))
    tried("priority", pid, lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    tried("rlimit", pid, lambda: __import__("resource").prlimit(pid, 7, (1, 1)))
for action in ("setuid(0)", "setgid(0)", "setgroups([0])", "setreuid(0, 0)", "setresuid(0, 0, 0)", "chroot('/')"):
    tried(action, "", lambda: eval(f"os.{action}"))
print("KILLING", flush=True)
os.kill(-1, signal.SIGKILL)  # whom it may, but itself
"""


@pytest.mark.long
def test_a_job_reaches_no_process_but_its_own(tmp_path: Path) -> None:
    """Neither by number nor after an escape from its process namespace: the users differ."""
    with Arena(tmp_path) as arena:
        assert arena.headgate.process is not None
        executor = psutil.Process(arena.headgate.process.pid)
        arena.attack("victim", VICTIM)
        logs = arena.headgate.root / "state/logs"
        victim = wait_for("the neighbour waits", lambda: _waiting(executor))
        pids = [executor.pid, *(p.pid for p in executor.children(recursive=True))]
        arena.attack("reach", ATTACK.replace("PIDS.split()", f"{' '.join(map(str, pids))!r}.split()"))
        arena.neighbours_land()
        log = str(wait_for("the attack has begun to kill", lambda: _log_with(logs, "| KILLING")))
        assert "| REACHED" not in log, log
        seen = re.search(r"SEEN \[(.*)\]", log)
        assert victim.is_running() and executor.is_running() and (seen is None or len(seen[1].split(",")) < 20)
        attacker = int(re.search(r"UID (\d+)", log)[1])  # type: ignore[index]  # it said so
        assert victim.uids().real != executor.uids().real and os.geteuid() == executor.uids().real
        if os.geteuid() == 0:
            _out_of_its_namespace(attacker, victim, executor)


def _out_of_its_namespace(uid: int, *processes: psutil.Process) -> None:
    """The rights of the user of the attack's build, if only its user id confined it."""
    assert uid != processes[0].uids().real
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "sh", "-c"]
    for process in processes:
        for attempt in (
            "kill -0 $0",
            "cat /proc/$0/environ",
            "ls /proc/$0/root/",
            "ls /proc/$0/fd",
            "cat /proc/$0/mem",
        ):
            done = subprocess.run([*user, attempt, str(process.pid)], capture_output=True, text=True, check=False)
            assert done.returncode != 0 and not done.stdout, attempt


def _waiting(executor: psutil.Process) -> psutil.Process | None:
    """The victim's own process."""
    for process in executor.children(recursive=True):
        try:
            if process.cmdline()[:2] == ["sleep", "300"]:
                return process
        except psutil.Error:
            continue
    return None


def _log_with(logs: Path, words: str) -> str:
    for file in logs.glob("*/job-output.txt"):
        text = file.read_text(errors="replace")
        if words in text:
            return text
    return ""


@pytest.mark.long
def test_a_job_of_an_ordinary_users_executor_reaches_no_process_but_its_own() -> None:
    play_as_ordinary_user("test_confinement.py::test_a_job_reaches_no_process_but_its_own")
