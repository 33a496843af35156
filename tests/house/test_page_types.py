"""Test the types of the pages' modules: the browser's, each other's, and those in JSDoc."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODE = ROOT / "tests" / "node"
TSC = NODE / "node_modules" / ".bin" / "tsc"
"""The version of tests/node/package-lock.json, which `make test` installs if npm exists."""
NOT_OURS = {"uPlot.js"}

pytestmark = pytest.mark.skipif(not TSC.exists(), reason="typescript is not installed: `make tests/node/node_modules`")


def tsc(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TSC), "-p", str(NODE), *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_modules_of_the_pages_have_no_wrong_types() -> None:
    found = tsc("--pretty", "false")
    assert found.returncode == 0, found.stdout


def test_every_module_is_checked() -> None:
    modules = {file.name for file in (ROOT / "src" / "headgate" / "web" / "static").glob("*.js")} - NOT_OURS
    checked = {Path(line).name for line in tsc("--listFilesOnly").stdout.splitlines()}
    assert modules <= checked and not checked & NOT_OURS
