"""Test a clock that leaps, by hours and by years, forwards and back, while the gate runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headgate.testing.repositories import run_git

from .arena import NEIGHBOURS, Arena

LEAPS = ("+5h", "+9y", "-20y")
"""Offsets from the real time, one after the other."""
SLEEP = """
import select, time
def sleep(seconds):
    select.select((), (), (), seconds)
time.sleep = sleep
"""
"""The library that fakes the clock also converts sleeps until a moment of the monotonic clock, which it does not
fake, into sleeps on the faked clock, and the kernel refuses the result. A leap of a real clock does not affect such
sleeps."""


@pytest.mark.long
def test_a_clock_that_jumps_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    (tmp_path / "python").mkdir()
    (tmp_path / "python/sitecustomize.py").write_text(SLEEP)
    leap_to(tmp_path, "+0")
    arena = Arena(tmp_path)
    with monkeypatch.context() as faked:
        faked.setenv("LD_PRELOAD", str(library))
        faked.setenv("FAKETIME_TIMESTAMP_FILE", str(tmp_path / "now"))
        faked.setenv("FAKETIME_NO_CACHE", "1")
        faked.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        faked.setenv("PYTHONPATH", str(tmp_path / "python"), prepend=os.pathsep)
        arena.headgate.start()
    try:
        for leap in LEAPS:
            leap_to(tmp_path, leap)
            arena.neighbours_land()
        dates = run_git("log", "--format=%ct", "master", at=arena.repositories.hub / NEIGHBOURS[0]).split()
        assert max(map(int, dates)) > time.time() + 8 * 365 * 86_400, "the gate saw the leaps"
        assert min(map(int, dates)) < time.time() - 19 * 365 * 86_400
        assert not [line for line in arena.log.splitlines() if " ERROR " in line], arena.log
        assert run_git("fsck", "--strict", "--no-dangling", at=arena.repositories.hub / NEIGHBOURS[0]) == ""
    finally:
        status = arena.headgate.stop()
    assert status == 0, arena.log
    assert "LD_PRELOAD" not in os.environ


def leap_to(root: Path, offset: str) -> None:
    """Replace it atomically: a concurrent reader sees the old file or the new one."""
    (root / "next").write_text(offset)
    (root / "next").replace(root / "now")
