"""Kinds of machines on which the promises are tried: this one, in the sandbox, and one that is reached over ssh."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.testing.servers.sshd import Lab, program
from tests.integration.builds.bench import Bench

from .stage import Stage

SSHD_MISSING = "needs Debian's package openssh-server"


@pytest.fixture(autouse=True)
async def benches() -> AsyncIterator[None]:
    yield
    while Bench.opened:
        await Bench.opened.pop().runner.close()


@pytest.fixture(params=["local", "ssh"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with ExitStack() as stack:
        if request.param == "local":
            yield Stage(tmp_path)
            return
        yield over_ssh(tmp_path, stack)


def over_ssh(root: Path, stack: ExitStack) -> Stage:
    if program() is None:
        pytest.skip(SSHD_MISSING)
    lab = Lab(root / "lab")
    return Stage(root, lab, stack.enter_context(lab.server()))
