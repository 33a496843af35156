"""A clock that leaps, by hours and by years, forwards and back, while the gate runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headgate.testing.repositories import run_git

from .arena import NEIGHBOURS, Arena

LEAPS = ("+0", "+5h", "-3h", "+9y", "-20y", "+0")
"""Against the real time, one after the other."""


@pytest.mark.skipif(not os.environ.get("HOSTILE_ALL"), reason="git may not start: make soak")
def test_a_clock_that_leaps_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    now = tmp_path / "now"
    now.write_text(LEAPS[0])
    arena = Arena(tmp_path)
    with monkeypatch.context() as faked:
        faked.setenv("LD_PRELOAD", str(library))
        faked.setenv("FAKETIME_TIMESTAMP_FILE", str(now))
        faked.setenv("FAKETIME_NO_CACHE", "1")
        faked.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        arena.headgate.start()
    try:
        for leap in LEAPS:
            now.write_text(leap)
            arena.neighbours_land()
        dates = run_git("log", "--format=%ct", "master", at=arena.repositories.hub / NEIGHBOURS[0]).split()
        assert max(map(int, dates)) > time.time() + 8 * 365 * 86_400, "the gate saw the leaps"
        assert not [line for line in arena.log.splitlines() if " ERROR " in line], arena.log
        assert run_git("fsck", "--strict", "--no-dangling", at=arena.repositories.hub / NEIGHBOURS[0]) == ""
    finally:
        arena.headgate.stop()  # its status is that of sleeping on a faked clock
    assert "LD_PRELOAD" not in os.environ
