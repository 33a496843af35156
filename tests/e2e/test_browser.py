"""Check that Chromium, as tests run it, does not see what happens to the networks of this machine."""

from __future__ import annotations

import errno
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from .chromium import SOCKET

TRIED = """
import platform, socket
from tests.e2e.chromium import SOCKET, refuse_netlink
refuse_netlink(*SOCKET[platform.machine()])
socket.socket(socket.AF_INET).close()
socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).close()
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif(platform.machine() not in SOCKET, reason="there is no filter for this machine")
def test_a_process_that_gave_up_netlink_has_all_other_sockets() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", TRIED], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == f"{errno.EAFNOSUPPORT}\n"
