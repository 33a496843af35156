"""Test the state in which a command in a container starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

STARTS = """
import os, sys
from headgate.adapters.process.confinement import boxes
why = os.pipe()[1]
rights = boxes.ContainerRights(0, b"", {"PATH": os.environ["PATH"]})
boxes.start_command(sys.argv[1], "root", rights, {}, (0, 1, 2), why)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose rights are given up")
def test_a_command_ignores_no_signal_that_python_ignores() -> None:
    command = [sys.executable, "-c", STARTS, "grep SigIgn /proc/self/status; yes | head -1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ignored = int(done.stdout.split()[1], 16)
    assert not [one for one in (signal.SIGPIPE, signal.SIGXFSZ) if ignored & 1 << one - 1]
    assert done.stderr == ""
