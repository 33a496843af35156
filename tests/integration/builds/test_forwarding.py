"""Test that executors turn forwarding on without disturbing other programs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a machine's network")
def test_a_container_engine_that_starts_later_keeps_working_whatever_executors_do() -> None:
    command = ["unshare", "-n", sys.executable, "-m", "tests.integration.builds.engine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("passed\n"), done.stdout + done.stderr
