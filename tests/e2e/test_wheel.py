"""The wheel, installed in an empty home as people do it, and what that takes on a disk."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import __version__
from headgate.cli.pages.docs import SHARED

ROOT = Path(__file__).parents[2]
SIZE_MAX_MB = 120.0
AWAY = 75


@pytest.mark.soak
def test_the_wheel_works_in_an_empty_home_and_takes_no_more_than_its_limit() -> None:
    words = [sys.executable, str(ROOT / "scripts/try-wheel")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1000, check=False)
    if done.returncode == AWAY:
        pytest.skip(f"the package index cannot be reached: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    for way in ("pip", "pipx", "uvx"):
        assert f"{way}: headgate, version {__version__}\n" in done.stdout
        assert re.search(rf"^{way}: tenant example: .*: no errors$", done.stdout, re.MULTILINE), done.stdout
    assert "pip: demo: landed 6, rejected 2, lost 0\n" in done.stdout
    pages = len(list((ROOT / SHARED / "man/man1").iterdir()))
    assert all(f"{way}: {pages} manual pages\n" in done.stdout for way in ("pip", "pipx"))
    in_all = re.search(r"^ *([\d.]+) MB in all$", done.stdout, re.MULTILINE)
    assert in_all is not None and 50 < float(in_all[1]) <= SIZE_MAX_MB, done.stdout
    text = (ROOT / "ARCHITECTURE.md").read_text()
    ours = re.search(r"Headgate itself, which takes (\d+) MB: (\d+) MB in all", text)
    own = re.search(r"^ *([\d.]+) headgate$", done.stdout, re.MULTILINE)
    assert ours is not None and own is not None
    assert abs(float(own[1]) - float(ours[1])) < 1 and abs(float(in_all[1]) - float(ours[2])) < 3
