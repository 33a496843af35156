#!/usr/bin/env python3
"""Run Chromium so that it does not notice network changes: it drops everything that it is loading whenever an
interface appears or disappears. Other tests, whose jobs have networks, add and remove interfaces of this machine all
the time. Without netlink sockets, Chromium assumes a permanent network. The system call filter does nothing else."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import socket
import struct
import sys

CHROMIUM = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
SOCKET = {"x86_64": (0xC000_003E, 41), "aarch64": (0xC000_00B7, 198)}
"""Machine -> its architecture, and the number of the system call, for filters."""
LOAD, JUMP_EQUAL, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7FFF_0000, 0x0005_0000
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2


def refuse_netlink(architecture: int, call: int) -> None:
    """Deny netlink sockets to this process and its successors."""
    program = b"".join(
        struct.pack("=HBBI", *line)
        for line in (
            (LOAD, 0, 0, 4),
            (JUMP_EQUAL, 0, 5, architecture),
            (LOAD, 0, 0, 0),
            (JUMP_EQUAL, 0, 3, call),
            (LOAD, 0, 0, 16),
            (JUMP_EQUAL, 0, 1, socket.AF_NETLINK),
            (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT),
            (RETURN, 0, 0, ALLOW),
        )
    )
    memory = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((SET_NO_NEW_PRIVS, 1, 0, 0, 0), (SET_SECCOMP, FILTER, header, 0, 0)):
        if libc.prctl(*(word if isinstance(word, bytes) else ctypes.c_ulong(word) for word in words)):
            raise OSError(ctypes.get_errno(), "the kernel does not take the filter")


if __name__ == "__main__":
    if platform.machine() in SOCKET:
        refuse_netlink(*SOCKET[platform.machine()])
    os.execv(CHROMIUM, [CHROMIUM, *sys.argv[1:]])
