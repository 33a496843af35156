"""Run the examples of how-to pages unchanged: in a separate network, where their ports are free."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
BIN = Path(sys.executable).parent
SHELL = r"""
set -eu
until_up() { for _ in $(seq 999); do curl -sfo /dev/null "$1" && return; sleep 0.1; done; echo "$1 is not up"; exit 1; }
until_said() { for _ in $(seq 999); do grep -q "$2" "$1" && return; sleep 0.1; done; cat "$1"; echo "no $2"; exit 1; }
"""


class Page:
    """Its blocks of code."""

    def __init__(self, name: str, test: str) -> None:
        """`test`: the file of the tests that run it."""
        self.blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
        self._test = Path(test).read_text()

    def block(self, begins: str) -> str:
        """Return the one block that begins with this text."""
        (found,) = (text for _, text in self.blocks if text.startswith(begins))
        return str(found)

    def lines(self, begins: str) -> list[str]:
        """Return its commands, without the comments beside them."""
        return [re.split(r"\s+#", line)[0] for line in self.block(begins).splitlines()]

    @property
    def left_out(self) -> list[str]:
        """Return the blocks that the test file does not name."""
        taken = re.findall(r'(?:block|lines)\("(.+?)"\)', self._test)
        named = tuple(text.encode().decode("unicode_escape") for text in taken)
        return [text for _, text in self.blocks if not text.startswith(named)]


def run(script: str, root: Path, *, hosts: str = "", **environment: str) -> str:
    """Return the output, in a network without anything else; all processes end afterwards. `hosts`: further names of
    the machine itself."""
    names = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1", **environment}
    cell = ["bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--unshare-net"]
    if hosts:
        (root / "hosts").write_text(f"127.0.0.1 localhost {hosts}\n")
        cell += ["--bind", str(root / "hosts"), "/etc/hosts"]
    cell += ["--unshare-pid", "--die-with-parent", "bash", "-c", SHELL + script]
    done = subprocess.run(cell, cwd=root, env=names, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
