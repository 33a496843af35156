"""Test jobs that search the machine for credentials, and that use dangerous system calls."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_for

from .arena import ATTACKER, Arena

TREASURE = "treasure-of-this-installation"
ALLOWED_BELOW_ROOT = {
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "proc", "sbin", "sys", "tmp", "usr", "var",
}  # fmt: skip

SEARCH = """#!/bin/sh
# Everything that can be read, apart from programs and processes.
grep -rsl {treasure} $(ls -d /* /usr/local/etc | grep -v -e '^/usr$' -e '^/proc$' -e '^/sys$') \
    /proc/[0-9]*/environ /proc/1/cmdline --exclude=attack --exclude-dir=.git --exclude-dir=lib --exclude-dir=include \
    2>/dev/null | sed 's/^/FOUND /'
for file in {files}; do
    test -e $file && echo "SEEN $file"
    (cat $file || head -c 1 $file/*) >/dev/null 2>&1 && echo "READ $file"
done
find / -xdev -type s 2>/dev/null | sed 's/^/SOCKET /'
ls / | sed 's/^/ROOT /'
ls /etc | sed 's/^/ETC /'
echo "AGENT ${{SSH_AUTH_SOCK:-none}}"
cat /etc/passwd | sed 's/^/USER /'
touch /planted /etc/planted /dev/planted /usr/planted /sys/planted {root}/planted 2>/dev/null && echo PLANTED
for file in sys/kernel/core_pattern sys/kernel/modprobe sys/vm/drop_caches sysrq-trigger irq/default_smp_affinity; do
    test -w /proc/$file && (: >>/proc/$file) 2>/dev/null && echo "PLANTED in $file"
done
ls $ZUUL_LOG_DIR/../../../../logs | grep -v -x $ZUUL_BUILD | sed 's/^/FOUND /'
ls $ZUUL_LOG_DIR/../../.. | grep -v -x $ZUUL_BUILD | sed 's/^/FOUND /'
tr '\\0' '\\n' </proc/1/environ | sed 's/^/ENVIRON /'
"""


def test_no_credential_can_be_found_by_a_job(tmp_path: Path) -> None:
    """Search settings, state, keys, sockets of services and of ssh agents, other users' homes, other builds."""
    keys = tmp_path / "home/.ssh"
    keys.mkdir(parents=True)
    (keys / "id_ed25519").write_text(f"{TREASURE}\n")
    agent = socket.socket(socket.AF_UNIX)
    agent.bind(str(tmp_path / "agent"))
    bucket = tmp_path / "bucket-secret"
    bucket.write_text(TREASURE)
    bucket.chmod(0o600)
    settings = f"""[keystore]
password = {TREASURE}
[logs]
url = s3://logs/of/headgate
endpoint = http://127.0.0.1:9
access_key = headgate
secret_key_file = {bucket}
"""
    with agent, Arena(tmp_path, settings=settings) as arena:
        root = arena.headgate.root
        hidden = [
            root / "headgate.conf", root / "state", root / "state/headgate.sqlite", root / "state/history.sqlite",
            root / "state/builds.sqlite", root / "repositories", keys, tmp_path / "agent", bucket, "/etc/shadow",
            "/etc/headgate", "/etc/ssl/private", "/etc/ssh/ssh_host_*_key", "/etc/gitconfig", "/etc/pip.conf",
            "~root/.ssh", "~root/.gitconfig", "/home/*", "/run/*", "/var/run/docker.sock", "/var/lib/*", "/opt/*",
            "/sys/fs/cgroup/*", "/sys/kernel/*", "/proc/kcore",
        ]  # fmt: skip
        text = SEARCH.format(treasure=TREASURE, files=" ".join(str(path) for path in hidden), root=root)
        commit = arena.attack("search", text)
        arena.note_section(ATTACKER, commit, "check")
        arena.neighbours_land()
        log = arena.job_log("example", "attack")
    lines = [line.partition(" | ")[2] for line in log.splitlines()]
    assert "AGENT none" in lines
    assert not [line for line in lines if line.startswith(("FOUND", "READ", "SOCKET", "PLANTED"))], log
    own = {str(path) for path in (root / "state",)}  # the path to the build's own directory
    assert {line.removeprefix("SEEN ") for line in lines if line.startswith("SEEN")} <= own | {"/proc/kcore"}
    way = {path.parts[1] for path in (root, Path(sys.prefix), Path(sys.base_prefix))}
    assert {line.removeprefix("ROOT ") for line in lines if line.startswith("ROOT")} <= ALLOWED_BELOW_ROOT | way
    users = [line.removeprefix("USER ").split(":")[0] for line in lines if line.startswith("USER")]
    assert len(users) <= 3 and {"root", "nobody"} <= set(users)
    assert not [line for line in lines if line.startswith("ENVIRON") and TREASURE in line]


CALLS = """#!/usr/bin/env python3
import ctypes, errno, fcntl, os, pty, sys

libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS = 0x10000000, 0x00020000


def tried(name, result):
    why = ctypes.get_errno()
    print(name, "succeeded" if result >= 0 else f"refused: {errno.errorcode.get(why, why)}", flush=True)


def call(name, number, *arguments):
    ctypes.set_errno(0)
    tried(name, libc.syscall(number, *arguments))


def child(name, flags):
    ctypes.set_errno(0)
    pid = libc.syscall(56, flags | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    tried(name, pid)


call("keyctl", 250, 0, -3, 1)
call("add_key", 248, b"user", b"a", b"b", 1, -3)
call("request_key", 249, b"user", b"a", 0, -3)
call("bpf", 321, 0, 0, 0)
call("perf_event_open", 298, ctypes.create_string_buffer(128), 0, -1, -1, 0)
call("userfaultfd", 323, 1)
call("io_uring", 425, 8, ctypes.create_string_buffer(120))
call("kexec", 246, 0, 0, 0, 0)
call("clone3", 435, (ctypes.c_uint64 * 11)(NEWUSER, 0, 0, 0, 17), 88)
child("clone", NEWUSER)
call("x32 keyctl", 0x40000000 + 250, 0, -3, 1)
call("unshare", 272, NEWUSER)
call("unshare mounts", 272, NEWUSER | NEWNS)
call("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
call("umount", 166, b"/etc/passwd", 2)
call("fsopen", 430, b"tmpfs", 0)
call("open_tree", 428, -100, b"/", 1)
call("setns", 308, os.open("/proc/self/ns/net", 0), 0)
call("pivot_root", 155, b"/tmp", b"/tmp")
call("open_by_handle_at", 304, os.open("/", 0), ctypes.create_string_buffer(64), 0)
call("syslog", 103, 3, ctypes.create_string_buffer(64), 64)
call("sethostname", 170, b"x", 1)
call("mknod", 133, b"/tmp/disk", 0o60666, 0xfe00)
call("chroot", 161, b"/tmp")
for name, family, kind in (("vsock", 40, 1), ("vsock packets", 40, 2), ("alg", 38, 5), ("tipc", 30, 2), ("none", 0, 1)):
    call(name, 41, family, kind, 0)
call("pair of vsock", 53, 40, 1, 0, ctypes.create_string_buffer(8))
pid, terminal = pty.fork()
if pid == 0:
    for name, number in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
        try:
            fcntl.ioctl(0, number, b"x")
            print(name, "succeeded", flush=True)
        except OSError as error:
            print(name, "refused:", errno.errorcode[error.errno], flush=True)
    os._exit(0)
found = b""
try:
    while piece := os.read(terminal, 1000):
        found += piece
except OSError:
    pass
print(found.decode().replace(chr(13), ""))
print("through all")
"""


@pytest.mark.long
def test_the_kernel_refuses_calls_that_no_build_needs(tmp_path: Path) -> None:
    """Try keyrings, namespaces, mounts, eBPF, io_uring, sockets outside network namespaces, terminal input, and ways
    around a system call filter."""
    with Arena(tmp_path) as arena:
        commit = arena.attack("calls", CALLS)
        arena.note_section(ATTACKER, commit, "check")
        arena.neighbours_land()
        log = arena.job_log("example", "attack")
    assert "| through all" in log
    assert log.count("refused:") >= 31 and "succeeded" not in log, log
    refused = {line.partition(" | ")[2].partition(" refused: ")[::2] for line in log.splitlines() if "refused" in line}
    assert {("unshare", "EPERM"), ("clone", "EPERM"), ("clone3", "ENOSYS"), ("TIOCSTI", "EPERM")} <= refused
    assert {("keyctl", "EPERM"), ("x32 keyctl", "ENOSYS"), ("bpf", "EPERM"), ("io_uring", "EPERM")} <= refused
    assert {("vsock", "EAFNOSUPPORT"), ("alg", "EAFNOSUPPORT"), ("none", "EAFNOSUPPORT")} <= refused


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_reads_nothing(tmp_path: Path) -> None:
    """State, history, logs and git copies that were readable for all are restricted at the start, with a message."""
    os.chmod(tmp_path, 0o755)
    state = tmp_path / "state"
    for name in ("", "logs", "builds", "git"):
        (state / name).mkdir()
        (state / name).chmod(0o755)
    (state / "history.sqlite").touch(0o644)
    with Arena(tmp_path) as arena:
        commit = arena.attack("plain", "#!/bin/sh\necho said\n")
        arena.note_section(ATTACKER, commit, "check")
        arena.neighbours_land()
        assert "said" in arena.job_log("example", "attack")
        look = "find $0 -readable 2>/dev/null; cat $0/*.sqlite $0/logs/*/* $0/token"
        opened = {place: place.stat().st_mode for place in tmp_path.parents if not place.stat().st_mode & 1}
        try:
            for place in opened:  # of this test alone
                os.chmod(place, 0o711)
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", look, str(state)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            for place, mode in opened.items():
                os.chmod(place, mode)
        assert done.stdout == "" and "Permission denied" in done.stderr
        modes = {path.name: path.stat().st_mode & 0o777 for path in (state, *state.iterdir())}
    assert {modes[name] for name in (state.name, "logs", "builds", "git")} == {0o700}
    databases = {name: mode for name, mode in modes.items() if ".sqlite" in name and not name.endswith(".owner")}
    assert len(databases) >= 4 and set(databases.values()) == {0o600}
    assert arena.log.count("was accessible to other users") == 5


OPEN = """#!/bin/sh
umask 000
mkdir -p $ZUUL_LOG_DIR/open shared && echo mine >shared/file && echo log >$ZUUL_LOG_DIR/open/log
cp /bin/sh $ZUUL_LOG_DIR/open/shell && chmod 6777 $ZUUL_LOG_DIR/open/shell shared/file $ZUUL_LOG_DIR/open
chmod 777 . .. ../.. $HOME
touch $ZUUL_LOG_DIR/open/begun
echo BEGUN
sleep 3
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_files_of_a_job_without_a_umask_are_not_open_to_other_users(tmp_path: Path) -> None:
    """Check while it runs, and among the stored logs, which everybody on the machine may read here."""
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o111)
    with Arena(tmp_path, settings="log_access = all\n") as arena:
        commit = arena.attack("open", OPEN)
        builds, logs = tmp_path / "state/builds", tmp_path / "state/logs"
        place = wait_for("the job has begun", lambda: next(builds.glob("*/*/logs/open/begun"), None))
        for reach in (f"cat {place.parent}/log", f"echo x >>{place.parent}/log", f"ls {builds}"):
            done = subprocess.run([*nobody, "sh", "-c", reach], capture_output=True, text=True, check=False)
            assert done.returncode != 0 and not done.stdout, reach
        assert arena.neighbours_land() > 0
        arena.note_section(ATTACKER, commit, "check")
        (shell,) = logs.glob("*/open/shell")
        for file in (logs, *logs.rglob("*")):
            found = file.stat()
            assert found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o7022, (file, oct(found.st_mode))
        assert shell.stat().st_size == Path("/bin/sh").stat().st_size
