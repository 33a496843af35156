"""The demonstration, as somebody sees it who has just got Headgate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEADGATE = str(Path(sys.executable).with_name("headgate"))


def test_the_demo_ends_as_it_says(tmp_path: Path) -> None:
    done = subprocess.run([HEADGATE, "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo: landed 6, rejected 2, lost 0"
    assert "WARNING" not in done.stderr, done.stderr
    assert "demo.example/app master zuul.yaml:5: error: the job 'jobs-that-nobody-defined'" in done.stdout
    assert "a worker is told: report of gate, success: " in done.stdout
    assert "Traceback" not in done.stderr


def test_a_machine_is_burned_in_before_builds_are_given_it(tmp_path: Path) -> None:
    command = [HEADGATE, "demo", "--story", "machines"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo: burned in 1, broken 1, landed 1"
    assert "m1 is burned in" in done.stdout and "m2 is broken" in done.stdout and "Traceback" not in done.stderr
