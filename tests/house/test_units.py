"""Test the shipped units: systemd's own rating of their exposure."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "packaging/systemd"
UNIT, JOBS = UNITS / "headgate@.service", UNITS / "headgate@executor.service.d/jobs.conf"
MORE = {"executor": JOBS, "fingergw": UNITS / "headgate@fingergw.service.d/port.conf"}
EXPOSURE_MAX = {"web": 2.0, "scheduler": 2.0, "merger": 2.0, "launcher": 2.0, "fingergw": 2.5, "executor": 5.0}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
@pytest.mark.parametrize("kind", EXPOSURE_MAX)
def test_a_unit_is_exposed_as_little_as_its_work_allows(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"headgate@{kind}.service"
    file.write_text(UNIT.read_text() + (MORE[kind].read_text() if kind in MORE else ""))
    command = ["systemd-analyze", "security", "--offline=true", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure) <= EXPOSURE_MAX[kind], done.stdout


def test_every_exception_of_the_executor_has_its_reason() -> None:
    lines = JOBS.read_text().splitlines()
    blocks = re.split(r"^#", "\n".join(lines[3:]), flags=re.MULTILINE)[1:]
    assert len(blocks) >= 7 and all(len(block.partition("\n")[0]) > 30 for block in blocks)
    given = {line.partition("=")[0] for line in lines if "=" in line and not line.startswith("#")}
    assert given - {line.partition("=")[0] for line in UNIT.read_text().splitlines()} == {
        "Delegate", "TasksMax", "OOMPolicy", "DevicePolicy", "DeviceAllow",
    }  # fmt: skip
